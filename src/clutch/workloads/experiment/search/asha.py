"""Asynchronous successive halving that stops: every trial runs on until its result at a rung is not good enough.

A result at a rung is compared with all that came before it: the first to arrive always stays, later ones stay while
they are among the best one in ``divisor``. Reports between rungs say nothing; one report may clear several rungs. A
trial at the last rung is done.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from clutch.workloads.experiment.search.base import Finish, How, Stop, Train, Trained, Validated
from clutch.workloads.experiment.search.rungs import Climbed, Entered, Erased, Halving, whole
from clutch.workloads.experiment.search.turns import Turn


class Stopping:
    """The rules of one bracket. ``lengths``: of its rungs."""

    def __init__(self, number: int, lengths: tuple[int, ...], divisor: float) -> None:
        self.number = number
        self.lengths = lengths
        self._divisor = divisor

    def begins(self, turn: Turn[Halving], trial: int) -> None:
        """It is asked for one rung after the other: whoever only does what is asked is compared at each of them."""
        turn.do(Train(trial, self.lengths[turn.state.brackets[self.number].towards[trial]]))

    def hears(self, turn: Turn[Halving], event: Validated | Trained) -> None:
        """A trial that was told to leave is not heard: it is compared once at each rung."""
        trial = event.trial
        if not turn.state.roll.listens(trial):
            return
        time = event.time if isinstance(event, Validated) else event.length
        first = rung = turn.state.brackets[self.number].towards[trial]
        while time >= self.lengths[rung]:
            place = self._enter(turn, rung, trial, event.value)
            if rung == len(self.lengths) - 1:
                turn.leave(trial, Finish(trial))
                return
            kept = max(1, whole(len(turn.state.brackets[self.number].rungs[rung]) / self._divisor))
            if place >= kept:
                turn.leave(trial, Stop(trial))
                return
            rung += 1
            turn.remember(Climbed(self.number, trial, rung))
        if rung > first:
            turn.do(Train(trial, self.lengths[rung]))

    def loses(self, turn: Turn[Halving], trial: int, how: How) -> None:
        """A trial is about to be struck off. One that failed on its way to a rung counts there as the worst."""
        if how is How.INVALID:
            turn.remember(Erased(self.number, trial))
        elif how in (How.FAILED, How.CANCELLED) and turn.state.roll.listens(trial):
            self._enter(turn, turn.state.brackets[self.number].towards[trial], trial, math.inf)

    def settles(self, turn: Turn[Halving]) -> None:
        """Nothing rests here."""

    def _enter(self, turn: Turn[Halving], rung: int, trial: int, value: float) -> int:
        """Its place, before those that are as good."""
        entries = turn.state.brackets[self.number].rungs[rung]
        place = bisect_left(entries, value, key=lambda entry: entry.value)
        turn.remember(Entered(self.number, rung, place, trial, value))
        return place
