"""Names in a shared folder, such as one on NFS: what is on the disk, and how it changes.

::

    FOLDER/names/<name>/00000000000000000007     the last record of a name: its entry, or that it was removed
    FOLDER/work/                                 records being written, and one file per party to read the clock

(``/`` in a name is a backslash on disk.) A record is written whole in ``work``, made durable, and then *linked* as the
next number of its name. A link fails if that number exists, so each step of a name (add, renew, take over, remove) is a
compare-and-set that exactly one party wins, without locks, also on NFS. Readers take the highest number; lower ones are
swept by whoever links, who then looks whether its own is still the highest. No reader can see half a record.

Time is the folder's: a record's modification time is given by the file server, and so is the time that it is compared
with, from touching a file. Clocks of machines do not matter.

A removed or expired name leaves its last record behind for ``SWEEP_AFTER_S``, so that numbers and tokens keep growing.
Then a sweeper *seals* the name, which is one more compare-and-set, and takes the folder away; nobody adds above a fresh
seal. Tokens start at the folder's time in microseconds, so a swept name's next token is still higher.
"""

from __future__ import annotations

import os
import secrets
import zlib
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from clutch.backends.names.base import VALUE_BYTES_MAX, Entry, covers
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Corrupt, DiskFull, NotAllowed, Stale, Unavailable

SWEEP_AFTER_S = 3600.0
SEAL_HOLDS_S = 60.0
SWEEP_AT_ONCE = 64
ATTEMPTS = 200
"""How often one call begins anew because others changed the name under it."""
RECORD_BYTES_MAX = VALUE_BYTES_MAX + 4096
WORK_KEEPS_S = 86_400.0
_FULL = (28, 122)  # ENOSPC, EDQUOT


class Kind(StrEnum):
    HELD = "held"
    REMOVED = "removed"
    SEALED = "sealed"  # its folder is being taken away


class Record(msgspec.Struct, frozen=True):
    kind: Kind
    name: str
    token: int
    value: bytes = b""
    ttl_s: float | None = None


class Last(msgspec.Struct, frozen=True):
    """The highest record of a name, and when the folder's clock says it was written."""

    number: int
    record: Record
    written_at: float

    def lives(self, now: float) -> bool:
        held = self.record.kind is Kind.HELD
        return held and (self.record.ttl_s is None or now <= self.written_at + self.record.ttl_s)

    def is_over_since(self, now: float) -> float:
        """For how long there has been no entry."""
        ttl_s = self.record.ttl_s or 0.0 if self.record.kind is Kind.HELD else 0.0
        return now - self.written_at - ttl_s


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


