"""Asynchronous successive halving that promotes: a trial rests at each rung, without slots, until it is asked for more.

Each result at a rung may promote one trial: the one that brought it, if it is among the best one in ``divisor``, or the
next best if there is now room for one more. When all trials have been at the first rung, those that can no longer be
promoted are done, rung by rung.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from clutch.workloads.experiment.search.base import Finish, How, Train, Trained, Validated
from clutch.workloads.experiment.search.rungs import Climbed, Entered, Erased, Halving, Rested, whole
from clutch.workloads.experiment.search.turns import Turn


class Promoting:
    """The rules of one bracket. ``lengths``: of its rungs."""

    def __init__(self, number: int, lengths: tuple[int, ...], divisor: float) -> None:
        self.number = number
        self.lengths = lengths
        self._divisor = divisor

    def begins(self, turn: Turn[Halving], trial: int) -> None:
        rung = turn.state.brackets[self.number].towards[trial]
        turn.do(Train(trial, self.lengths[rung]))

    def hears(self, turn: Turn[Halving], event: Validated | Trained) -> None:
        if not isinstance(event, Trained) or not turn.state.roll.listens(event.trial):
            return
        rung = turn.state.brackets[self.number].towards.get(event.trial)
        if rung is None or event.length < self.lengths[rung]:
            return
        self._rest(turn, rung, event.trial, event.value)
        if rung == len(self.lengths) - 1:
            turn.leave(event.trial, Finish(event.trial))

    def loses(self, turn: Turn[Halving], trial: int, how: How) -> None:
        """A trial is about to be struck off. One that was on its way to a rung counts there as the worst."""
        if how is How.INVALID:
            turn.remember(Erased(self.number, trial))
            return
        rung = turn.state.brackets[self.number].towards.get(trial)
        if rung is not None:
            self._rest(turn, rung, trial, math.inf, gone=trial)

    def settles(self, turn: Turn[Halving]) -> None:
        """Trials that nothing can promote any more are done."""
        bracket = turn.state.brackets[self.number]
        live = turn.state.roll.live
        if len(bracket.rungs[0]) < bracket.trials or all(live.values()):
            return
        for rung, entries in enumerate(bracket.rungs):
            if rung in bracket.towards.values():
                return
            turn.finish_all(entry.trial for entry in entries if not entry.climbed and live.get(entry.trial) is False)

    def _rest(self, turn: Turn[Halving], rung: int, trial: int, value: float, gone: int = 0) -> None:
        """A result, and whom it promotes. ``gone``: a trial that is ending right now."""
        before = turn.state.brackets[self.number].rungs[rung]
        place = bisect_right(before, value, key=lambda entry: entry.value)
        turn.remember(Entered(self.number, rung, place, trial, value))
        turn.remember(Rested(self.number, trial))
        if rung == len(self.lengths) - 1:
            return
        old, new = whole(len(before) / self._divisor), whole((len(before) + 1) / self._divisor)
        entries = turn.state.brackets[self.number].rungs[rung]
        if place < new:
            chosen = entries[place]
        elif new > old and not entries[old].climbed:
            chosen = entries[old]
        else:
            return
        turn.remember(Climbed(self.number, chosen.trial, rung + 1))
        if chosen.trial != gone and turn.state.roll.listens(chosen.trial):
            turn.do(Train(chosen.trial, self.lengths[rung + 1]))
        else:
            self._rest(turn, rung + 1, chosen.trial, math.inf, gone)
