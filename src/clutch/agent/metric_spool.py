"""What a dead member had spooled of its metrics, found in its folder and read in pieces.

``clutch.runtime.spool`` writes it: ``TMPDIR/clutch-metrics-MEMBER-FENCE-*/spool.jsonl``, a line for each numbered
batch, and beside it ``sequence`` with the last number given and the last one acknowledged. The folder is the user's:
nothing in it is believed that does not look as that module writes it, no link is followed, and its size is bounded. A
line that was cut off is as if it had never been; where a number stands twice (its writer was killed while it moved
lines) the first line counts.
"""

from __future__ import annotations

import os
import re
import stat
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec

from clutch.agent.folders import is_anybodys
from clutch.backends.containers.base import Key

SPOOL, SEQUENCE = "spool.jsonl", "sequence"
SPOOL_MAX_BYTES = 256 << 20
"""Four times what a writer lets it grow to; a larger one was not written by ours."""
LINE_MAX_BYTES = 16 << 20
"""Of one batch; the master takes no larger one from a living member either."""
GAP_MAX = 10_000
"""So many numbers in a row may be missing (a full disk kept their lines in memory); more is no spool."""
NAMES_MAX = 100_000
READ_BYTES = 1 << 20
SEQUENCE_MAX = 2**62

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Line(msgspec.Struct):
    """What of a line must hold to ship it; its points are the master's to judge."""

    sequence: int
    points: list[msgspec.Raw]


_decode = msgspec.json.Decoder(_Line).decode


class NoSpool(Exception):
    """Something is there that is no spool of ours; the message says what."""


class Spooled:
    """The batches that are left, by number. Holds where each line is, not the lines."""

    __slots__ = ("_numbers", "_offsets", "_sizes", "acknowledged", "name", "notice", "tmp")

    def __init__(self, tmp: Path, name: str) -> None:
        self.tmp = tmp
        self.name = name
        self.acknowledged = 0
        """What the member itself was told that the store has; 0 where that cannot be known."""
        self.notice = ""
        """What of it is lost or not believed, in words."""
        self._numbers, self._offsets, self._sizes = array("q"), array("q"), array("q")

    @property
    def last(self) -> int:
        """The number of the last batch; 0 when nothing is left."""
        return self._numbers[-1] if self._numbers else 0

    def __len__(self) -> int:
        return len(self._numbers)

    def after(self, sequence: int) -> Iterator[tuple[int, int, int]]:
        """Number, offset and size of each line behind a number, in order."""
        for place in range(bisect_right(self._numbers, sequence), len(self._numbers)):
            yield self._numbers[place], self._offsets[place], self._sizes[place]

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The file, for ``read_line``. ``OSError`` or ``NoSpool`` when it is not what it was."""
        with _folder(self.tmp, self.name) as (folder, owner):
            descriptor = _plain(folder, SPOOL, owner)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def keep(self, lines: Lines) -> None:
        """Take over these: in order, each number once, up to where they are believable."""
        order = lines.in_order()
        before = self.acknowledged or (lines.numbers[order[0]] - 1 if len(order) else 0)
        for place in order:
            number = lines.numbers[place]
            if number == self.last:
                continue
            missing = number - before - 1
            if missing > GAP_MAX:
                self.notice = f"its metrics from batch {number} on are ignored: {missing} before are missing"
                return
            self._numbers.append(number)
            self._offsets.append(lines.offsets[place])
            self._sizes.append(lines.sizes[place])
            before = max(before, number)


class Lines:
    """Every whole line of a file that may be a batch, as they stand there."""

    __slots__ = ("junk", "numbers", "offsets", "sizes")

    def __init__(self) -> None:
        self.numbers, self.offsets, self.sizes = array("q"), array("q"), array("q")
        self.junk = False
        """There were whole lines that are none."""

    def add(self, line: bytes, offset: int) -> None:
        if number := _number(line):
            self.numbers.append(number)
            self.offsets.append(offset)
            self.sizes.append(len(line) + 1)
        else:
            self.junk = True

    def in_order(self) -> Sequence[int]:
        """Their places by number; of equal numbers the first comes first."""
        numbers = self.numbers
        if all(one < other for one, other in pairwise(numbers)):
            return range(len(numbers))
        return sorted(range(len(numbers)), key=numbers.__getitem__)


def look(tmp: Path, key: Key) -> Spooled | None:
    """What an incarnation left in its temporary folder; None when it never spooled, or nothing is left."""
    try:
        name = _name_in(tmp, key)
        if name is None:
            return None
        found = Spooled(tmp, name)
        last = _read(found)
    except NoSpool as junk:
        return _ignored(tmp, f"what lies in place of its metrics is ignored: {junk}")
    except OSError as failed:
        return _ignored(tmp, f"its metrics cannot be read: {failed.strerror or failed}")
    lost = last - max(found.last, found.acknowledged)
    if lost > 0 and not found.notice:
        found.notice = f"its last {lost} batches of metrics were not on its disk"
    return found if len(found) or found.notice else None


def read_line(descriptor: int, offset: int, size: int) -> bytes:
    """One line, without its end. ``NoSpool`` when it is not there any more."""
    line = os.pread(descriptor, size, offset)
    if len(line) != size or not line.endswith(b"\n"):
        raise NoSpool("its spool has changed")
    return line[:-1]


def prefix_of(key: Key) -> str:
    """How the spool's folder of an incarnation begins; as ``clutch.runtime.opening.spool_name``."""
    member, fence = key
    said = re.sub(r"[^A-Za-z0-9._-]", "-", f"{member.task}-{member.role}-{member.rank}-{fence}")
    return f"clutch-metrics-{said}-"


