"""The keeper: one small process that looks after a container as a shim looks after a process.

It gets the image, makes and starts the container, moves its output into the spool, and writes the exit record when the
container is gone. It outlives the agent. Unlike a shim it may be killed itself: the container goes on, its output waits
in the engine's log, and the next keeper, started by whoever looks next, takes up both where this one left them.
``docs/architecture/containers.md`` shows the walk of one life.

Standard library only. The shim's module is passed in: records and spool are the same, so nobody who reads a member's
directory need know which of the two wrote it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from clutch.backends.containers import docker_groups
from clutch.backends.containers.docker_http import Engine, EngineGone, Refused, Stream
from clutch.backends.containers.docker_images import Progress, auth_header, pull_path
from clutch.backends.containers.docker_log import Break, Frames, LogPosition, stamp
from clutch.backends.containers.docker_pipes import Pipes
from clutch.backends.containers.docker_verdict import (
    ENDED,
    MACHINE,
    NEVER_STARTED,
    REFUSED,
    SIGKILL,
    Seen,
    Verdict,
    unpulled,
    verdict,
)

KEEPING, DOING = "keeping", "doing"
"""What the next keeper must know besides the spool; what it is doing, for people."""
CAP_LABEL = "clutch.output_cap_bytes"
NEVER = "0001-"
"""How an engine writes a time that has not come."""
TICK_MS = 1000
SAMPLE_EVERY_S, SAY_EVERY_S, KILL_AGAIN_S, READ_AGAIN_S = 0.05, 0.5, 2.0, 2.0
QUICK_S = 30.0
GONE_FOR_SURE_S = 30.0
"""How long an engine may be away after the container's process went, before its end is reported without the engine."""
ENGINE_BACK_MS = (50, 2000)
HEAD_BYTES = 4096
TOLD_TO_END = Verdict(-SIGKILL, ENDED, "it was told to end before it was started")
PR_SET_NAME = 15
SIG_IGN = 1


