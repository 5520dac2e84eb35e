"""Output on its way from the spools to the master: exactly once by offset, fairly, and never more than a window ahead.

It knows no socket. Whoever owns the bulk connection calls ``reconnected``, sends what ``take`` gives, and passes on
what the master has committed. A spool is read only when somebody said that it may hold more (``stir``), so members that
say nothing cost nothing. Each turn gives one chunk to each incarnation that has something, so that a loud one does not
silence the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from clutch.agent import metric_relay, spool
from clutch.agent.metric_relay import MetricRelay
from clutch.agent.spool import Cursor, Gap, Piece
from clutch.backends.containers.base import Key
from clutch.wire.link import (
    OUTPUT_WINDOW_BYTES,
    OutputCommitted,
    OutputDone,
    OutputGap,
    OutputOpen,
    OutputPiece,
)

CHUNK_BYTES = 256 * 2**10
MERGE_WITHIN_S = 0.05
"""Neighbouring pieces of one stream that were written within this time travel as one."""
OPENS_AT_ONCE = 256

Frame = OutputOpen | OutputPiece | OutputGap | OutputDone | metric_relay.Frame


class Shipment:
    """One incarnation's output."""

    __slots__ = ("committed", "cursor", "done", "end", "end_sent", "folder", "key", "marks", "open", "queued")

    def __init__(self, key: Key, folder: Path) -> None:
        self.key = key
        self.folder = folder
        self.cursor = Cursor()
        """Up to where it was sent on this connection."""
        self.committed = (0, 0)
        self.marks: deque[Cursor] = deque()
        """Where each sent chunk ended: what lies before a committed one may go from the spool."""
        self.end: tuple[int, int] | None = None
        """How much its exit record counts; None while it runs."""
        self.open = False
        self.end_sent = False
        self.done = False
        self.queued = False

    @property
    def ahead_bytes(self) -> int:
        return self.cursor.stdout + self.cursor.stderr - sum(self.committed)


