"""Brackets of successive halving side by side: each trial belongs to one, and hears only of that one.

The most trials at once holds over all brackets together; each has its share of it, and where there are more brackets
than that the earlier ones go first.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from clutch.wire.errors import BadRequest
from clutch.wire.experiments import ExperimentSpec
from clutch.workloads.experiment.search.asha import Stopping
from clutch.workloads.experiment.search.asha_promotion import Promoting
from clutch.workloads.experiment.search.base import Event, Exited, Extended, How, Make, Trained, Validated
from clutch.workloads.experiment.search.plain import refuse_unknown
from clutch.workloads.experiment.search.rungs import (
    Bracket,
    Climbed,
    Enlarged,
    Erased,
    Fact,
    Halving,
    Joined,
    Returned,
    fold_halving,
    rung_lengths,
)
from clutch.workloads.experiment.search.sampling import sample
from clutch.workloads.experiment.search.turns import Ended, Reopened, Roll, Turn, TurningMethod, verdict


class Rules(Protocol):
    """How one bracket treats its trials."""

    lengths: tuple[int, ...]

    def begins(self, turn: Turn[Halving], trial: int) -> None: ...

    def hears(self, turn: Turn[Halving], event: Validated | Trained) -> None: ...

    def loses(self, turn: Turn[Halving], trial: int, how: How) -> None: ...

    def settles(self, turn: Turn[Halving]) -> None: ...


class BracketPlan(msgspec.Struct, frozen=True):
    """How a bracket begins."""

    rungs: int
    trials: int
    concurrent: int


class HalvingPlan(msgspec.Struct, frozen=True, kw_only=True):
    brackets: tuple[BracketPlan, ...]
    divisor: float
    promotion: bool
    max_concurrent: int
    """Over all brackets; 0: what they have."""


class Tournament(TurningMethod[Halving]):
    def __init__(self, spec: ExperimentSpec, plan: HalvingPlan) -> None:
        super().__init__(Fact, Halving)
        self._spec = spec
        self._plan = plan
        kind = Promoting if plan.promotion else Stopping
        self._rules: tuple[Rules, ...] = tuple(
            kind(number, rung_lengths(one.rungs, spec.search.max_time, plan.divisor), plan.divisor)
            for number, one in enumerate(plan.brackets)
        )

    def open(self) -> Halving:
        brackets = tuple(
            Bracket(trials=one.trials, rungs=((),) * len(rules.lengths))
            for one, rules in zip(self._plan.brackets, self._rules, strict=True)
        )
        return Halving(Roll(), brackets)

    def progress(self, state: Halving) -> float:
        if state.roll.over:
            return 1.0
        return sum(bracket.progress() for bracket in state.brackets) / len(state.brackets)

    def turn(self, turn: Turn[Halving], event: Event) -> None:
        match event:
            case Validated(trial=trial) | Trained(trial=trial):
                if trial in turn.state.home:
                    self._rules[turn.state.home[trial]].hears(turn, event)
            case Exited(trial=trial, how=how):
                if trial in turn.state.home:
                    self._rules[turn.state.home[trial]].loses(turn, trial, how)
                    turn.remember(Ended(trial, how))
            case Extended():
                self._extend(turn, event)
        self._fill(turn)
        for rules in self._rules:
            rules.settles(turn)
        self._close(turn)

    def fold(self, state: Halving, fact: Fact) -> Halving:
        return fold_halving(state, fact)

    # ------------------------------------------------------------------------------------------------------------

    def _fill(self, turn: Turn[Halving]) -> None:
        if turn.state.roll.gives_up(_wanted(turn.state)):
            return
        for number, rules in enumerate(self._rules):
            for _ in range(self._room(turn.state, number)):
                trial = turn.state.roll.made + 1
                turn.remember(Joined(trial, number))
                turn.do(Make(trial, sample(self._spec.hyperparameters, self._spec.seed, trial)))
                rules.begins(turn, trial)

    def _room(self, state: Halving, number: int) -> int:
        """How many trials a bracket may begin now."""
        bracket = state.brackets[number]
        room = min(bracket.missing, self._plan.brackets[number].concurrent - len(bracket.towards))
        if self._plan.max_concurrent:
            room = min(room, self._plan.max_concurrent - sum(len(one.towards) for one in state.brackets))
        return max(0, room)

    def _close(self, turn: Turn[Halving]) -> None:
        state = turn.state
        gave_up = state.roll.gives_up(_wanted(state))
        if gave_up:
            self._finish_resting(turn)
        done = all(bracket.missing <= 0 for bracket in state.brackets) or gave_up
        if done and not state.roll.live:
            turn.close(verdict(state.roll, gave_up))

    def _extend(self, turn: Turn[Halving], event: Extended) -> None:
        state = turn.state
        if event.max_time > self._spec.search.max_time:
            raise BadRequest(
                "the rungs of successive halving follow from max_time, which cannot grow while results stand on them",
                object="max_time",
                next_step=f"Fork it: 'clutch experiment fork ID --set searcher.max_time={event.max_time} --set "
                "searcher.source_checkpoint_uuid=CHECKPOINT' begins from what its best trial has learnt.",
                path="max_time",
            )
        refuse_unknown(event, state.roll)
        homes = {trial: self._place_again(state, trial) for trial in event.trials if trial not in state.roll.live}
        if state.roll.over:
            turn.remember(Reopened())
        self._enlarge(turn, event.max_trials - _wanted(state))
        for trial, (number, rung) in homes.items():
            turn.remember(Returned(number, trial))
            turn.remember(Erased(number, trial, rung))
            turn.remember(Climbed(number, trial, rung))
            self._rules[number].begins(turn, trial)

    def _enlarge(self, turn: Turn[Halving], more: int) -> None:
        """Brackets share what is added as they shared what they began with; the first has what is left over."""
        if more <= 0:
            return
        brackets = turn.state.brackets
        begun = sum(one.trials for one in self._plan.brackets)
        shares = [more * one.trials // begun for one in self._plan.brackets]
        shares[0] += more - sum(shares)
        for number, share in enumerate(shares):
            if share:
                turn.remember(Enlarged(number, brackets[number].trials + share))

    def _place_again(self, state: Halving, trial: int) -> tuple[int, int]:
        """Bracket and rung at which an ended trial goes on: where it failed, or the next one."""
        for number, bracket in enumerate(state.brackets):
            found = bracket.highest(trial)
            if found is None:
                continue
            rung, entry = found
            failed = entry.value == float("inf")
            if not failed and rung == len(bracket.rungs) - 1:
                raise BadRequest(
                    "it has trained as long as this search trains any",
                    object=f"trial {trial}",
                    next_step="Fork the experiment with a longer max_time, from this trial's checkpoint.",
                )
            return number, rung if failed else rung + 1
        return 0, 0

    def _finish_resting(self, turn: Turn[Halving]) -> None:
        """A search that has given up promotes nobody any more."""
        state = turn.state
        turn.finish_all(
            trial
            for trial, leaves in state.roll.live.items()
            if not leaves and trial not in state.brackets[state.home[trial]].towards
        )


def _wanted(state: Halving) -> int:
    return sum(bracket.trials for bracket in state.brackets)