class Over(Exception):
    """There is nothing to look after, or not any more."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Keeper:
    """From the launch, or from what a killed keeper left, to the exit record."""

    def __init__(self, tools: ModuleType, fields: list[tuple[str, bytes]]) -> None:
        words = {name: os.fsdecode(value) for name, value in fields}
        self.tools = tools
        self.engine = Engine(words["socket"])
        self.name = words["name"]
        self.pull, self.auth = words.get("pull", ""), words.get("auth", "")
        self.body: dict[str, Any] | None = json.loads(words["body"]) if "body" in words else None
        self._open_spool(int(words.get("cap_bytes", tools.CAP_LEAST_BYTES)))
        self.poll = select.poll()
        self.poll.register(tools.ORDERS_FD, select.POLLIN)
        self.container = ""
        self.config: dict[str, Any] = {}  # as the engine has it
        self.pid = self.ticks = 0
        self.started_at = self.cpu_s = self.sampled_at = 0.0
        self.stream: Stream | None = None
        self.frames = Frames()
        self.stream_ended_at = 0.0
        self.position: LogPosition | None = None  # None while attached
        self.pipes = Pipes()
        self.waiter: Stream | None = None
        self.exited = False
        self.stderr_head = b""
        self.signals: list[int] = []  # asked for before it was started
        self.sent: list[int] = []  # by us through the engine
        self.killed_at = self.said_at = 0.0
        self.said = ""
        self.engine_lost = self.asked_to_start = False
        self.head_asked_at = 0.0
        self.notices: list[str] = []
        self.boot = tools.boot_id()
        self._remember_all()

    def _open_spool(self, cap_bytes: int) -> None:
        self.spool = self.tools.Spool(self.tools.OUTPUT, cap_bytes)
        self.last_at = self.spool.take_up()

    def _remember_all(self) -> None:
        """What earlier keepers of this directory left."""
        kept = self._record(KEEPING)
        self.head = dict(kept).get("head", "")
        self.breaks = [Break.parse(value) for name, value in kept if name == "break"]
        self.ordered, self.engine_lost = ("ordered", "1") in kept, ("lost", "1") in kept
        started = dict(self._record(self.tools.STARTED))
        self.ran = bool(started)
        boots = {started.get("boot", ""), dict(self._record(self.tools.SPEC)).get("boot", "")} - {""}
        self.rebooted = bool(boots) and self.boot not in boots
        self.notices = [value for name, value in self._record(self.tools.STARTED) if name == "notice"]

    def _record(self, name: str) -> list[tuple[str, str]]:
        path = Path(name)
        fields = self.tools.unpack(path.read_bytes()) if path.exists() else None
        return [(key, os.fsdecode(value)) for key, value in fields or []]

    def _remember(self) -> None:
        marks = {"ordered": self.ordered, "lost": self.engine_lost}
        fields = [("head", self.head), *((name, "1") for name, mark in marks.items() if mark)]
        fields += [("break", str(one)) for one in self.breaks]
        self.tools.write_record(".", KEEPING, [(name, value.encode()) for name, value in fields], durable=False)

    def run(self) -> None:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_NAME, b"clutch-keeper", 0, 0, 0)
        for number in (self.tools.SIGHUP, self.tools.SIGINT, self.tools.SIGTERM):
            libc.signal(number, ctypes.c_void_p(SIG_IGN))  # a stopped service or a closed terminal is not our end
        fd = os.open(self.tools.RESERVE, os.O_WRONLY | os.O_CREAT, 0o600)
        os.posix_fallocate(fd, 0, self.tools.RESERVE_BYTES)
        os.close(fd)
        try:
            how = self._live()
        except Over as over:
            how = over.verdict
        self._finish(how)

    def _live(self) -> Verdict:
        try:
            if self.body is None:
                self._take_up()
            else:
                self._bring_up(self.body)
        except (EngineGone, Refused) as failed:
            if not self.asked_to_start and self.body is not None:
                raise Over(Verdict(127, NEVER_STARTED, f"the engine does not answer: {failed}")) from failed
            self._lose_engine()
        while True:
            try:
                while not (self.exited and self.stream is None):
                    self._turn()
                self._take_what_is_left()
                return self._judge()
            except (EngineGone, Refused):
                self._lose_engine()

    # -- to a running container ----------------------------------------------------------------------------------

    def _bring_up(self, body: dict[str, Any]) -> None:
        self._get_image(body["Image"])
        self._say("making the container")
        try:
            self.container = self.engine.ask("POST", f"/containers/create?name={self.name}", body)["Id"]
        except Refused as refused:
            if refused.status == 409:
                return self._take_up()  # a container of this name was made for this directory's path: never another
            raise Over(Verdict(127, REFUSED, f"its container could not be made: {refused}")) from refused
        self._hear(0)
        if self.ordered:
            self._remove()
            raise Over(TOLD_TO_END)
        self._attach()
        self.tools.sync_folder("..")  # this start survives a power cut before the command can have any effect
        self.asked_to_start = True
        try:
            self.engine.ask("POST", f"/containers/{self.container}/start")
        except Refused as refused:
            return self._refused_start(body, refused)
        self._note_start(self._inspect())
        self._wait_for_exit()
        return None

    def _refused_start(self, body: dict[str, Any], refused: Refused) -> None:
        self._close_streams()
        self._remove()
        if body["HostConfig"]["Init"] and "docker-init" in refused.message:
            self.notices.append("this engine has no init: a command that handles no SIGTERM ignores it")
            return self._bring_up({**body, "HostConfig": {**body["HostConfig"], "Init": False}})
        why = refused.message
        if "could not select device driver" in why:
            why += " (the engine has no NVIDIA container toolkit)"
        raise Over(Verdict(127, REFUSED, f"it could not be started: {why}"))

    def _get_image(self, image: str) -> None:
        if self.pull != "always":
            try:
                self.engine.ask("GET", f"/images/{image}/json")
                return
            except Refused as refused:
                if refused.status != 404:
                    raise Over(Verdict(127, REFUSED, f"its image {image}: {refused}")) from refused
        if self.pull == "never":
            raise Over(Verdict(127, REFUSED, f"its image {image} is not on this node, and it may not be pulled"))
        progress = Progress(image)
        self._say(progress.text())
        try:
            headers = auth_header(image, self.auth)
            stream = self.engine.open("POST", pull_path(image), headers=headers, patience=self._until_readable)
        except Refused as refused:
            raise Over(unpulled(image, str(refused))) from refused
        try:
            while not stream.ended:
                self._hear(0 if stream.waiting else TICK_MS, stream)
                if self.ordered:
                    raise Over(TOLD_TO_END)
                progress.add(stream.read())
                self._say(progress.text(), SAY_EVERY_S)
            progress.end()
        finally:
            stream.close()
        if progress.error:
            raise Over(unpulled(image, progress.error))

    def _take_up(self) -> None:
        """Look after a container that an earlier keeper, or this one before a break, has started."""
        self._close_streams()
        seen = self._inspect_patiently()
        self.container = seen["Id"]
        if self.body is None and self.position is None:
            self._open_spool(int(seen["Config"]["Labels"][CAP_LABEL]))
        if seen["State"]["StartedAt"].startswith(NEVER):
            self._remove()
            if self.ordered:
                raise Over(TOLD_TO_END)
            raise Over(Verdict(127, NEVER_STARTED, "its keeper ended before the container was started"))
        self._note_start(seen)
        self.exited = False
        self._follow()
        self._wait_for_exit()
        if self.ordered:
            self._kill()

    def _inspect(self) -> dict[str, Any]:
        seen: dict[str, Any] = self.engine.ask("GET", f"/containers/{self.container or self.name}/json", None, QUICK_S)
        return seen

    def _inspect_patiently(self) -> dict[str, Any]:
        """As soon as the engine answers, however long that takes; orders are heard meanwhile."""
        patience_ms, process_gone_at = ENGINE_BACK_MS[0], 0.0
        while True:
            try:
                return self._inspect()
            except Refused as refused:
                if refused.status == 404:
                    raise Over(self._vanished()) from refused
                self._say(f"waiting for the engine: {refused}")
            except EngineGone as gone:
                self._say(f"waiting for the engine: {gone}")
                if self.ordered:
                    self._kill_ourselves()
                if not self.pid or self._groups():
                    process_gone_at = 0.0
                elif not process_gone_at:
                    process_gone_at = time.monotonic()
                elif time.monotonic() - process_gone_at > GONE_FOR_SURE_S:
                    cause = ENDED if self.ordered else MACHINE
                    raise Over(Verdict(-SIGKILL, cause, "it and the engine that ran it are gone")) from gone
            self._hear(patience_ms)
            patience_ms = min(patience_ms * 2, ENGINE_BACK_MS[1])

    def _vanished(self) -> Verdict:
        if self.ran or self.started_at:
            return Verdict(-SIGKILL, ENDED if self.ordered else MACHINE, "its container was removed from the engine")
        return TOLD_TO_END if self.ordered else Verdict(127, NEVER_STARTED, "its keeper ended before it was started")

    def _lose_engine(self) -> None:
        """It went away, or makes no sense: begin again with what it knows when it is back."""
        self.engine_lost = True
        while True:
            self.breaks.append(Break(stamp(time.time()), {}))
            self._remember()
            try:
                return self._take_up()
            except (EngineGone, Refused) as failed:
                self._say(f"waiting for the engine: {failed}")
                self._hear(TICK_MS)

    def _note_start(self, seen: dict[str, Any]) -> None:
        self.config = seen
        self.pid = seen["State"]["Pid"]
        here = bool(self._groups())
        self.ticks = self.tools.start_ticks(self.pid) if here else 0
        if here:
            self.pipes.hold(self.pid)
        self.started_at = _seconds(seen["State"]["StartedAt"])
        self.ran = True
        self._say("")
        notices = [("notice", os.fsencode(text)) for text in self.notices]
        self.tools.write_record(".", self.tools.STARTED, [*self._identity(), *notices], durable=False)
        self._wake(b"s")
        for number in self.signals:
            self._signal(number)
        self.signals.clear()

    def _identity(self) -> list[tuple[str, bytes]]:
        me = os.getpid()
        numbers = {"pid": self.pid, "ticks": self.ticks, "shim": me, "shim_ticks": self.tools.start_ticks(me)}
        words = {**numbers, "boot": self.boot, "started": repr(self.started_at), "container": self.container}
        return [(name, str(value).encode()) for name, value in words.items()]

    # -- a turn of the loop --------------------------------------------------------------------------------------

    def _turn(self) -> None:
        ready = bool((self.stream and self.stream.waiting) or (self.waiter and self.waiter.waiting))
        self._hear(0 if ready else TICK_MS, self.stream, self.waiter)
        self._sample()
        if self.stream is not None:
            self._move_output(self.stream)
        if self.waiter is not None and self.waiter.read():
            self.exited = True
            self.waiter.close()
            self.waiter = None
        if self.ordered and not self.exited and time.monotonic() - self.killed_at > KILL_AGAIN_S:
            self._kill()
        if self.position is not None and self.stream is None:
            if self.exited:
                self._read_to_the_end()
            elif time.monotonic() - self.stream_ended_at > READ_AGAIN_S:
                self._follow()
        elif not self.head and not ready and time.monotonic() - self.head_asked_at > READ_AGAIN_S:
            self._note_head()

    def _hear(self, patience_ms: int, *streams: Stream | None) -> None:
        """Wait for any of these streams or for an order, and obey orders."""
        self._poll(patience_ms, [stream.fileno() for stream in streams if stream is not None])

    def _poll(self, patience_ms: int, descriptors: list[int]) -> bool:
        for descriptor in descriptors:
            self.poll.register(descriptor, select.POLLIN)
        heard = [descriptor for descriptor, _ in self.poll.poll(patience_ms)]
        for descriptor in descriptors:
            self.poll.unregister(descriptor)
        if self.tools.ORDERS_FD in heard:
            self._obey(os.read(self.tools.ORDERS_FD, 65536))
        return any(descriptor in descriptors for descriptor in heard)

    def _until_readable(self, descriptor: int) -> None:
        while not self._poll(TICK_MS, [descriptor]):
            if self.ordered:
                raise Over(TOLD_TO_END)

    def _obey(self, orders: bytes) -> None:
        for order in orders.split(b"\n"):
            word, _, number = order.partition(b" ")
            if word == b"kill" and not self.exited and not self.ordered:
                self.ordered = True
                self._remember()  # before it has an effect: the next keeper must know whose doing it was
                if self.started_at:
                    self._kill()
            elif word == b"signal" and number.isdigit():
                if self.started_at:
                    self._signal(int(number))
                else:
                    self.signals.append(int(number))

    def _kill(self) -> None:
        self._sample(now=True)
        self.killed_at = time.monotonic()
        try:
            self.engine.ask("POST", f"/containers/{self.container}/kill?signal=KILL", None, QUICK_S)
        except Refused:
            pass  # it is dead already, or the engine cannot: then we try
        except EngineGone:
            self._kill_ourselves()

    def _kill_ourselves(self) -> None:
        """The first process of a container takes all others with it."""
        if self._groups():
            with suppress(OSError):
                os.kill(self.pid, SIGKILL)

    def _signal(self, number: int) -> None:
        """To the command's process group, which an engine cannot; through the engine where we may not."""
        try:
            children = self.tools.children(self.pid) if self._groups() else []
            init = self.config["HostConfig"].get("Init")
            targets = children if init else [self.pid] * bool(self._groups())
            for pid in targets:
                os.killpg(os.getpgid(pid), number)
            if targets:
                return
        except OSError:
            pass
        self.sent.append(number)
        with suppress(Refused):
            self.engine.ask("POST", f"/containers/{self.container}/kill?signal={number}", None, QUICK_S)

    def _groups(self) -> dict[str, Path]:
        return docker_groups.groups(self.pid, self.container)

    def _sample(self, now: bool = False) -> None:
        """CPU time, as long as it can be seen: with the container its count is gone."""
        if not now and time.monotonic() - self.sampled_at < SAMPLE_EVERY_S:
            return
        self.sampled_at = time.monotonic()
        self.cpu_s = max(self.cpu_s, docker_groups.cpu_s(self._groups()) or 0.0)

    # -- output --------------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        path = f"/containers/{self.container}/attach?stream=1&stdout=1&stderr=1"
        self.stream = self.engine.open("POST", path, headers=(("Connection", "Upgrade"), ("Upgrade", "tcp")))
        self.frames = Frames()

    def _follow(self, to_the_end: bool = False) -> None:
        """Read the engine's log from its beginning; what the spool has is skipped."""
        follow = "0" if to_the_end else "1"
        path = f"/containers/{self.container}/logs?stdout=1&stderr=1&timestamps=1&follow={follow}"
        self.stream = self.engine.open("GET", path)
        self.frames = Frames()
        self.position = LogPosition(self.spool.offsets, self.head, self.breaks)

    def _read_to_the_end(self) -> None:
        """What a follower may have missed at the very end."""
        self._follow(to_the_end=True)
        while self.stream is not None:
            self._hear(0 if self.stream.waiting else TICK_MS, self.stream)
            self._move_output(self.stream)

    def _take_what_is_left(self) -> None:
        """What an engine that went away did not read, though it is back."""
        left = self.pipes.left() if self.engine_lost else []
        self.pipes.close()
        for number, data in left:
            self._spool(number, data)

    def _note_head(self) -> None:
        """With which message the log began: if that changes, its beginning was cut off."""
        self.head_asked_at = time.monotonic()
        if not any(self.spool.offsets.values()):
            return
        path = f"/containers/{self.container}/logs?stdout=1&stderr=1&timestamps=1&follow=0"
        stream = self.engine.open("GET", path)
        try:
            frames = Frames()
            while not self.head and not stream.ended:
                stream.wait(QUICK_S)
                for _, payload in frames.add(stream.read())[:1]:
                    self.head = payload[:30].decode("latin-1")
        finally:
            stream.close()
        if self.head:
            self._remember()

    def _wait_for_exit(self) -> None:
        self.waiter = self.engine.open("POST", f"/containers/{self.container}/wait?condition=not-running")

    def _move_output(self, stream: Stream) -> None:
        batch: list[tuple[int, list[bytes]]] = []
        for number, payload in self.frames.add(stream.read()):
            data = payload
            if self.position is not None:
                data = self.position.new(number, payload, self.last_at)
            if number == self.tools.STDERR and self.spool.offsets[number] < HEAD_BYTES:
                self.stderr_head += data[:HEAD_BYTES]
            if not batch or batch[-1][0] != number:
                batch.append((number, []))
            batch[-1][1].append(data)
        for number, pieces in batch:
            self._spool(number, b"".join(pieces))
        if self.position is not None and self.position.changed:
            self.head, self.position.changed = self.position.head, False
            self._remember()
        if stream.ended:
            stream.close()
            self.stream, self.stream_ended_at = None, time.monotonic()

    def _spool(self, number: int, data: bytes) -> None:
        for start in range(0, len(data), self.spool.read_bytes):
            self.spool.add(number, data[start : start + self.spool.read_bytes])
        if data:
            self.last_at = time.time()
            self._wake(b"o")

    def _close_streams(self) -> None:
        for stream in filter(None, (self.stream, self.waiter)):
            stream.close()
        self.stream = self.waiter = None

    # -- the end -------------------------------------------------------------------------------------------------

    def _judge(self) -> Verdict:
        seen = self._inspect()
        state = seen["State"]
        killed_by, out_of_memory = self._events(state)
        return verdict(
            Seen(
                code=state["ExitCode"],
                error=state.get("Error", ""),
                out_of_memory=state.get("OOMKilled", False) or out_of_memory,
                limited=bool(seen["HostConfig"].get("Memory")),
                ordered=self.ordered,
                stdout_bytes=self.spool.offsets[self.tools.STDOUT],
                stderr_head=self.stderr_head,
                init=bool(seen["HostConfig"].get("Init")),
                rebooted=self.rebooted,
                engine_lost=self.engine_lost,
                killed_by=tuple(number for number in killed_by if number not in self.sent),
            )
        )

    def _events(self, state: dict[str, Any]) -> tuple[list[int], bool]:
        """Signals sent through the engine, and whether it ran out of memory: the engine remembers a few hundred."""
        filters = json.dumps({"container": {self.container: True}}, separators=(",", ":"))
        span = f"since={_seconds(state['StartedAt']) - 1:.9f}&until={time.time():.9f}"
        try:
            events = self.engine.ask_lines(f"/events?{span}&filters={_quoted(filters)}", QUICK_S)
        except Refused:
            return [], False
        kills = [event["Actor"]["Attributes"].get("signal", "") for event in events if event.get("Action") == "kill"]
        return [int(word) for word in kills if word.isdigit()], any(e.get("Action") == "oom" for e in events)

    def _finish(self, how: Verdict) -> None:
        self._close_streams()
        self._say("")
        if how.cause in (NEVER_STARTED, REFUSED):
            self.started_at = 0.0
        words = {"code": str(how.code), "cause": how.cause}
        numbers = {"stdout": self.spool.offsets[self.tools.STDOUT], "stderr": self.spool.offsets[self.tools.STDERR]}
        fields = [(name, value.encode()) for name, value in words.items()]
        fields += [("reason", os.fsencode(how.reason.replace("\0", " "))), *self._identity()]
        fields += [("ended", repr(time.time()).encode()), ("cpu", repr(self.cpu_s).encode())]
        fields += [(name, str(value).encode()) for name, value in numbers.items()]
        self.tools.write_exit(self.spool, fields)
        self._wake(b"s")
        Path(self.tools.RESERVE).unlink(missing_ok=True)
        self.tools.sync_folder(".")
        self._remove()  # only now: until the record is safe, the engine is the only one who knows

    def _remove(self) -> None:
        if not self.container:
            return
        with suppress(Refused, EngineGone):  # whoever forgets this member, or looks for orphans, tries again
            self.engine.ask("DELETE", f"/containers/{self.container}?force=1&v=1", None, QUICK_S)

    # -- telling -------------------------------------------------------------------------------------------------

    def _wake(self, what: bytes) -> None:
        with suppress(BlockingIOError):  # nobody listens, or they have enough to read already
            os.write(self.tools.WAKE_FD, what)

    def _say(self, text: str, every_s: float = 0.0) -> None:
        if text == self.said or time.monotonic() - self.said_at < every_s:
            return
        self.said, self.said_at = text, time.monotonic()
        aside = Path(f".{DOING}")
        aside.write_text(text)
        aside.replace(DOING)
        self._wake(b"s")


def _seconds(moment: str) -> float:
    """An engine's time as seconds since 1970."""
    from datetime import datetime

    return datetime.fromisoformat(moment).timestamp() if not moment.startswith(NEVER) else 0.0


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def main(shim: ModuleType) -> None:
    """With the member's directory as the only argument and the launch on standard input, as for a shim."""
    os.chdir(sys.argv[1])
    for fd in (shim.LOCK_FD, shim.WAKE_FD, shim.ORDERS_FD):
        os.set_inheritable(fd, False)
    os.closerange(shim.ORDERS_FD + 1, os.sysconf("SC_OPEN_MAX"))
    fields = shim.unpack(sys.stdin.buffer.read())
    assert fields is not None, "the launch is torn"
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    Keeper(shim, fields).run()