class Relay:
    """All output of this machine's members, and in ``metrics`` what dead ones had spooled of theirs."""

    def __init__(self, window_bytes: int = OUTPUT_WINDOW_BYTES) -> None:
        self.wake = asyncio.Event()
        """Set when ``take`` may have something."""
        self.shipped: Callable[[Key], None] = lambda key: None
        """Called for each incarnation whose output and end the master holds, and when it holds its metrics."""
        self.metrics = MetricRelay(self.wake, lambda key: self.shipped(key))
        self._window_bytes = window_bytes
        self._shipments: dict[Key, Shipment] = {}
        self._ready: deque[Shipment] = deque()
        self._to_open: deque[Shipment] = deque()
        self._unread: list[Shipment] = []
        self._ahead_bytes = 0
        self._connected = False
        self._log = structlog.get_logger("clutch.agent")

    # -- what the hands say --------------------------------------------------------------------------------------

    def watch(self, key: Key, folder: Path) -> None:
        """From now on ship what this spool holds."""
        if key in self._shipments:
            return
        shipment = self._shipments[key] = Shipment(key, folder)
        if self._connected:
            self._to_open.append(shipment)
            self.wake.set()

    def stir(self, key: Key) -> None:
        """There may be more of it."""
        shipment = self._shipments.get(key)
        if shipment is not None:
            self._queue(shipment)

    def try_again(self) -> None:
        """What could not be read may be readable now; of an exited one nobody else would say so."""
        unread, self._unread = self._unread, []
        for shipment in unread:
            self._queue(shipment)
        self.metrics.try_again()

    def exited(self, key: Key, stdout_bytes: int, stderr_bytes: int) -> None:
        """Nothing will be added any more; this is what it wrote."""
        shipment = self._shipments.get(key)
        if shipment is not None:
            shipment.end = (stdout_bytes, stderr_bytes)
            self._queue(shipment)

    def is_shipped(self, key: Key) -> bool:
        """Whether the master holds all of it; so it does of what was never here."""
        shipment = self._shipments.get(key)
        return (shipment is None or shipment.done) and self.metrics.is_shipped(key)

    def drop(self, key: Key) -> None:
        """Its directory is gone."""
        self.metrics.drop(key)
        shipment = self._shipments.pop(key, None)
        if shipment is not None:
            self._ahead_bytes -= shipment.ahead_bytes if shipment.open else 0
            shipment.open, shipment.end = False, None

    # -- what the connection says --------------------------------------------------------------------------------

    def reconnected(self) -> None:
        """A new connection: everything is opened again, also what was shipped, since a new master must hear of it."""
        self._connected = True
        self._ready.clear()
        self._ahead_bytes = 0
        self._to_open = deque(self._shipments.values())
        for shipment in self._shipments.values():
            shipment.open = shipment.queued = shipment.end_sent = False
            shipment.marks.clear()
        self.metrics.reconnected()
        self.wake.set()

    def disconnected(self) -> None:
        self._connected = False
        self._to_open.clear()
        self._ready.clear()
        self.metrics.disconnected()

    def committed(self, message: OutputCommitted) -> None:
        """The master holds this much. The first word on a connection says where to begin."""
        shipment = self._shipments.get(Key(message.member, message.fence))
        if shipment is None:
            return
        reached = (message.stdout, message.stderr)
        if not shipment.open:
            shipment.open = True
            shipment.committed = reached
            shipment.cursor = Cursor(*reached)
            self._queue(shipment)
        else:
            before = shipment.ahead_bytes
            shipment.committed = reached
            self._ahead_bytes += shipment.ahead_bytes - before
            self._release(shipment)
        if message.done and not shipment.done:
            shipment.done = True
            self.shipped(shipment.key)
        self.wake.set()

    def take(self) -> list[Frame]:
        """What to send now, about one chunk of each that has something; nothing until ``wake`` is set again."""
        self.wake.clear()
        frames: list[Frame] = []
        while self._to_open and len(frames) < OPENS_AT_ONCE:
            shipment = self._to_open.popleft()
            frames.append(OutputOpen(*shipment.key))
        for _ in range(len(self._ready)):
            if self._ahead_bytes >= self._window_bytes:
                break
            shipment = self._ready.popleft()
            shipment.queued = False
            frames += self._next_of(shipment)
        frames += self.metrics.take()
        if frames:
            self.wake.set()  # there may be more: the caller comes back when these are sent
        return frames

    # -- the inside ----------------------------------------------------------------------------------------------

    def _queue(self, shipment: Shipment) -> None:
        if shipment.open and not shipment.queued and not shipment.end_sent and not shipment.done:
            shipment.queued = True
            self._ready.append(shipment)
            self.wake.set()

    def _next_of(self, shipment: Shipment) -> list[Frame]:
        if not shipment.open:
            return []
        before = shipment.ahead_bytes
        limit = max(1, min(CHUNK_BYTES, self._window_bytes - self._ahead_bytes))
        try:
            pieces, shipment.cursor = spool.read(shipment.folder, shipment.cursor, limit)
        except OSError as failed:  # a bad disk, too many open files: it must not keep the others waiting
            self._log.warning("output cannot be read", member=str(shipment.key.member), error=str(failed))
            self._unread.append(shipment)
            return []
        if pieces:
            shipment.marks.append(shipment.cursor)
            self._queue(shipment)
        elif shipment.end is not None:
            gaps, shipment.cursor = spool.rest(shipment.cursor, *shipment.end)
            pieces = list(gaps)
            shipment.end_sent = True
        self._ahead_bytes += shipment.ahead_bytes - before
        frames: list[Frame] = [_frame(shipment.key, piece) for piece in merged(pieces)]
        if shipment.end_sent:  # a power cut may take from the spool what the store has: then the store is right
            frames.append(OutputDone(*shipment.key, shipment.cursor.stdout, shipment.cursor.stderr))
        return frames

    def _release(self, shipment: Shipment) -> None:
        stdout, stderr = shipment.committed
        safe: Cursor | None = None
        while shipment.marks and shipment.marks[0].stdout <= stdout and shipment.marks[0].stderr <= stderr:
            safe = shipment.marks.popleft()
        if safe is not None and safe.segment > 1:
            spool.release(shipment.folder, safe)


def merged(pieces: list[Piece | Gap]) -> list[Piece | Gap]:
    """The same bytes in the same order in fewer pieces: programs flush line by line."""
    found: list[Piece | Gap] = []
    run: list[Piece] = []

    def close() -> None:
        if run:
            first = run[0]
            data = first.data if len(run) == 1 else b"".join(piece.data for piece in run)
            found.append(Piece(first.stream, first.offset, first.at, data))
            run.clear()

    for piece in pieces:
        if isinstance(piece, Gap):
            close()
            found.append(piece)
            continue
        if run and (piece.stream != run[0].stream or piece.at - run[0].at > MERGE_WITHIN_S):
            close()
        run.append(piece)
    close()
    return found


def _frame(key: Key, piece: Piece | Gap) -> OutputPiece | OutputGap:
    if isinstance(piece, Gap):
        return OutputGap(*key, piece.stream, piece.start, piece.end)
    return OutputPiece(*key, piece.stream, piece.offset, piece.at, piece.data)
