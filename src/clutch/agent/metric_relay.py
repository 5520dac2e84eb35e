"""Metrics that dead members had spooled, on their way to the master: again and again until the store has them.

It knows no socket, as ``relay`` does not. The spool itself is the record: an agent that comes later finds the same
batches under the same numbers, and a number that the store has is a repeat. So nothing is written here, and the spool
goes with the member's folder. Everything that the member was not told of is sent, also what the store has: a master may
have died between storing a validation and telling whoever decides upon it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from clutch.agent.metric_spool import GAP_MAX, NoSpool, Spooled, read_line
from clutch.backends.containers.base import Key
from clutch.wire.link import METRICS_PIECE_BYTES, MetricsOpen, MetricsPiece
from clutch.wire.metrics import MetricsCommitted

AT_ONCE = 4
"""So many incarnations have a piece under way."""
UNREAD_MAX = 30
"""So often in a row a spool may fail to be read (a disk, or too many open files), one beat apart."""
FUTILE_MAX = 5
"""So often in a row a store may answer without having come further."""

Frame = MetricsOpen | MetricsPiece


class Remains:
    """One dead incarnation's batches."""

    __slots__ = (
        "alone_until", "asked", "done", "emptied", "futile", "key",
        "lost", "open", "position", "reached", "spooled", "told", "unread",
    )  # fmt: skip

    def __init__(self, key: Key, spooled: Spooled) -> None:
        self.key = key
        self.spooled = spooled
        self.open = False
        self.asked = False
        """A piece is under way."""
        self.position = 0
        """The last number that was sent on this connection."""
        self.reached = 0
        """The last number that the store said it has."""
        self.alone_until = 0
        """Up to this number every batch goes alone: one of them was refused."""
        self.emptied: set[int] = set()
        """Numbers whose points the store will not have."""
        self.futile = 0
        self.unread = 0
        self.told = False
        """On this connection everything up to ``reached`` was sent."""
        self.done = False
        self.lost = False


