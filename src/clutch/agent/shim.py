"""The shim: one small process that owns a member's process tree, its output and its exit record.

It outlives the agent and knows nothing of it: whoever comes later reads the member's directory. Standard library only,
and few modules of that, because every start of a member pays for its imports (``signal``, ``json`` and ``socket`` would
cost more than all the rest). ``docs/architecture/shim.md`` shows the directory and the walk of one life.

What it promises: the user's command is executed at most once; while the shim lives no descendant of the command can
escape it (it is their subreaper), and the exit record is written only when none is left; when the shim itself is
killed the command dies with it; every byte written to stdout and stderr is in the spool in order, or in a gap.
"""

# pathlib and contextlib would cost milliseconds of every start:
# ruff: noqa: PTH103, PTH104, PTH105, PTH108, PTH110, PTH116, PTH118, PTH123, PTH208, SIM105

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import time

LOCK, WAKE, ORDERS, SPEC, STARTED, EXIT, OUTPUT = "lock", "wake", "orders", "spec", "started", "exit", "output"
RESERVE = ".reserve"
LOCK_FD, WAKE_FD, ORDERS_FD = 3, 4, 5
"""Where the starter hands over the open lock and both FIFOs; the launch is on standard input."""

STDOUT, STDERR = 1, 2
MAGIC = b"clutchO1"
SEGMENT_HEADER = len(MAGIC) + 16
FRAME_HEADER = 1 + 4 + 8 + 8
READ_BYTES, PIECE_BYTES = 256 * 1024, 64 * 1024
SEGMENT_BYTES = 64 * 1024 * 1024
SEGMENTS_PER_CAP = 16
CAP_LEAST_BYTES = 64 * 1024
PIPE_BYTES = 512 * 1024
LINGER_S = 0.2
"""How long processes that outlive the command may still write (``> >(tee log)``) before they are ended."""
REAP_EVERY_MS, SWEEP_EVERY_MS = 1000, 5
RESERVE_BYTES = 16 * 1024
"""Disk kept for the exit record from the start."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_DISK_PATIENCE_S = 60.0
"""How long the exit record waits for room on a full disk before the shim gives up."""

SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGTERM, SIGCHLD, SIGXFSZ = 1, 2, 9, 13, 15, 17, 25
CLONE3, CLONE_INTO_CGROUP = 435, 0x2_0000_0000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NAME = 1, 36, 15

NAME = b"clutch-shim"
Fields = list[tuple[str, bytes]]


# -- records ------------------------------------------------------------------------------------------------------


def pack(fields: Fields) -> bytes:
    """``name=value``, each ended by a zero byte, and ``end=`` as the last: a torn record is recognised."""
    return b"".join(os.fsencode(name) + b"=" + value + b"\0" for name, value in [*fields, ("end", b"")])


def unpack(data: bytes) -> Fields | None:
    """The fields of a whole record; None for anything else."""
    if not data.endswith(b"\0end=\0") and data != b"end=\0":
        return None
    items = (item.partition(b"=") for item in data.split(b"\0")[:-2])
    return [(os.fsdecode(name), value) for name, _, value in items]


def write_record(folder: str, name: str, fields: Fields, durable: bool) -> None:
    """Write aside, sync if it must survive a power cut, rename: a reader sees nothing or all of it."""
    aside = os.path.join(folder, f".{name}-{os.getpid()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        data = pack(fields)
        while data:
            data = data[os.write(fd, data) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(aside, os.path.join(folder, name))


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- the kernel's view --------------------------------------------------------------------------------------------


def boot_id() -> str:
    return read_file("/proc/sys/kernel/random/boot_id").decode().strip()


def stat_fields(pid: int) -> list[bytes]:
    """``/proc/PID/stat`` behind the command's name, which may itself contain blanks and brackets; empty if gone."""
    return read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def start_ticks(pid: int) -> int:
    """When a process began, in clock ticks since boot: with the boot id it names a process for ever. 0 if gone."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{task}/stat"):
                return _children_by_scan(pid)
        except ProcessLookupError:
            pass
    return found


def _children_by_scan(pid: int) -> list[int]:
    """For kernels that do not list children."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [other for other in pids if stat_fields(other)[1:2] == [str(pid).encode()]]


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    row = children(pid)
    while row:
        found += row
        row = [child for parent in row for child in children(parent) if child not in found]
    return found


def oom_kills(path: str) -> int:
    """``memory.events``, ``memory.oom_control`` and ``/proc/vmstat`` all say ``oom_kill N``."""
    for line in read_file(path).splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0


