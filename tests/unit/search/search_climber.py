"""A search method as a user would write one."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from clutch.wire.experiment_words import CloseTrial, MakeTrial, Operation, SearchEvent, Shutdown, TrainTo


class Climber:
    """A user's method: eight trials, two at a time, each to length 10; it remembers what it has seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, str]] = []
        self.made = 0
        self.done = 0

    def on_event(self, event: SearchEvent) -> Iterable[Operation]:
        self.seen.append((event.number, event.kind, event.request))
        if event.kind == "begin":
            yield from self._more()
            yield from self._more()
        if event.kind == "trained":
            yield CloseTrial(event.request)
        if event.kind in ("closed", "exited"):
            self.done += 1
            yield from self._more()
            if self.done == 8:
                yield Shutdown()

    def _more(self) -> Iterable[Operation]:
        if self.made < 8:
            self.made += 1
            yield MakeTrial(f"climb-{self.made}", {"x": self.made / 10})
            yield TrainTo(f"climb-{self.made}", 10)

    def save(self) -> bytes:
        return msgspec.json.encode((self.seen, self.made, self.done))

    def load(self, state: bytes) -> None:
        kind = tuple[list[tuple[int, str, str]], int, int]
        self.seen, self.made, self.done = msgspec.json.decode(state, type=kind)