# -- the inside ----------------------------------------------------------------------------------------------------


def _ignored(tmp: Path, notice: str) -> Spooled:
    found = Spooled(tmp, "")
    found.notice = notice
    return found


def _name_in(tmp: Path, key: Key) -> str | None:
    wanted = re.compile(re.escape(prefix_of(key)) + "[0-9a-f]{12}")
    try:
        descriptor = os.open(tmp, _DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        with os.scandir(descriptor) as entries:
            names = [entry.name for _, entry in zip(range(NAMES_MAX), entries, strict=False)]
    finally:
        os.close(descriptor)
    found = [name for name in names if wanted.fullmatch(name)]
    if len(found) > 1:
        raise NoSpool(f"there are {len(found)} of them")
    return found[0] if found else None


@contextmanager
def _folder(tmp: Path, name: str) -> Iterator[tuple[int, int]]:
    """The spool's folder, and whose the temporary one is; where that is anybody's, whose the spool itself is."""
    above = os.open(tmp, _DIRECTORY)
    try:
        folder = os.open(name, _DIRECTORY, dir_fd=above)
        try:
            about = os.fstat(above)
            yield folder, (os.fstat(folder) if is_anybodys(about) else about).st_uid
        finally:
            os.close(folder)
    finally:
        os.close(above)


def _plain(folder: int, name: str, owner: int) -> int:
    descriptor = os.open(name, _PLAIN, dir_fd=folder)
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or about.st_uid != owner:
        os.close(descriptor)
        raise NoSpool(f"{name} is no plain file of the member's own")
    return descriptor


def _read(found: Spooled) -> int:
    """Where its lines are; the last number that was given, as far as it is known."""
    with _folder(found.tmp, found.name) as (folder, owner):
        last, found.acknowledged = _numbers(folder, owner)
    with found.opened() as descriptor:
        size = os.fstat(descriptor).st_size
        if size > SPOOL_MAX_BYTES:
            raise NoSpool(f"{SPOOL} has {size} bytes")
        lines = _lines(descriptor)
    if lines.junk and not lines.numbers:
        raise NoSpool(f"{SPOOL} has no line of a spool")
    if lines.numbers and max(lines.numbers) > last + 1:  # a number is kept right after its line: this one is stale
        found.acknowledged = 0
    found.keep(lines)
    return last


def _numbers(folder: int, owner: int) -> tuple[int, int]:
    try:
        descriptor = _plain(folder, SEQUENCE, owner)
    except (OSError, NoSpool):
        return 0, 0
    try:
        parts = os.read(descriptor, 64).split()
    finally:
        os.close(descriptor)
    if len(parts) != 2 or not all(re.fullmatch(rb"\d{20}", part) for part in parts):
        return 0, 0
    last, acknowledged = map(int, parts)
    return (last, acknowledged) if acknowledged <= last < SEQUENCE_MAX else (0, 0)


def _lines(descriptor: int) -> Lines:
    found = Lines()
    rest, start, offset = b"", 0, 0
    skipping = False  # within a line that is too long
    while data := os.pread(descriptor, READ_BYTES, offset):
        offset += len(data)
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            found.add(b"" if skipping else line, start)
            skipping = False
            start += len(line) + 1
        if len(rest) > LINE_MAX_BYTES:
            skipping = True
            start, rest = start + len(rest), b""
    return found


def _number(line: bytes) -> int:
    """The number of the batch that a line is; 0 for what is none."""
    try:
        batch = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
    return batch.sequence if 0 < batch.sequence < SEQUENCE_MAX else 0