def read_file(path: str) -> bytes:
    """All of a file; empty if it cannot be read. ``open`` would ask the kernel twice as often, of each record."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return _read_all(fd)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


# -- output -------------------------------------------------------------------------------------------------------


class Spool:
    """Both streams as frames in numbered segments: stream, length, byte offset in that stream, time, bytes.

    A segment begins with the offset at which it takes up each stream. So when the oldest segment is dropped at the
    cap, the head of the next one is the gap record: it says exactly which bytes are missing.
    """

    def __init__(self, folder: str, cap_bytes: int) -> None:
        self.folder = folder
        self.cap_bytes = cap_bytes
        self.segment_bytes = min(SEGMENT_BYTES, max(cap_bytes // SEGMENTS_PER_CAP, 4096))
        self.read_bytes = min(READ_BYTES, self.segment_bytes)
        self.offsets = {STDOUT: 0, STDERR: 0}
        self._number = 0
        self._position = 0
        self._fd = -1
        os.makedirs(folder, exist_ok=True)

    def take_up(self) -> float:
        """Go on where another writer of this folder was killed; says when its last whole frame was written.

        What it was writing when it died is torn and never read: a new segment follows, with the right offsets.
        """
        last = 0.0
        segments = self._segments()
        self._number = int(segments[-1].rpartition("/")[2]) if segments else 0
        while segments:
            data = read_file(segments.pop())
            if data[: len(MAGIC)] != MAGIC or len(data) < SEGMENT_HEADER:
                continue
            heads = data[len(MAGIC) : SEGMENT_HEADER]
            self.offsets = {STDOUT: int.from_bytes(heads[:8], "big"), STDERR: int.from_bytes(heads[8:], "big")}
            position = SEGMENT_HEADER
            while position + FRAME_HEADER <= len(data):
                head = data[position : position + FRAME_HEADER]
                length, offset, at = (int.from_bytes(head[a:b], "big") for a, b in ((1, 5), (5, 13), (13, 21)))
                position += FRAME_HEADER + length
                if head[0] not in self.offsets or position > len(data):
                    break
                self.offsets[head[0]], last = offset + length, at / 1e6
            break
        return last

    def add(self, stream: int, data: bytes) -> None:
        """Append. With a full disk, older output makes room; with none left to drop, these bytes become the gap."""
        while not self._append(stream, data) and self.drop_oldest():
            pass
        self.offsets[stream] += len(data)

    def _append(self, stream: int, data: bytes) -> bool:
        try:
            if self._fd < 0 or self._position >= self.segment_bytes:
                self._roll()
            at = time.time_ns() // 1000
            head = bytes((stream,)) + len(data).to_bytes(4, "big") + self.offsets[stream].to_bytes(8, "big")
            self._write(head + at.to_bytes(8, "big"), data)
        except OSError as full:
            if full.errno not in FULL:
                raise
            if self._fd >= 0:
                os.ftruncate(self._fd, self._position)
                os.lseek(self._fd, self._position, os.SEEK_SET)
            return False
        return True

    def _write(self, head: bytes, data: bytes) -> None:
        size = len(head) + len(data)
        written = os.writev(self._fd, (head, data))
        while written < size:
            rest = (head + data)[written:]
            written += os.write(self._fd, rest)
        self._position += size

    def _roll(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        while self._held() + self.segment_bytes + 2 * self.read_bytes > self.cap_bytes:
            if not self.drop_oldest():
                break
        path = os.path.join(self.folder, f"{self._number + 1:08d}")
        aside = os.path.join(self.folder, ".next")
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            head = MAGIC + self.offsets[STDOUT].to_bytes(8, "big") + self.offsets[STDERR].to_bytes(8, "big")
            os.write(fd, head)
            os.rename(aside, path)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._position = fd, SEGMENT_HEADER
        self._number += 1

    def _segments(self) -> list[str]:
        return sorted(os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.isdigit())

    def _held(self) -> int:
        """Bytes on disk now; the agent removes segments that it has shipped."""
        total = 0
        for path in self._segments():
            try:
                total += os.stat(path).st_size
            except FileNotFoundError:
                pass
        return total

    def drop_oldest(self) -> bool:
        """Make room. The segment that is being written goes last, and smaller ones follow it. False if none is left."""
        segments = self._segments()
        if self._fd >= 0 and len(segments) <= 1:
            os.close(self._fd)
            self._fd = -1
            self.segment_bytes = max(min(self.segment_bytes, self._position // 4), 4096)
        if not segments:
            return False
        try:
            os.unlink(segments[0])
        except FileNotFoundError:
            pass
        return True


def write_exit(spool: Spool, fields: Fields) -> None:
    """The record that must be: on a full disk the reserve makes room, or old output if somebody took that at once."""
    deadline = time.monotonic() + FULL_DISK_PATIENCE_S
    while True:
        try:
            write_record(".", EXIT, fields, durable=True)
            return
        except OSError as full:
            if full.errno not in FULL or time.monotonic() > deadline:
                raise
        if os.path.exists(RESERVE):
            os.unlink(RESERVE)
        elif not spool.drop_oldest():
            time.sleep(0.2)


# -- the launch ---------------------------------------------------------------------------------------------------


class Launch:
    """What to start and how, as the starter packed it. It is never on disk: the environment may hold secrets."""

    def __init__(self, fields: Fields) -> None:
        def many(name: str) -> list[bytes]:
            return [value for key, value in fields if key == name]

        def one(name: str) -> str:
            return os.fsdecode((many(name) or [b""])[0])

        self.argv = many("argv")
        self.env = dict(item.split(b"=", 1) for item in many("env"))
        self.cwd = one("cwd")
        self.uid, self.gid = int(one("uid") or -1), int(one("gid") or -1)
        self.groups = [int(value) for value in many("group")]
        self.rlimits = [tuple(map(int, value.split(b":"))) for value in many("rlimit")]
        self.joins = [os.fsdecode(value) for value in many("join")]
        self.into = one("into")
        self.kill_file = one("kill_file")
        self.oom_file = one("oom_file")
        self.cap_bytes = int(one("cap_bytes"))


def _candidates(launch: Launch) -> list[bytes]:
    program = launch.argv[0]
    if b"/" in program:
        return [program]
    return [os.path.join(folder or b".", program) for folder in launch.env.get(b"PATH", b"/bin:/usr/bin").split(b":")]


COMMAND = "the command "
"""How a failure begins that is the user's: there is no such command, or it cannot be executed."""


