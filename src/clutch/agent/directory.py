"""The members' directories on a machine: one per incarnation, made whole or not at all, and read back by any agent.

::

    ROOT/TASK~ROLE~RANK~gGeEiI/   named by member and fence; a name that exists was started, for ever
        spec       who it is, its command (not its environment), this boot of the machine, its cgroups
        lock       locked by the starter, then by the shim: held = alive, free = nobody will write here any more
        wake       FIFO from the shim: something changed; its end: the shim is gone
        orders     FIFO to the shim: ``signal N``, ``kill``
        started    written before the command is executed: without it, it was not
        output/    the spool (``agent/spool.py``)
        exit       how it ended; from then on nothing changes here
        shim.log   empty, or why a shim failed

The directory is filled under another name and renamed into place, so a crash leaves all of it or none (decision 0400).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import count
from pathlib import Path
from urllib.parse import quote, unquote

from clutch.agent import brain, shim, spool
from clutch.backends.containers.base import Claim, Key, Traces
from clutch.wire.containers import ContainerSpec, ExitRecord, Observed
from clutch.wire.errors import BadRequest
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.messages import ExitCause, MemberStatus

NAME_BYTES_MAX = 200
ABANDONED_AFTER_S = 60.0
SHIM_LOG = "shim.log"
GONE = ".gone-"
_NAME = re.compile(r"([^~]*)~([^~]*)~(\d+)~g(\d+)e(\d+)i(\d+)")


@lru_cache(maxsize=4096)
def name_of(key: Key) -> str:
    """A safe file name: only letters, digits, ``_``, ``-`` and ``%`` of what users chose; long ones end in a hash."""
    member, fence = key
    words = f"{_quoted(member.task)}~{_quoted(member.role)}~{member.rank}"
    if len(words) > NAME_BYTES_MAX:
        digest = hashlib.sha256(words.encode()).hexdigest()[:40]
        words = f"{words[: NAME_BYTES_MAX - 42]}~~{digest}"
    return f"{words}~{fence}"


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass").replace(".", "%2E").replace("~", "%7E")


def key_of(name: str) -> Key | None:
    """Whom a name stands for; None for a shortened or foreign one."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    task, role = (unquote(text, errors="surrogatepass") for text in found.group(1, 2))
    rank, generation, epoch, incarnation = map(int, found.group(3, 4, 5, 6))
    key = Key(MemberId(TaskId(task), role, rank), Fence(generation, epoch, incarnation))
    return key if name_of(key) == name else None


class Record:
    """A record's fields; a torn or missing one has none and is not ``whole``."""

    def __init__(self, path: Path) -> None:
        fields = shim.unpack(shim.read_file(str(path)))
        self.whole = fields is not None
        self._fields = fields or []

    def many(self, name: str) -> list[str]:
        return [os.fsdecode(value) for key, value in self._fields if key == name]

    def text(self, name: str) -> str:
        return (self.many(name) or [""])[0]

    def number(self, name: str) -> int:
        text = self.text(name)
        return int(text) if re.fullmatch(r"-?\d+", text) else 0

    def real(self, name: str) -> float:
        try:
            return float(self.text(name))
        except ValueError:
            return 0.0


