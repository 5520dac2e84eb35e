"""A search method for stories: one trial after the other, each of half the base of the one before, four of them."""

from __future__ import annotations

from clutch.wire.experiment_words import CloseTrial, MakeTrial, Operation, SearchEvent, Shutdown, TrainTo
from clutch.workloads.experiment.search_process.runner import run_as_task

TRIALS, LENGTH = 4, 3


class Halving:
    def __init__(self) -> None:
        self.made = 0

    def on_event(self, event: SearchEvent) -> list[Operation]:
        if event.kind == "begin":
            return self.another()
        if event.kind == "trained":
            return [CloseTrial(event.request), *(self.another() if self.made < TRIALS else [Shutdown()])]
        return []

    def another(self) -> list[Operation]:
        self.made += 1
        request = f"trial {self.made}"
        return [MakeTrial(request, {"base": 8.0 / 2**self.made}), TrainTo(request, LENGTH)]

    def save(self) -> bytes:
        return str(self.made).encode()

    def load(self, state: bytes) -> None:
        self.made = int(state)


if __name__ == "__main__":
    run_as_task(Halving())
