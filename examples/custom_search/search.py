"""A search method of one's own: it climbs a hill by steps to the left and right, and halves them at the top.

As a task of the experiment, which is how ``search.yaml`` starts it:    python search.py
From anywhere, for an experiment without such a task:                   python search.py EXPERIMENT

It may be killed at any moment and started again: with each answer the master keeps what ``save`` gives, and hands it
back with the events behind that answer.
"""

from __future__ import annotations

import json
import sys

import clutch
from clutch.wire.experiment_words import CloseTrial, MakeTrial, Operation, SearchEvent, Shutdown, TrainTo
from clutch.workloads.experiment.search_process.runner import SearchRunner, run_as_task

LENGTH = 5
SMALLEST = 0.25


class Climb:
    """Values arrive with their sign turned so that smaller is better, whatever the metric is."""

    def __init__(self) -> None:
        self.place, self.step = 0.0, 1.0
        self.known: dict[str, float | None] = {}
        """How good a place is; None while its trial trains."""

    def on_event(self, event: SearchEvent) -> list[Operation]:
        if event.kind == "begin":
            return self.look()
        if event.kind == "exited":
            return [Shutdown(failed=True, detail=f"{event.request} {event.reason}")]
        if event.kind != "trained":
            return []
        self.known[event.request] = float("inf") if event.value is None else event.value
        return [CloseTrial(event.request), *self.look()]

    def look(self) -> list[Operation]:
        """Trials for what has to be known before the next move; moves while all of it is known."""
        while self.step >= SMALLEST:
            around = [f"x={self.place + side * self.step}" for side in (0, -1, 1)]
            new = [request for request in around if request not in self.known]
            self.known.update(dict.fromkeys(new))
            if any(self.known[request] is None for request in around):
                return [word for request in new for word in (make(request), TrainTo(request, LENGTH))]
            best = min(around, key=lambda request: self.known[request])
            if best == around[0]:
                self.step /= 2
            self.place = float(best.removeprefix("x="))
        return [Shutdown()]

    def save(self) -> bytes:
        return json.dumps([self.place, self.step, self.known]).encode()

    def load(self, state: bytes) -> None:
        self.place, self.step, self.known = json.loads(state)


def make(request: str) -> MakeTrial:
    return MakeTrial(request, {"x": float(request.removeprefix("x="))})


def main() -> None:
    if len(sys.argv) == 1:
        run_as_task(Climb())
    else:
        with clutch.Client() as cluster:
            SearchRunner(cluster, sys.argv[1], Climb()).run()


if __name__ == "__main__":
    main()
