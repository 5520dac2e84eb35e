"""Methods whose trials know nothing of each other: a number of trials, so many at a time, each to its end."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest
from clutch.wire.experiments import ExperimentSpec
from clutch.workloads.experiment.search.base import Event, Exited, Extended, Finish, How, Make, Train, Trained
from clutch.workloads.experiment.search.turns import (
    Closed,
    Ended,
    Left,
    Made,
    Reopened,
    Revived,
    Roll,
    Turn,
    TurningMethod,
    fold_roll,
    verdict,
)


class PlainState(msgspec.Struct, frozen=True):
    roll: Roll
    max_trials: int
    max_time: int
    skipped: int = 0
    """Trials that refused their hyperparameters and have no replacement."""


class Extension(msgspec.Struct, frozen=True, tag="extension", array_like=True):
    """From now on."""

    max_trials: int
    max_time: int


class Skipped(msgspec.Struct, frozen=True, tag="skipped", array_like=True):
    """A trial that refused its hyperparameters gets no replacement."""


Fact = Made | Left | Ended | Revived | Closed | Reopened | Extension | Skipped


class Plain(TurningMethod[PlainState]):
    """A subclass says which hyperparameters a trial has, and what becomes of one that refuses them."""

    def __init__(self, spec: ExperimentSpec, max_trials: int, max_concurrent: int, *, replaces: bool) -> None:
        super().__init__(Fact, PlainState)
        self._spec = spec
        self._max_trials = max_trials
        self._max_concurrent = max_concurrent
        self._replaces = replaces

    @abstractmethod
    def hparams(self, trial: int) -> dict[str, Any]:
        """Those of this trial."""

    def check_extension(self, event: Extended) -> None:
        """Raises what speaks against it."""

    def open(self) -> PlainState:
        return PlainState(Roll(), self._max_trials, self._spec.search.max_time)

    def progress(self, state: PlainState) -> float:
        roll = state.roll
        return 1.0 if roll.over else (roll.ended + state.skipped) / max(state.max_trials, 1)

    def turn(self, turn: Turn[PlainState], event: Event) -> None:
        match event:
            case Trained(trial=trial, length=length):
                reached = 0 < turn.state.max_time <= length
                if reached and turn.state.roll.listens(trial):
                    turn.leave(trial, Finish(trial))
            case Exited(trial=trial, how=how):
                if trial in turn.state.roll.live:
                    turn.remember(Ended(trial, how))
                    if how is How.INVALID and not self._replaces:
                        turn.remember(Skipped())
            case Extended():
                self._extend(turn, event)
        self._fill(turn)
        self._close(turn)

    def fold(self, state: PlainState, fact: Fact) -> PlainState:
        replace = msgspec.structs.replace
        match fact:
            case Extension(max_trials, max_time):
                return replace(state, max_trials=max_trials, max_time=max_time)
            case Skipped():
                return replace(state, skipped=state.skipped + 1)
            case _:
                return replace(state, roll=fold_roll(state.roll, fact))

    # ------------------------------------------------------------------------------------------------------------

    def _extend(self, turn: Turn[PlainState], event: Extended) -> None:
        self.check_extension(event)
        state = turn.state
        refuse_unknown(event, state.roll)
        more = Extension(max(event.max_trials, state.max_trials), max(event.max_time, state.max_time))
        turn.remember(more)
        if state.roll.over:
            turn.remember(Reopened())
        if more.max_time > state.max_time:
            turn.do(*(Train(trial, more.max_time) for trial, leaves in state.roll.live.items() if not leaves))
        for trial in event.trials:
            if trial not in turn.state.roll.live:
                turn.remember(Revived(trial))
                if more.max_time:
                    turn.do(Train(trial, more.max_time))

    def _fill(self, turn: Turn[PlainState]) -> None:
        wanted = turn.state.max_trials
        while not turn.state.roll.gives_up(wanted):
            state = turn.state
            roll = state.roll
            full = 0 < self._max_concurrent <= len(roll.live)
            if full or roll.counted + state.skipped >= wanted:
                return
            trial = roll.made + 1
            turn.remember(Made(trial))
            turn.do(Make(trial, self.hparams(trial)))
            if state.max_time:
                turn.do(Train(trial, state.max_time))

    def _close(self, turn: Turn[PlainState]) -> None:
        state = turn.state
        gave_up = state.roll.gives_up(state.max_trials)
        done = state.roll.counted + state.skipped >= state.max_trials or gave_up
        if done and not state.roll.live:
            turn.close(verdict(state.roll, gave_up))


def refuse_unknown(event: Extended, roll: Roll) -> None:
    """``BadRequest`` for a trial that there never was."""
    for trial in event.trials:
        if not 1 <= trial <= roll.made:
            raise BadRequest(
                f"there is no trial {trial}", object=f"trial {trial}", next_step=f"There are 1 to {roll.made}."
            )