class NameFolder:
    """Blocking operations on the folder. One object per process; threads may share it."""

    def __init__(self, path: Path) -> None:
        self._names = path / "names"
        self._work = path / "work"
        self._self = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._clock = self._work / f"clock-{self._self}"
        self._count = 0
        self._known: dict[str, tuple[int, int, Last]] = {}
        try:
            self._names.mkdir(parents=True, exist_ok=True)
            self._work.mkdir(exist_ok=True)
            self._clock.touch(0o600)
        except OSError as error:
            raise _say(error, str(path)) from error
        self._sweep_work(self.now())

    def close(self) -> None:
        with suppress(OSError):
            self._clock.unlink(missing_ok=True)

    def now(self) -> float:
        """The folder's own clock."""
        try:
            with suppress(FileNotFoundError):
                os.utime(self._clock)
                return self._clock.stat().st_mtime
            self._clock.touch(0o600)
            return self._clock.stat().st_mtime
        except OSError as error:
            raise _say(error, str(self._clock)) from error

    # ------------------------------------------------------------------------------------------------ changing

    def add(self, name: str, value: bytes, ttl_s: float | None, replace: bool) -> Entry:
        for _ in range(ATTEMPTS):
            place = self._enter(name)
            if place is None:
                continue
            try:
                found = self._last(place, name, damaged_is_none=replace)
                if found is None:
                    continue
                number, last = found
                now = self.now()
                if last is not None and last.lives(now) and not replace:
                    raise Conflict(
                        "somebody holds this name", object=name, next_step="Wait until it is gone, or replace it."
                    )
                if last is not None and last.record.kind is Kind.SEALED and now < last.written_at + SEAL_HOLDS_S:
                    continue
                token = max(last.record.token + 1 if last else 1, int(now * 1e6))
                if self._link(place, number + 1, Record(Kind.HELD, name, token, value, ttl_s)):
                    return Entry(name, value, token)
            finally:
                os.close(place)
        raise _contended(name)

    def renew(self, name: str, token: int, value: bytes | None) -> Entry:
        for _ in range(ATTEMPTS):
            place = self._open(name)
            if place is None:
                raise _over(name)
            try:
                found = self._last(place, name)
                if found is None:
                    continue
                number, last = found
                if last is None or last.record.token != token or not last.lives(self.now()):
                    raise _over(name)
                record = last.record if value is None else msgspec.structs.replace(last.record, value=value)
                if self._link(place, number + 1, record):
                    return Entry(name, record.value, token)
            finally:
                os.close(place)
        raise _contended(name)

    def remove(self, name: str, token: int) -> bool:
        """Whether there was such an entry. ``Stale`` when another holds the name."""
        for _ in range(ATTEMPTS):
            place = self._open(name)
            if place is None:
                return False
            try:
                found = self._last(place, name)
                if found is None:
                    continue
                number, last = found
                if last is None or not last.lives(self.now()):
                    return False
                if last.record.token != token:
                    raise Stale("another holds this name now", object=name, next_step="Leave it alone.")
                if self._link(place, number + 1, Record(Kind.REMOVED, name, token)):
                    return True
            finally:
                os.close(place)
        raise _contended(name)

    # ------------------------------------------------------------------------------------------------- reading

    def get(self, name: str) -> Entry | None:
        last = self._look(name)
        return _entry(last) if last is not None and last.lives(self.now()) else None

    def list(self, prefix: str) -> list[Entry]:
        """All living entries under a prefix, by name; takes away a few of those that ended long ago."""
        try:
            names = [_name(place.name) for place in self._names.iterdir()]
        except OSError as error:
            raise _say(error, str(self._names)) from error
        now = self.now()
        entries: list[Entry] = []
        swept = 0
        for name in sorted(names):
            if not covers(prefix, name):
                continue
            last = self._glance(name, now)
            if last is None:
                continue
            if last.lives(now):
                entries.append(_entry(last))
            elif last.is_over_since(now) > SWEEP_AFTER_S and swept < SWEEP_AT_ONCE:
                swept += 1
                self.sweep(name)
        return entries

    def _glance(self, name: str, now: float) -> Last | None:
        """As ``_look``, without opening what has not changed since the last time.

        A folder changed in the last two seconds is always opened: its time may be too coarse to show two changes.
        """
        try:
            status = (self._names / _place(name)).stat()
        except FileNotFoundError:
            self._known.pop(name, None)
            return None
        except OSError as error:
            raise _say(error, name) from error
        known = self._known.get(name)
        if known is not None and known[:2] == (status.st_ino, status.st_mtime_ns) and status.st_mtime < now - 2.0:
            return known[2]
        last = self._look(name)
        if last is None:
            self._known.pop(name, None)
        else:
            self._known[name] = (status.st_ino, status.st_mtime_ns, last)
        return last

    def _look(self, name: str) -> Last | None:
        for _ in range(ATTEMPTS):
            place = self._open(name)
            if place is None:
                return None
            try:
                found = self._last(place, name)
            finally:
                os.close(place)
            if found is not None:
                return found[1]
        raise _contended(name)

    # ------------------------------------------------------------------------------------------------ sweeping

    def sweep(self, name: str) -> bool:
        """Take a name's folder away if nothing happens to it meanwhile; whether it went."""
        place = self._open(name)
        if place is None:
            return False
        try:
            found = self._last(place, name)
            number, last = found or (0, None)
            if last is None:
                return False
            if last.is_over_since(self.now()) <= SWEEP_AFTER_S:
                return False
            if not self._link(place, number + 1, Record(Kind.SEALED, name, last.record.token)):
                return False
            os.unlink(_file(number + 1), dir_fd=place)
            (self._names / _place(name)).rmdir()
        except OSError:
            return False  # somebody is quicker, or it is tried again another time
        finally:
            os.close(place)
        self._known.pop(name, None)
        return True

    def _sweep_work(self, now: float) -> None:
        """What parties that died left behind a day ago."""
        with suppress(OSError):
            for left in self._work.iterdir():
                with suppress(OSError):
                    if left.stat().st_mtime < now - WORK_KEEPS_S:
                        left.unlink()

    # ----------------------------------------------------------------------------------------------- the disk

    def _enter(self, name: str) -> int | None:
        with suppress(FileExistsError):
            try:
                (self._names / _place(name)).mkdir()
            except FileExistsError:
                raise
            except OSError as error:
                raise _say(error, name) from error
        return self._open(name)

    def _open(self, name: str) -> int | None:
        """The name's folder itself: what is linked into it after it was taken away fails."""
        try:
            return os.open(self._names / _place(name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _say(error, name) from error

    def _last(self, place: int, name: str, damaged_is_none: bool = False) -> tuple[int, Last | None] | None:
        """The highest number with its record; (0, None) in an empty folder; None when it changed under us."""
        try:
            number = max((int(file) for file in os.listdir(place) if file.isdigit()), default=0)
            if not number:
                return 0, None
            descriptor = os.open(_file(number), os.O_RDONLY | os.O_CLOEXEC, dir_fd=place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _say(error, name) from error
        try:
            written_at = os.fstat(descriptor).st_mtime
            data = os.read(descriptor, RECORD_BYTES_MAX)
        except OSError as error:
            if error.errno == 116:  # ESTALE: a file server has swept it meanwhile
                return None
            raise _say(error, name) from error
        finally:
            os.close(descriptor)
        try:
            return number, Last(number, _unpack(data, name), written_at)
        except Corrupt:
            if damaged_is_none:
                return number, None
            raise

    def _link(self, place: int, number: int, record: Record) -> bool:
        """Make this the next record of its name; False when another was quicker."""
        self._count += 1
        written = self._work / f"record-{self._self}-{self._count}-{secrets.token_hex(4)}"
        try:
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, _pack(record))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.link(written, _file(number), dst_dir_fd=place)
        except (FileExistsError, FileNotFoundError):
            # On NFS the answer to a link that was made can be lost and the repetition refused: two links tell.
            try:
                if written.stat().st_nlink < 2:
                    return False
            except OSError:
                return False
        except OSError as error:
            raise _say(error, record.name) from error
        finally:
            with suppress(OSError):
                written.unlink(missing_ok=True)
        return self._settle(place, number)

    @staticmethod
    def _settle(place: int, number: int) -> bool:
        """Whether the record just linked is the last one; sweeps those below the last.

        A party that was slow may link a number that others have used and swept already. Then a higher one is there:
        the highest is never taken away, except under a seal.
        """
        try:
            numbers = [int(file) for file in os.listdir(place) if file.isdigit()]
        except OSError:
            return False
        highest = max(numbers, default=number)
        for lower in numbers:
            if lower < highest:
                with suppress(OSError):
                    os.unlink(_file(lower), dir_fd=place)
        return highest == number


def _pack(record: Record) -> bytes:
    data = _encoder.encode(record)
    return zlib.crc32(data).to_bytes(4, "little") + data


def _unpack(data: bytes, name: str) -> Record:
    if len(data) < 4 or zlib.crc32(data[4:]).to_bytes(4, "little") != data[:4]:
        raise Corrupt("its record fails its checksum", object=name, next_step="Add it with replace.")
    try:
        return _decoder.decode(data[4:])
    except msgspec.MsgspecError as error:
        raise Corrupt(f"its record does not decode: {error}", object=name, next_step="Add it with replace.") from error


def _entry(last: Last) -> Entry:
    return Entry(last.record.name, last.record.value, last.record.token)


def _place(name: str) -> str:
    return name.replace("/", "\\")


def _name(place: str) -> str:
    return place.replace("\\", "/")


def _file(number: int) -> str:
    return f"{number:020d}"


def _over(name: str) -> Stale:
    return Stale("this tenure is over", object=name, next_step="Add the name again, or stop.")


def _contended(name: str) -> Unavailable:
    return Unavailable("it changes faster than it can be read", object=name, next_step="Try again.")


def _say(error: OSError, thing: str) -> ClutchError:
    """A disk's word as ours."""
    cause = f"the folder of names says: {error.strerror or error}"
    if error.errno in _FULL:
        return DiskFull(cause, object=thing, next_step="Make room in the folder of names.")
    if isinstance(error, PermissionError):
        return NotAllowed(cause, object=thing, next_step="Let this user write the folder of names.")
    if isinstance(error, NotADirectoryError | FileExistsError):
        return BadRequest(cause, object=thing, next_step="Give a folder.")
    return Unavailable(cause, object=thing, next_step="Check the folder of names.")
