"""A world from one seed: a virtual clock, an ordered agenda, and named streams of chance.

Everything that happens in a simulation is an entry of the agenda. Two entries at one instant run in the order they were
made, so the same seed gives the same history, whatever machine runs it. The world never reads the real clock.

Each part of a simulation draws from its own stream (``world.chance("network")``): adding a draw in one part does not
move the draws of another, so a seed keeps its meaning while the simulator grows.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from random import Random


class Entry:
    """One thing that will happen. Cancel it and it will not."""

    __slots__ = ("action", "at", "order")

    def __init__(self, at: float, order: int, action: Callable[[], None]) -> None:
        self.at = at
        self.order = order
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None

    def __lt__(self, other: Entry) -> bool:
        return (self.at, self.order) < (other.at, other.order)


class World:
    """The agenda, the clock and the chance of one simulation."""

    def __init__(self, seed: int, start: float = 1_000_000.0) -> None:
        self.seed = seed
        self.now = start
        self.steps = 0
        self._agenda: list[Entry] = []
        self._order = 0
        self._chances: dict[str, Random] = {}

    def chance(self, stream: str) -> Random:
        """The stream of chance with this name: the same object each time, seeded from the world's seed and the name."""
        found = self._chances.get(stream)
        if found is None:
            digest = hashlib.sha256(f"{self.seed}/{stream}".encode()).digest()
            found = self._chances[stream] = Random(int.from_bytes(digest[:8], "big"))
        return found

    def at(self, when: float, action: Callable[[], None]) -> Entry:
        """Put an action on the agenda; one in the past happens now, after what already waits."""
        entry = Entry(max(when, self.now), self._order, action)
        self._order += 1
        heapq.heappush(self._agenda, entry)
        return entry

    def after(self, delay_s: float, action: Callable[[], None]) -> Entry:
        return self.at(self.now + delay_s, action)

    def next_at(self) -> float | None:
        """When the next entry is due, or None if nothing will ever happen again."""
        while self._agenda and self._agenda[0].action is None:
            heapq.heappop(self._agenda)
        return self._agenda[0].at if self._agenda else None

    def step(self) -> bool:
        """Let the next thing happen. False when the agenda is empty."""
        while self._agenda:
            entry = heapq.heappop(self._agenda)
            action = entry.action
            if action is None:
                continue
            self.now = entry.at
            self.steps += 1
            action()
            return True
        return False

    def run_until(self, when: float) -> None:
        """Let everything up to ``when`` happen; the clock then stands at ``when``."""
        while True:
            due = self.next_at()
            if due is None or due > when:
                break
            self.step()
        self.now = max(self.now, when)
