"""How far a leader thinks a follower is, and how much it may send it.

Pure. Three states, each with what it means for sending::

    PROBE      the match is a guess: one append at a time, and the next only after an answer or a heartbeat
    REPLICATE  the match is known: appends are pipelined, up to a number of messages and of bytes in flight
    SNAPSHOT   the follower needs entries that are gone: nothing is sent until the snapshot's fate is known

    PROBE --accepted--> REPLICATE --rejected, unreachable--> PROBE
    PROBE, REPLICATE --entries are gone--> SNAPSHOT --installed, failed--> PROBE
"""

from __future__ import annotations

import enum
from collections import deque


class Flow(enum.Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One follower, as the leader sees it."""

    __slots__ = (
        "active", "eager_ticks", "flow", "inflight", "inflight_bytes", "match", "max_bytes", "max_messages", "next",
        "probe_sent", "read", "sent_commit", "snapshot_index",
    )  # fmt: skip

    def __init__(self, next_index: int, max_messages: int, max_bytes: int) -> None:
        self.flow = Flow.PROBE
        self.match = 0
        self.next = next_index
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each append under way
        self.inflight_bytes = 0
        self.probe_sent = False
        self.snapshot_index = 0
        self.sent_commit = 0
        self.active = False  # heard of since the last quorum check
        self.eager_ticks = 0  # while positive, it waits for commits itself and is told of each at once
        self.read = 0  # the newest read round this follower confirmed

    @property
    def paused(self) -> bool:
        """Whether nothing may be sent now."""
        if self.flow is Flow.REPLICATE:
            return len(self.inflight) >= self.max_messages or self.inflight_bytes >= self.max_bytes
        return self.probe_sent if self.flow is Flow.PROBE else True

    def sent(self, last_index: int, size_bytes: int) -> None:
        """An append is under way; ``size_bytes`` is 0 for one without entries."""
        if self.flow is Flow.PROBE:
            self.probe_sent = True
        elif size_bytes:
            self.inflight.append((last_index, size_bytes))
            self.inflight_bytes += size_bytes
            self.next = last_index + 1

    def accepted(self, index: int) -> bool:
        """The follower matches up to ``index``. True if that is news."""
        news = index > self.match
        self.match = max(self.match, index)
        self.next = max(self.next, index + 1)
        while self.inflight and self.inflight[0][0] <= index:
            self.inflight_bytes -= self.inflight.popleft()[1]
        if self.flow is Flow.PROBE or (self.flow is Flow.SNAPSHOT and self.match >= self.snapshot_index):
            self._enter(Flow.REPLICATE)
            self.next = self.match + 1
        return news

    def rejected(self, index: int, hint: int) -> bool:
        """The follower does not match at ``index`` but may at ``hint``. False for an old answer."""
        if self.flow is Flow.REPLICATE:
            if index <= self.match:
                return False
            self._enter(Flow.PROBE)
            self.next = self.match + 1
            return True
        if self.flow is Flow.SNAPSHOT or self.next - 1 != index:
            return False
        self.next = max(min(index, hint + 1), self.match + 1)
        self.probe_sent = False
        return True

    def unreachable(self) -> None:
        """What was sent is probably lost."""
        if self.flow is Flow.REPLICATE:
            self._enter(Flow.PROBE)
            self.next = self.match + 1

    def nudge(self) -> None:
        """It answered a heartbeat: a pause that waits for a lost message ends here."""
        self.probe_sent = False
        if self.flow is Flow.REPLICATE and self.inflight and self.paused:
            self.inflight_bytes -= self.inflight.popleft()[1]

    def needs_snapshot(self, index: int) -> None:
        self._enter(Flow.SNAPSHOT)
        self.snapshot_index = index

    def snapshot_over(self, installed: bool) -> None:
        """The stream ended; if it failed, the follower is probed where it was."""
        if self.flow is Flow.SNAPSHOT:
            after = self.snapshot_index + 1 if installed else self.match + 1
            self._enter(Flow.PROBE)
            self.next = max(self.match + 1, after)
            self.probe_sent = True  # wait for its answer or a heartbeat before trying again

    def _enter(self, flow: Flow) -> None:
        self.flow = flow
        self.probe_sent = False
        self.inflight.clear()
        self.inflight_bytes = 0