def _become(launch: Launch, libc: ctypes.CDLL, outputs: tuple[int, int], go: int, parent: int) -> str:
    """In the child: turn into the user's command. Returns only to say what failed."""
    stage = "its session"
    try:
        os.setsid()
        stage = "its cgroup"
        for path in launch.joins:  # may take the kernel milliseconds; our parent syncs the disk meanwhile
            with open(path, "wb", buffering=0) as file:
                file.write(b"0")
        if os.read(go, 1) != b"g":
            os._exit(127)
        stage = "its limits"
        if launch.rlimits:
            import resource

            for which, soft, hard in launch.rlimits:
                resource.setrlimit(which, (soft, hard))
        stage = f"user {launch.uid}, group {launch.gid}"
        if launch.gid >= 0:
            os.setgroups(launch.groups)
            os.setresgid(launch.gid, launch.gid, launch.gid)
        if launch.uid >= 0:
            os.setresuid(launch.uid, launch.uid, launch.uid)
        stage = f"its working directory {launch.cwd}"
        os.chdir(launch.cwd)
        stage = "its parent"
        libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)  # after the user id: a change of user clears it
        if os.getppid() != parent:
            os._exit(127)
        for number in (SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGXFSZ):  # those that Python or we ignore
            libc.signal(number, None)
        os.dup2(outputs[0], STDOUT)
        os.dup2(outputs[1], STDERR)
        return _execute(launch)
    except BaseException as failed:  # whatever it is, this copy of the shim must not live on
        return f"{stage}: {failed.strerror if isinstance(failed, OSError) else failed}"


def _execute(launch: Launch) -> str:
    seen = errno.ENOENT
    for path in _candidates(launch):
        try:
            os.execve(path, launch.argv, launch.env)
        except OSError as failed:
            if failed.errno not in (errno.ENOENT, errno.ENOTDIR):
                seen = failed.errno or seen
    return f"{COMMAND}{os.fsdecode(launch.argv[0])}: {os.strerror(seen)}"


# -- one life -----------------------------------------------------------------------------------------------------