class MemberDirectories:
    """All of a machine's members under one root; implements ``backends.containers.base.Directories``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._asides = count()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, key: Key) -> Path:
        return self.root / name_of(key)

    # -- making one ----------------------------------------------------------------------------------------------

    def claim(self, spec: ContainerSpec, cgroups: tuple[str, ...], notices: tuple[str, ...]) -> Claim | None:
        """The directory, whole and held by this process, for exactly one of all who ask; None for the others."""
        if spec.output_cap_bytes < shim.CAP_LEAST_BYTES:
            raise BadRequest(
                f"an output cap of {spec.output_cap_bytes} bytes is too small",
                object=str(spec.member),
                next_step=f"Use at least {shim.CAP_LEAST_BYTES} bytes.",
            )
        final = self.path(Key(spec.member, spec.fence))
        if os.path.lexists(final):
            return None
        aside = self.root / f".new-{os.getpid()}-{time.monotonic_ns()}-{next(self._asides)}"
        aside.mkdir(mode=0o700)
        descriptors: list[int] = []
        try:
            shim.write_record(str(aside), shim.SPEC, _spec_fields(spec, cgroups, notices), durable=False)
            descriptors.append(os.open(aside / shim.LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            fcntl.flock(descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in (shim.WAKE, shim.ORDERS):
                os.mkfifo(aside / name, 0o600)
                descriptors.append(os.open(aside / name, os.O_RDWR | os.O_NONBLOCK))
            aside.rename(final)  # onto a directory that is not empty it fails: that is the exclusion
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            shutil.rmtree(aside, ignore_errors=True)
            if os.path.lexists(final):
                return None
            raise
        return Claim(final, *descriptors)

    # -- reading one ---------------------------------------------------------------------------------------------

    def observe(self, key: Key) -> Observed | None:
        path = self.path(key)
        if not os.path.lexists(path):
            return None
        alive = is_held(path)  # first: a shim may end between the two looks, never begin
        spec, started = Record(path / shim.SPEC), Record(path / shim.STARTED)
        exit = self._exit(path)
        if exit is None and not alive:
            exit = self._how_lost(path)
        if exit is not None:
            status = MemberStatus.EXITED
        else:
            status = MemberStatus.RUNNING if started.whole else MemberStatus.STARTING
        return Observed(
            member=key.member,
            fence=key.fence,
            status=status,
            exit=exit,
            pid=started.number("pid") if status is MemberStatus.RUNNING else 0,
            started_at=started.real("started"),
            notices=tuple(spec.many("notice")),
        )

    def lost(self, key: Key) -> ExitRecord | None:
        path = self.path(key)
        if not os.path.lexists(path) or is_held(path) or self._exit(path) is not None:
            return None
        return self._how_lost(path)

    def settle(self, key: Key, record: ExitRecord) -> None:
        path = self.path(key)
        numbers = {"code": record.code, "stdout": record.stdout_bytes, "stderr": record.stderr_bytes}
        reals = {"started": record.started_at, "ended": record.ended_at, "cpu": record.cpu_s}
        fields = [
            *((name, str(number).encode()) for name, number in numbers.items()),
            *((name, repr(real).encode()) for name, real in reals.items()),
            ("cause", record.cause.encode()),
            ("reason", os.fsencode(record.reason)),
        ]
        if not path.is_dir():  # something else has this name: it stays as a mark that this one had its start
            path.unlink(missing_ok=True)
            path.mkdir(mode=0o700)
        shim.write_record(str(path), shim.EXIT, fields, durable=True)
        shim.sync_folder(str(path))

    def traces(self, key: Key) -> Traces:
        path = self.path(key)
        cgroups = tuple(Record(path / shim.SPEC).many("cgroup"))
        started = Record(path / shim.STARTED)
        if started.text("boot") != shim.boot_id():
            return Traces(cgroups=cgroups)
        pid, ticks, shim_pid, shim_ticks = map(started.number, ("pid", "ticks", "shim", "shim_ticks"))
        return Traces(pid, ticks, shim_pid, shim_ticks, cgroups)

    def _exit(self, path: Path) -> ExitRecord | None:
        record = Record(path / shim.EXIT)
        if not record.whole or record.text("cause") not in list(ExitCause):
            return None
        return ExitRecord(
            code=record.number("code"),
            cause=ExitCause(record.text("cause")),
            reason=record.text("reason"),
            started_at=record.real("started"),
            ended_at=record.real("ended"),
            stdout_bytes=record.number("stdout"),
            stderr_bytes=record.number("stderr"),
            cpu_s=record.real("cpu"),
        )

    def _how_lost(self, path: Path) -> ExitRecord:
        """The shim is gone without a record that can be read: what is left tells why."""
        spec, started = Record(path / shim.SPEC), Record(path / shim.STARTED)
        executed = os.path.lexists(path / shim.STARTED)
        boots = [text for text in (started.text("boot"), spec.text("boot")) if text]
        if boots and shim.boot_id() not in boots:
            cause, reason = ExitCause.MACHINE, "the machine was restarted under it"
        elif os.path.lexists(path / shim.EXIT):
            cause, reason = ExitCause.MACHINE, "its exit record cannot be read"
        elif executed:
            cause, reason = ExitCause.MACHINE, "its shim was killed"
        elif not spec.whole:
            cause, reason = ExitCause.NEVER_STARTED, "its directory is half-written"
        else:
            cause, reason = ExitCause.NEVER_STARTED, "its starter ended before the command was executed"
        said = _last_line(path / SHIM_LOG)
        ends = spool.ends(path / shim.OUTPUT)
        return ExitRecord(
            code=-shim.SIGKILL if executed else 127,
            cause=cause,
            reason=f"{reason} ({said})" if said else reason,
            started_at=started.real("started"),
            ended_at=time.time(),
            stdout_bytes=ends[0],
            stderr_bytes=ends[1],
        )

    # -- all of them ---------------------------------------------------------------------------------------------

    def found(self) -> list[Key]:
        """Whatever stands here, oldest first; also half-written ones, as long as they can be told apart."""
        keys: list[tuple[float, str, Key]] = []
        for entry in os.scandir(self.root):
            if entry.name.startswith("."):
                self._clear_abandoned(Path(entry.path))
                continue
            key = key_of(entry.name) or _key_in(Record(Path(entry.path) / shim.SPEC))
            if key is not None and name_of(key) == entry.name:
                keys.append((entry.stat(follow_symlinks=False).st_mtime, entry.name, key))
        created = {name: Record(self.root / name / shim.SPEC).real("created") or mtime for mtime, name, _ in keys}
        return [key for _, name, key in sorted(keys, key=lambda item: (created[item[1]], item[1]))]

    def remove(self, key: Key) -> None:
        """At once for all who look; the bytes go afterwards."""
        gone = self.root / f"{GONE}{os.getpid()}-{time.monotonic_ns()}-{next(self._asides)}"
        try:
            self.path(key).rename(gone)
        except FileNotFoundError:
            return
        _clear(gone)

    def _clear_abandoned(self, path: Path) -> None:
        """What a starter or remover left half done when it died. Only the starter's may still be needed."""
        if path.name.startswith(GONE):
            _clear(path)
            return
        try:
            age_s = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            return
        if age_s > ABANDONED_AFTER_S and not is_held(path):
            _clear(path)