class MetricRelay:
    """All metrics that this machine's dead members left."""

    def __init__(self, wake: asyncio.Event, shipped: Callable[[Key], None]) -> None:
        self._wake = wake
        self._shipped = shipped
        self._remains: dict[Key, Remains] = {}
        self._to_open: deque[Remains] = deque()
        self._ready: deque[Remains] = deque()
        self._unread: list[Remains] = []
        self._connected = False
        self._log = structlog.get_logger("clutch.agent")

    # -- what the hands say ----------------------------------------------------------------------------------------

    def watch(self, key: Key, spooled: Spooled) -> None:
        """From now on ship these, until the store has them."""
        if key not in self._remains and len(spooled):
            remains = self._remains[key] = Remains(key, spooled)
            if self._connected:
                self._to_open.append(remains)
                self._wake.set()

    def is_shipped(self, key: Key) -> bool:
        remains = self._remains.get(key)
        return remains is None or remains.done

    def drop(self, key: Key) -> None:
        remains = self._remains.pop(key, None)
        if remains is not None:
            remains.open = remains.asked = False
            for line in (self._to_open, self._ready, self._unread):
                if remains in line:
                    line.remove(remains)

    # -- what the connection says ----------------------------------------------------------------------------------

    def reconnected(self) -> None:
        """A new master may wait for what the old one had: all of them are opened again."""
        self._connected = True
        self._ready.clear()
        self._unread.clear()
        self._to_open = deque(remains for remains in self._remains.values() if not remains.lost)
        for remains in self._remains.values():
            remains.open = remains.asked = remains.told = False

    def disconnected(self) -> None:
        self._connected = False
        self._to_open.clear()
        self._ready.clear()
        self._unread.clear()

    def committed(self, message: MetricsCommitted) -> None:
        """The first word on a connection says what the store has; each further one answers a piece."""
        remains = self._remains.get(Key(message.member, message.fence))
        if remains is None or (remains.open and not remains.asked):
            return
        answers = remains.open
        moved = message.sequence > remains.reached
        remains.reached, remains.asked = message.sequence, False
        if not answers:
            remains.open = True
            known = remains.done or remains.told
            remains.position = remains.reached if known else min(remains.reached, remains.spooled.acknowledged)
            self._ready.append(remains)
        elif message.refused:
            self._refused(remains, message.refused)
        elif remains.position < remains.spooled.last:
            remains.futile = 0
            self._ready.append(remains)
        elif remains.reached >= remains.spooled.last:
            self._end(remains)
        else:  # the store is not where this connection took it to be
            self._again(remains, "the master does not store its last metrics", futile=not moved)
        self._wake.set()

    def try_again(self) -> None:
        """What could not be read may be readable now."""
        if self._unread:
            self._ready += self._unread
            self._unread.clear()
            self._wake.set()

    def take(self) -> list[Frame]:
        """What to send now."""
        frames: list[Frame] = []
        while self._to_open:
            frames.append(MetricsOpen(*self._to_open.popleft().key))
        under_way = sum(remains.asked for remains in self._remains.values()) if self._ready else 0
        while self._ready and under_way < AT_ONCE:
            remains = self._ready.popleft()
            try:
                lines = self._lines_of(remains)
            except (FileNotFoundError, NoSpool) as gone:
                self._give_up(remains, str(gone))
                continue
            except OSError as failed:
                self._unreadable(remains, failed)
                continue
            remains.asked, remains.unread = True, 0
            under_way += 1
            pieces = range(0, max(1, len(lines)), METRICS_PIECE_BYTES)
            frames += [
                MetricsPiece(*remains.key, lines[at : at + METRICS_PIECE_BYTES], more=at != pieces[-1]) for at in pieces
            ]
        return frames

    # -- the inside ------------------------------------------------------------------------------------------------

    def _lines_of(self, remains: Remains) -> bytes:
        """The next batches, and empty ones in place of those that are missing between them."""
        found: list[bytes] = []
        size = 0
        position = remains.position
        with remains.spooled.opened() as descriptor:
            for number, offset, length in remains.spooled.after(remains.position):
                if found and (size + length > METRICS_PIECE_BYTES or remains.position < remains.alone_until):
                    break
                missing = range(max(remains.reached, position) + 1, number)
                if len(missing) > GAP_MAX:
                    raise NoSpool(f"the store has batch {remains.reached}, the next one here is {number}")
                found += [_empty(one) for one in missing]
                line = _empty(number) if number in remains.emptied else read_line(descriptor, offset, length)
                found.append(line)
                size += len(line)
                position = number
        remains.position = position
        return b"\n".join(found)

    def _refused(self, remains: Remains, reason: str) -> None:
        """Of several one is at fault: each goes alone. One that is refused alone is stored without its points."""
        number = remains.position
        if number > remains.alone_until:
            remains.alone_until = number
            self._again(remains, reason)
        elif number not in remains.emptied:
            remains.emptied.add(number)
            self._log.warning("metrics were refused", member=str(remains.key.member), batch=number, reason=reason)
            self._again(remains, reason)
        else:
            self._again(remains, reason, futile=True)

    def _again(self, remains: Remains, reason: str, *, futile: bool = False) -> None:
        """Ask anew what the store has, and go on from there."""
        remains.futile = remains.futile + 1 if futile else 0
        if remains.futile > FUTILE_MAX:
            self._give_up(remains, reason)
            return
        remains.open, remains.told = False, True
        self._to_open.append(remains)

    def _unreadable(self, remains: Remains, failed: OSError) -> None:
        """It may pass: the store waits for these, and nobody else has them."""
        remains.unread += 1
        if remains.unread > UNREAD_MAX:
            self._give_up(remains, str(failed))
        else:
            self._unread.append(remains)

    def _give_up(self, remains: Remains, reason: str) -> None:
        self._log.warning("metrics are lost", member=str(remains.key.member), reason=reason)
        remains.lost = True
        self._end(remains)

    def _end(self, remains: Remains) -> None:
        if not remains.done:
            remains.done = True
            self._shipped(remains.key)


def _empty(number: int) -> bytes:
    return b'{"sequence":%d,"points":[]}' % number