class Shim:
    """From the launch to the exit record."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.spool = Spool(OUTPUT, launch.cap_bytes)
        self.poll = select.poll()
        self.oom_file = launch.oom_file or "/proc/vmstat"
        self.oom_before = oom_kills(self.oom_file)
        self.main = 0
        self.main_ticks = 0
        self.status: int | None = None  # of the command, once it has exited
        self.alone = False  # nothing of it is left
        self.executed = False  # the child has become the command
        self.signals: list[int] = []  # asked for and not yet delivered
        self.ordered = False  # told to end it while it ran
        self.linger_until = 0.0
        self.failure = ""
        self.pipes: dict[int, int] = {}
        self.failure_fd = self.pidfd = -1
        self.started_at = 0.0
        self.boot = boot_id()

    def run(self) -> None:
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.libc.prctl(PR_SET_NAME, NAME, 0, 0, 0)
        for number in (SIGHUP, SIGINT, SIGTERM):
            self.libc.signal(number, ctypes.c_void_p(1))  # a stopped service or a closed terminal is not our end
        fd = os.open(RESERVE, os.O_WRONLY | os.O_CREAT, 0o600)
        os.posix_fallocate(fd, 0, RESERVE_BYTES)
        os.close(fd)
        self._begin()
        while not (self.status is not None and self.alone):
            self._turn()
        self._drain()
        self._finish()

    def _begin(self) -> None:
        out, err, go, failure = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        for reader, stream in ((out[0], STDOUT), (err[0], STDERR)):
            os.set_blocking(reader, False)
            try:
                fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            except OSError:
                pass  # beyond the user's share of pipe memory: smaller pipes do
            self.pipes[reader] = stream
        parent = os.getpid()
        self.main = self._fork()
        if self.main == 0:
            reason = _become(self.launch, self.libc, (out[1], err[1]), go[0], parent)
            os.write(failure[1], os.fsencode(reason))
            os._exit(127)
        for fd in (out[1], err[1], go[0], failure[1]):
            os.close(fd)
        self.failure_fd = failure[0]
        self.pidfd = os.pidfd_open(self.main)
        self.main_ticks = start_ticks(self.main)
        self.started_at = time.time()
        sync_folder("..")  # this start survives a power cut before the command can have any effect
        write_record(".", STARTED, self._identity(), durable=False)
        try:
            os.write(go[1], b"g")  # only now: without a started record nothing was executed
        except BrokenPipeError:
            pass  # it has failed already and says why
        os.close(go[1])
        self._wake(b"s")
        for fd in (*self.pipes, self.failure_fd, self.pidfd, ORDERS_FD):
            self.poll.register(fd, select.POLLIN)

    def _fork(self) -> int:
        """A copy of this process, born in its control group of version 2 if the kernel can: moving takes it 10 ms.

        The copy only makes system calls until it executes, so it does not miss what ``os.fork`` does besides.
        """
        if not self.launch.into:
            return os.fork()
        try:
            group = os.open(self.launch.into, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            group = -1
        arguments = (ctypes.c_uint64 * 11)(CLONE_INTO_CGROUP, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, max(group, 0))
        pid = int(self.libc.syscall(CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))) if group >= 0 else -1
        if group >= 0:
            os.close(group)
        if pid >= 0:
            return pid
        self.launch.joins.append(os.path.join(self.launch.into, "cgroup.procs"))
        return os.fork()

    def _identity(self) -> Fields:
        me = os.getpid()
        numbers = {"pid": self.main, "ticks": self.main_ticks, "shim": me, "shim_ticks": start_ticks(me)}
        fields = [(name, str(value).encode()) for name, value in numbers.items()]
        return [*fields, ("boot", self.boot.encode()), ("started", repr(self.started_at).encode())]

    # -- a turn of the loop --

    def _turn(self) -> None:
        self._reap()
        if self.status is not None and self.alone:
            return
        ending = self.ordered or (self.status is not None and time.monotonic() >= self.linger_until)
        if ending:
            self._sweep()
        patience_ms = SWEEP_EVERY_MS if ending or self.status is not None else REAP_EVERY_MS
        for fd, _ in self.poll.poll(patience_ms):
            if fd in self.pipes:
                self._pump(fd)
            elif fd == ORDERS_FD:
                self._obey(os.read(ORDERS_FD, 65536))  # all a FIFO holds: no order is cut
            elif fd == self.failure_fd:
                self._hear_failure()
            else:
                self.poll.unregister(self.pidfd)  # reaped on the next turn

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.alone = True
                return
            if pid == 0:
                return
            if pid == self.main:
                self.status = status
                self.linger_until = time.monotonic() + LINGER_S

    def _sweep(self) -> None:
        """SIGKILL to all that is left. Orphans become our children, so ``alone`` is certain when it comes."""
        if self.launch.kill_file:
            try:
                with open(self.launch.kill_file, "wb", buffering=0) as file:
                    file.write(b"1")
            except OSError:
                pass  # an older kernel has no cgroup.kill; the walk below does it
        if self.status is None:
            try:
                os.killpg(self.main, SIGKILL)
            except (ProcessLookupError, PermissionError):
                _kill(self.main, SIGKILL)  # it has no session of its own yet
        for pid in descendants(os.getpid()):
            _kill(pid, SIGKILL)

    def _obey(self, orders: bytes) -> None:
        for order in orders.split(b"\n"):
            word, _, number = order.partition(b" ")
            if word == b"kill" and self.status is None:
                self.ordered = True
            elif word == b"signal" and number.isdigit():
                self.signals.append(int(number))
        self._deliver()

    def _deliver(self) -> None:
        """Signals that came before the command was executed wait for it: until then ours are the ones that ignore."""
        while self.executed and self.signals and self.status is None:
            number = self.signals.pop(0)
            try:
                os.killpg(self.main, number)
            except (ProcessLookupError, PermissionError):
                _kill(self.main, number)
            except OSError:
                pass  # no such signal

    def _hear_failure(self) -> None:
        heard = os.read(self.failure_fd, 4096)
        self.failure += os.fsdecode(heard)
        if not heard:
            self.poll.unregister(self.failure_fd)
            self.executed = not self.failure
            self._deliver()

    def _pump(self, fd: int) -> bool:
        """Move what is in a pipe to the spool; False when there is no more for now or for ever."""
        try:
            data = os.read(fd, self.spool.read_bytes)
        except BlockingIOError:
            return False
        if not data:
            self.poll.unregister(fd)
            del self.pipes[fd]
            return False
        self.spool.add(self.pipes[fd], data)
        self._wake(b"o")
        return True

    def _drain(self) -> None:
        for fd in list(self.pipes):
            while self._pump(fd):
                pass
        self.failure += os.fsdecode(_read_all(self.failure_fd))

    def _wake(self, what: bytes) -> None:
        """``o`` for output, ``s`` for a new state."""
        try:
            os.write(WAKE_FD, what)
        except BlockingIOError:
            pass  # nobody listens, or they have enough to read already

    # -- the end --

    def _finish(self) -> None:
        assert self.status is not None
        code = os.waitstatus_to_exitcode(self.status)
        cause, reason = self._cause(code)
        if self.failure:
            self.started_at = 0.0
        usage = os.times()
        fields = [
            ("code", str(code).encode()),
            ("cause", cause.encode()),
            ("reason", os.fsencode(reason)),
            *self._identity(),
            ("ended", repr(time.time()).encode()),
            ("stdout", str(self.spool.offsets[STDOUT]).encode()),
            ("stderr", str(self.spool.offsets[STDERR]).encode()),
            ("cpu", repr(usage.children_user + usage.children_system).encode()),
        ]
        write_exit(self.spool, fields)
        self._wake(b"s")
        if os.path.exists(RESERVE):
            os.unlink(RESERVE)
        sync_folder(".")

    def _cause(self, code: int) -> tuple[str, str]:
        if self.failure:
            cause = "refused" if self.failure.startswith(COMMAND) else "never_started"
            return cause, f"it could not be started: {self.failure}"
        kills = oom_kills(self.oom_file) - self.oom_before
        if self.launch.oom_file and kills > 0 and code != 0:
            return "out_of_memory", "it reached its memory limit"
        if self.ordered:
            return "ended", "it was told to end"
        if kills > 0 and code == -SIGKILL:
            return "out_of_memory", "the machine ran out of memory"
        return "own", ""


def _read_all(fd: int) -> bytes:
    pieces = []
    while piece := os.read(fd, PIECE_BYTES):
        pieces.append(piece)
    return b"".join(pieces)


def main(directory: str) -> None:
    """One life in the member's directory, with the launch on standard input. Does not return: the process ends.

    It ends at once: an interpreter that is taken down in order takes milliseconds, and nothing here waits for it.
    """
    os.chdir(directory)
    for fd in (LOCK_FD, WAKE_FD, ORDERS_FD):
        os.set_inheritable(fd, False)
    os.closerange(ORDERS_FD + 1, os.sysconf("SC_OPEN_MAX"))  # what the agent itself inherited is not for users
    fields = unpack(_read_all(0))
    assert fields is not None, "the launch is torn"
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    Shim(Launch(fields)).run()
    os._exit(0)