def as_found(
    observed: Iterable[Observed], spooled: Callable[[Key], int] = lambda key: 0
) -> list[tuple[MemberId, Fence, brain.Record]]:
    """What is on the machine, as a starting brain takes it. ``spooled``: the last batch of metrics that one left."""
    return [
        (
            seen.member,
            seen.fence,
            brain.Record(
                seen.status,
                seen.exit.exit(spooled(Key(seen.member, seen.fence))) if seen.exit is not None else None,
            ),
        )
        for seen in observed
    ]


def is_held(path: Path) -> bool:
    """Whether a starter or shim holds this directory."""
    try:
        descriptor = os.open(path / shim.LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _spec_fields(spec: ContainerSpec, cgroups: tuple[str, ...], notices: tuple[str, ...]) -> shim.Fields:
    member, fence = spec.member, spec.fence
    fence_text = f"{fence.generation}.{fence.epoch}.{fence.incarnation}"
    words = [("task", member.task), ("role", member.role), ("rank", str(member.rank)), ("fence", fence_text)]
    words += [("boot", shim.boot_id()), ("created", repr(time.time()))]
    words += [("argv", word) for word in spec.argv]
    words += [("cgroup", path) for path in cgroups] + [("notice", text) for text in notices]
    return [(name, os.fsencode(text)) for name, text in words]


def _key_in(spec: Record) -> Key | None:
    fence = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", spec.text("fence"))
    if fence is None:
        return None
    member = MemberId(TaskId(spec.text("task")), spec.text("role"), spec.number("rank"))
    return Key(member, Fence(*map(int, fence.groups())))


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
