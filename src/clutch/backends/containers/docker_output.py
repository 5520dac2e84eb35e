"""A container's output on its way from the engine into the spool: each byte once, in order, whatever breaks.

It comes by three ways. *Attached*, as it is written, while keeper and engine live. From the engine's *log*, read again
from its beginning after a break; ``docker_log`` says which of it is new. From the *pipes*: what an engine that went
away never read.

It knows the engine's streams of one container, the spool, and what the next keeper must know to go on: with which
message the log began, and when the engine broke. It never starts, ends or judges a container, obeys no order, writes no
record, and waits for nothing but the log's first message: its keeper waits for its stream and calls ``move``, then
``look_after``, and writes down what ``kept`` says when either tells that it has changed.

Standard library only. ``EngineGone`` and ``Refused`` pass through.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

from clutch.backends.containers.docker_http import Engine, Stream
from clutch.backends.containers.docker_log import STAMP_BYTES, Break, Frames, LogPosition, stamp
from clutch.backends.containers.docker_pipes import Pipes

STDERR_HEAD_BYTES = 4096
READ_AGAIN_S = 2.0
HEAD_WITHIN_S = 30.0


class Output:
    """Of one container, over all breaks of its engine that this keeper sees."""

    def __init__(self, tools: ModuleType, engine: Engine, cap_bytes: int, came: Callable[[], None]) -> None:
        """``came`` is called whenever the spool has more."""
        self._tools = tools
        self._engine = engine
        self._came = came
        self._container = ""
        self.stream: Stream | None = None
        self.stderr_head = b""
        self.head = ""
        self.breaks: list[Break] = []
        self._frames = Frames()
        self._ended_at = self._head_asked_at = 0.0
        self._position: LogPosition | None = None  # None while attached
        self._last_pass = False
        self._pipes = Pipes()
        self.open_spool(cap_bytes)

    # -- the spool, and what a keeper before this one left -------------------------------------------------------

    def open_spool(self, cap_bytes: int) -> None:
        """Where another keeper left it."""
        self.spool = self._tools.Spool(self._tools.OUTPUT, cap_bytes)
        self._last_at = self.spool.take_up()

    @property
    def stdout_bytes(self) -> int:
        return int(self.spool.offsets[self._tools.STDOUT])

    @property
    def stderr_bytes(self) -> int:
        return int(self.spool.offsets[self._tools.STDERR])

    def kept(self) -> list[tuple[str, str]]:
        """What the next keeper must know besides the spool."""
        return [("head", self.head), *(("break", str(one)) for one in self.breaks)]

    def remember(self, kept: list[tuple[str, str]]) -> None:
        self.head = dict(kept).get("head", "")
        self.breaks = [Break.parse(value) for name, value in kept if name == "break"]

    # -- where it comes from -------------------------------------------------------------------------------------

    @property
    def follows(self) -> bool:
        """Whether it is read from the log, since a break."""
        return self._position is not None

    @property
    def waiting(self) -> bool:
        """Whether bytes are here already that no poll will announce."""
        return self.stream is not None and self.stream.waiting

    @property
    def over(self) -> bool:
        """Of a container that has exited: whether everything it wrote was moved."""
        return self.stream is None and (self._position is None or self._last_pass)

    def attach(self, container: str) -> None:
        """Before its start, so that nothing is missed."""
        self._container = container
        path = f"/containers/{container}/attach?stream=1&stdout=1&stderr=1"
        self.stream = self._engine.open("POST", path, headers=(("Connection", "Upgrade"), ("Upgrade", "tcp")))
        self._frames = Frames()

    def follow(self, container: str, to_the_end: bool = False) -> None:
        """Read the engine's log from its beginning; what the spool has is skipped."""
        self._container, self._last_pass = container, to_the_end
        self.stream = self._engine.open("GET", self._log_path(follow=not to_the_end))
        self._frames = Frames()
        self._position = LogPosition(self.spool.offsets, self.head, self.breaks)

    def _log_path(self, follow: bool) -> str:
        return f"/containers/{self._container}/logs?stdout=1&stderr=1&timestamps=1&follow={int(follow)}"

    def hold(self, pid: int) -> None:
        """Keep what is in its pipes from being lost with the engine; ``pid`` is the container's first process."""
        self._pipes.hold(pid)

    def broken(self) -> None:
        """The engine went away: what its log has from now on may follow bytes that it lost."""
        self.breaks.append(Break(stamp(time.time()), {}))

    # -- moving it -----------------------------------------------------------------------------------------------

    def move(self) -> bool:
        """Into the spool with what has come. True if ``kept`` has changed."""
        if self.stream is None:
            return False
        batch: list[tuple[int, list[bytes]]] = []
        for number, payload in self._frames.add(self.stream.read()):
            data = payload if self._position is None else self._position.new(number, payload, self._last_at)
            if number == self._tools.STDERR and self.spool.offsets[number] < STDERR_HEAD_BYTES:
                self.stderr_head += data[:STDERR_HEAD_BYTES]
            if not batch or batch[-1][0] != number:
                batch.append((number, []))
            batch[-1][1].append(data)
        for number, pieces in batch:
            self._spool(number, b"".join(pieces))
        if self.stream.ended:
            self.close()
            self._ended_at = time.monotonic()
        return self._position is not None and self._position_changed(self._position)

    def _position_changed(self, position: LogPosition) -> bool:
        changed, position.changed = position.changed, False
        if changed:
            self.head = position.head
        return changed

    def _spool(self, number: int, data: bytes) -> None:
        for start in range(0, len(data), self.spool.read_bytes):
            self.spool.add(number, data[start : start + self.spool.read_bytes])
        if data:
            self._last_at = time.time()
            self._came()

    def look_after(self, exited: bool, busy: bool) -> bool:
        """What must be done between two moves: read a log on that ended early, or once more after the exit, since a
        follower may miss its very end; note how the log began. True if ``kept`` has changed."""
        if self._position is None:
            due = time.monotonic() - self._head_asked_at > READ_AGAIN_S
            return not self.head and not busy and due and self._note_head()
        if self.stream is None and not self._last_pass:
            if exited:
                self.follow(self._container, to_the_end=True)
            elif time.monotonic() - self._ended_at > READ_AGAIN_S:
                self.follow(self._container)
        return False

    def _note_head(self) -> bool:
        """With which message the log began: if that changes, its beginning was cut off."""
        self._head_asked_at = time.monotonic()
        if not any(self.spool.offsets.values()):
            return False
        stream = self._engine.open("GET", self._log_path(follow=False))
        try:
            frames = Frames()
            while not self.head and not stream.ended:
                stream.wait(HEAD_WITHIN_S)
                for _, payload in frames.add(stream.read())[:1]:
                    self.head = payload[:STAMP_BYTES].decode("latin-1")
        finally:
            stream.close()
        return bool(self.head)

    def take_what_is_left(self, engine_lost: bool) -> None:
        """At the very end: what an engine that went away did not read, though it is back."""
        left = self._pipes.left() if engine_lost else []
        self._pipes.close()
        for number, data in left:
            self._spool(number, data)

    def close(self) -> None:
        """Let go of the engine's stream."""
        if self.stream is not None:
            self.stream.close()
        self.stream = None
