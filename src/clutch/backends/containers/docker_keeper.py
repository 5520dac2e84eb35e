"""The keeper: one small process that looks after a container as a shim looks after a process.

It gets the image, makes and starts the container, obeys orders, and writes the exit record when the container is gone
and its ``Output`` is in the spool. It outlives the agent. Unlike a shim it may be killed itself: the container goes on,
its output waits in the engine's log, and the next keeper, started by whoever looks next, takes up both where this one
left them. ``docs/architecture/containers.md`` shows the walk of one life.

It knows one container and its engine. It never looks at what the container writes (``docker_output``), nor judges how
it ended (``docker_verdict``). Standard library only. The shim's module is passed in: records and spool are the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from contextlib import suppress
from types import ModuleType
from typing import Any

from clutch.backends.containers.docker_http import Engine, EngineGone, Refused, Stream
from clutch.backends.containers.docker_output import Output
from clutch.backends.containers.docker_processes import Processes
from clutch.backends.containers.docker_pull import Image, get_image
from clutch.backends.containers.docker_records import KEEPING, Fields, Records
from clutch.backends.containers.docker_verdict import (
    ENDED,
    MACHINE,
    NEVER_STARTED,
    REFUSED,
    SIGKILL,
    Seen,
    Verdict,
    events_path,
    happened,
    verdict,
)

CAP_LABEL = "clutch.output_cap_bytes"
NEVER = "0001-"
"""How an engine writes a time that has not come."""
TICK_MS = 1000
KILL_AGAIN_S, QUICK_S = 2.0, 30.0
GONE_FOR_SURE_S = 30.0
"""How long an engine may be away after the container's process went, before its end is reported without the engine."""
ENGINE_BACK_MS = (50, 2000)
TOLD_TO_END = Verdict(-SIGKILL, ENDED, "it was told to end before it was started")
PR_SET_NAME, SIG_IGN = 15, 1


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
        cap_bytes = int(words.get("cap_bytes", tools.CAP_LEAST_BYTES))
        self.records = Records(tools)
        self.output = Output(tools, self.engine, cap_bytes, lambda: self.records.wake(b"o"))
        self.processes = Processes(tools)
        self.poll = select.poll()
        self.poll.register(tools.ORDERS_FD, select.POLLIN)
        self.container = ""
        self.config: dict[str, Any] = {}  # as the engine has it
        self.started_at = 0.0
        self.waiter: Stream | None = None
        self.exited = False
        self.signals: list[int] = []  # asked for before it was started
        self.sent: list[int] = []  # by us through the engine
        self.killed_at = 0.0
        self.asked_to_start = False
        kept, started = self.records.read(KEEPING), self.records.started_before()  # by earlier keepers
        self.output.remember(kept)
        self.ordered, self.engine_lost = ("ordered", "1") in kept, ("lost", "1") in kept
        self.ran = bool(started)
        self.rebooted = self.records.rebooted()
        self.notices = [value for name, value in started if name == "notice"]

    def _remember(self) -> None:
        marks = {"ordered": self.ordered, "lost": self.engine_lost}
        self.records.keep([*self.output.kept(), *((name, "1") for name, mark in marks.items() if mark)])

    def run(self) -> None:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_NAME, b"clutch-keeper", 0, 0, 0)
        for number in (self.tools.SIGHUP, self.tools.SIGINT, self.tools.SIGTERM):
            libc.signal(number, ctypes.c_void_p(SIG_IGN))  # a stopped service or a closed terminal is not our end
        self.records.reserve()
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
                gone = Verdict(127, NEVER_STARTED, f"the engine does not answer: {failed}. See that it runs.")
                raise Over(gone) from failed
            self._lose_engine()
        while True:
            try:
                while not (self.exited and self.output.over):
                    self._turn()
                self.output.take_what_is_left(self.engine_lost)
                return self._judge()
            except (EngineGone, Refused):
                self._lose_engine()

    # -- to a running container ----------------------------------------------------------------------------------

    def _bring_up(self, body: dict[str, Any]) -> None:
        image = Image(body["Image"], self.pull, self.auth)
        if lacking := get_image(self.engine, image, self._until_readable, self.records.say):
            raise Over(lacking)
        self.records.say("making the container")
        try:
            self.container = self.engine.ask("POST", f"/containers/create?name={self.name}", body)["Id"]
        except Refused as refused:
            if refused.status == 409:
                return self._take_up()  # a container of this name was made for this directory's path: never another
            said = f"its container of image {body['Image']} could not be made: {refused}"
            raise Over(Verdict(127, REFUSED, said)) from refused
        self._hear(0)
        if self.ordered:
            self._remove()
            raise Over(TOLD_TO_END)
        self.output.attach(self.container)
        self.tools.sync_folder("..")  # this start survives a power cut before the command can have any effect
        self.asked_to_start = True
        try:
            self.engine.ask("POST", f"/containers/{self.container}/start")
        except Refused as refused:
            return self._refused_start(body, refused)
        self._note_start(self._inspect())
        self._wait_for_exit()
        return None

    def _wait_for_exit(self) -> None:
        self.waiter = self.engine.open("POST", f"/containers/{self.container}/wait?condition=not-running")

    def _refused_start(self, body: dict[str, Any], refused: Refused) -> None:
        self._close_streams()
        self._remove()
        if body["HostConfig"]["Init"] and "docker-init" in refused.message:
            self.notices.append("this engine has no init: a command that handles no SIGTERM ignores it")
            return self._bring_up({**body, "HostConfig": {**body["HostConfig"], "Init": False}})
        why = refused.message
        if "could not select device driver" in why:
            why += " (the engine has no NVIDIA container toolkit)"
        raise Over(Verdict(127, REFUSED, f"its container of image {body['Image']} could not be started: {why}"))

    def _take_up(self) -> None:
        """Look after a container that an earlier keeper, or this one before a break, has started."""
        self._close_streams()
        seen = self._inspect_patiently()
        self.container = seen["Id"]
        if self.body is None and not self.output.follows:
            self.output.open_spool(int(seen["Config"]["Labels"][CAP_LABEL]))
        if seen["State"]["StartedAt"].startswith(NEVER):
            self._remove()
            if self.ordered:
                raise Over(TOLD_TO_END)
            raise Over(Verdict(127, NEVER_STARTED, "its keeper ended before the container was started"))
        self._note_start(seen)
        self.exited = False
        self.output.follow(self.container)
        self._wait_for_exit()
        if self.ordered:
            self._kill()

    def _inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = self.engine.ask("GET", f"/containers/{self.container or self.name}/json", None, QUICK_S)
        return found

    def _inspect_patiently(self) -> dict[str, Any]:
        """As soon as the engine answers, however long that takes; orders are heard meanwhile."""
        patience_ms, process_gone_at = ENGINE_BACK_MS[0], 0.0
        while True:
            try:
                return self._inspect()
            except Refused as refused:
                if refused.status == 404:
                    raise Over(self._vanished()) from refused
                self.records.say(f"waiting for the engine: {refused}")
            except EngineGone as gone:
                self.records.say(f"waiting for the engine: {gone}")
                if self.ordered:
                    self.processes.kill()
                if not self.processes.gone:
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
            self.output.broken()
            self._remember()
            try:
                return self._take_up()
            except (EngineGone, Refused) as failed:
                self.records.say(f"waiting for the engine: {failed}")
                self._hear(TICK_MS)

    def _note_start(self, seen: dict[str, Any]) -> None:
        self.config = seen
        self.processes.note(seen["State"]["Pid"], self.container)
        if self.processes.here:
            self.output.hold(self.processes.pid)
        self.started_at = _seconds(seen["State"]["StartedAt"])
        self.ran = True
        self.records.say("")
        self.records.started([*self._identity(), *(("notice", text) for text in self.notices)])
        for number in self.signals:
            self._signal(number)
        self.signals.clear()

    def _identity(self) -> Fields:
        me = os.getpid()
        running = {"pid": self.processes.pid, "ticks": self.processes.ticks}
        keeping = {"shim": me, "shim_ticks": self.tools.start_ticks(me), "boot": self.records.boot}
        words = {**running, **keeping, "started": repr(self.started_at), "container": self.container}
        return [(name, str(value)) for name, value in words.items()]

    # -- a turn of the loop --------------------------------------------------------------------------------------

    def _turn(self) -> None:
        busy = self.output.waiting or (self.waiter is not None and self.waiter.waiting)
        self._hear(0 if busy else TICK_MS, self.output.stream, self.waiter)
        self.processes.sample()
        if self.output.move():
            self._remember()
        if self.waiter is not None and self.waiter.read():
            self.exited = True
            self.waiter.close()
            self.waiter = None
        if self.ordered and not self.exited and time.monotonic() - self.killed_at > KILL_AGAIN_S:
            self._kill()
        if self.output.look_after(self.exited, busy):
            self._remember()

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
        """Unless an order to end comes first."""
        readable = False
        while not readable:
            readable = self._poll(TICK_MS, [descriptor])
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
        self.processes.sample(now=True)
        self.killed_at = time.monotonic()
        try:
            with suppress(Refused):  # it is dead already
                self.engine.ask("POST", f"/containers/{self.container}/kill?signal=KILL", None, QUICK_S)
        except EngineGone:
            self.processes.kill()

    def _signal(self, number: int) -> None:
        """To its processes; through the engine where we may not."""
        if self.processes.signal(number, init=bool(self.config["HostConfig"].get("Init"))):
            return
        self.sent.append(number)
        with suppress(Refused):
            self.engine.ask("POST", f"/containers/{self.container}/kill?signal={number}", None, QUICK_S)

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
                stdout_bytes=self.output.stdout_bytes,
                stderr_head=self.output.stderr_head,
                init=bool(seen["HostConfig"].get("Init")),
                rebooted=self.rebooted,
                engine_lost=self.engine_lost,
                killed_by=tuple(number for number in killed_by if number not in self.sent),
            )
        )

    def _events(self, state: dict[str, Any]) -> tuple[list[int], bool]:
        path = events_path(self.container, _seconds(state["StartedAt"]) - 1, time.time())
        try:
            return happened(self.engine.ask_lines(path, QUICK_S))
        except Refused:
            return [], False

    def _finish(self, how: Verdict) -> None:
        self._close_streams()
        self.records.say("")
        if how.cause in (NEVER_STARTED, REFUSED):
            self.started_at = 0.0
        ended = {"code": str(how.code), "cause": how.cause, "reason": how.reason.replace("\0", " ")}
        times = {"ended": repr(time.time()), "cpu": repr(self.processes.cpu_s)}
        sizes = {"stdout": str(self.output.stdout_bytes), "stderr": str(self.output.stderr_bytes)}
        fields = [*ended.items(), *self._identity(), *times.items(), *sizes.items()]
        self.records.exit(fields, self.output.spool)
        self._remove()  # only now: until the record is safe, the engine is the only one who knows

    def _close_streams(self) -> None:
        self.output.close()
        if self.waiter is not None:
            self.waiter.close()
        self.waiter = None

    def _remove(self) -> None:
        if not self.container:
            return
        with suppress(Refused, EngineGone):  # whoever forgets this member, or looks for orphans, tries again
            self.engine.ask("DELETE", f"/containers/{self.container}?force=1&v=1", None, QUICK_S)


def _seconds(moment: str) -> float:
    """An engine's time as seconds since 1970."""
    from datetime import datetime

    return datetime.fromisoformat(moment).timestamp() if not moment.startswith(NEVER) else 0.0


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
