"""Population based training: rounds of a fixed length, after each of which the worst go on from where the best are.

A round is over when every trial of the population has trained up to its length, or is gone. Then the worst part ends,
and each of them is replaced by a new trial that begins from the latest checkpoint of one of the best (the best first),
with hyperparameters a little changed. Its steps count on from there, so a round's length is the same for everybody.
Trials that failed are replaced in the same way; one whose program ended by itself leaves a smaller population.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest
from clutch.wire.experiments import Categorical, Const, Double, ExperimentSpec, Hyperparameter, Int, Log, Nested, Pbt
from clutch.workloads.experiment.search.base import Event, Exited, Extended, How, Make, Train, Trained
from clutch.workloads.experiment.search.checks import at_least, within
from clutch.workloads.experiment.search.rungs import whole
from clutch.workloads.experiment.search.sampling import Path, Space, bounds, chance, choice, draw, sample
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

# -- state and facts ----------------------------------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True, array_like=True):
    """Somebody to train in this round: ``trial`` goes on; or, if 0, a new one is made, from ``parents`` if any."""

    trial: int = 0
    parents: tuple[int, ...] = ()


class PbtState(msgspec.Struct, frozen=True):
    roll: Roll
    round: int = 0
    """From 1."""
    queue: tuple[Job, ...] = ()
    """Who has yet to begin this round."""
    training: dict[int, Job] = {}
    results: dict[int, float] = {}
    """Of those who have trained through this round and live."""
    lost: int = 0
    """Trials of this round that failed or were cancelled."""
    hparams: dict[int, dict[str, Any]] = {}
    """Of those who may be copied."""


class Planned(msgspec.Struct, frozen=True, tag="planned", array_like=True):
    """A round begins with these."""

    round: int
    queue: tuple[Job, ...]


class Started(msgspec.Struct, frozen=True, tag="started", array_like=True):
    """The first of the queue trains; ``hparams`` are a new one's."""

    trial: int
    hparams: dict[str, Any] | None = None


class Rested(msgspec.Struct, frozen=True, tag="rested", array_like=True):
    trial: int
    value: float


class Queued(msgspec.Struct, frozen=True, tag="queued", array_like=True):
    """One more has to begin this round."""

    job: Job


class Lost(msgspec.Struct, frozen=True, tag="lost", array_like=True):
    """A trial's place in the next round is free."""


Fact = Made | Left | Ended | Revived | Closed | Reopened | Planned | Started | Rested | Queued | Lost


class PbtMethod(TurningMethod[PbtState]):
    def __init__(self, spec: ExperimentSpec, method: Pbt) -> None:
        super().__init__(Fact, PbtState)
        at_least(1, population_size=method.population_size, num_rounds=method.num_rounds)
        at_least(1, length_per_round=method.length_per_round)
        at_least(0, max_concurrent_trials=method.max_concurrent_trials)
        within(0, 0.5, truncate_fraction=method.truncate_fraction)
        within(0, 1, resample_probability=method.resample_probability, perturb_factor=method.perturb_factor)
        self._spec = spec
        self._method = method

    def open(self) -> PbtState:
        return PbtState(Roll())

    def progress(self, state: PbtState) -> float:
        if state.roll.over:
            return 1.0
        if not state.queue and not state.training:
            return state.round / self._method.num_rounds
        there = len(state.results) / (len(state.results) + len(state.queue) + len(state.training))
        return (state.round - 1 + there) / self._method.num_rounds

    def turn(self, turn: Turn[PbtState], event: Event) -> None:
        state = turn.state
        if not state.round:
            turn.remember(Planned(1, (Job(),) * self._method.population_size))
        match event:
            case Trained(trial=trial, length=length, value=value):
                if trial in state.training and length >= self._length(state.round):
                    turn.remember(Rested(trial, value))
            case Exited(trial=trial, how=how):
                if trial in state.roll.live:
                    self._lose(turn, trial, how)
            case Extended():
                raise BadRequest(
                    "the size of a population and its rounds are fixed",
                    object="pbt",
                    next_step="Fork the experiment, with more rounds.",
                )
        self._next_rounds(turn)
        self._start(turn)
        self._close(turn)

    def fold(self, state: PbtState, fact: Fact) -> PbtState:
        replace = msgspec.structs.replace
        match fact:
            case Planned(number, queue):
                kept = {trial: state.hparams[trial] for trial in state.results if trial in state.hparams}
                return replace(state, round=number, queue=queue, results={}, lost=0, hparams=kept)
            case Started(trial, hparams):
                state = replace(state, queue=state.queue[1:], training={**state.training, trial: state.queue[0]})
                if hparams is None:
                    return state
                roll = fold_roll(state.roll, Made(trial))
                return replace(state, roll=roll, hparams={**state.hparams, trial: hparams})
            case Rested(trial, value):
                return replace(state, training=_without(state.training, trial), results={**state.results, trial: value})
            case Queued(job):
                return replace(state, queue=(*state.queue, job))
            case Lost():
                return replace(state, lost=state.lost + 1)
            case Ended(trial, _):
                return replace(
                    state,
                    roll=fold_roll(state.roll, fact),
                    queue=tuple(job for job in state.queue if job.trial != trial),
                    training=_without(state.training, trial),
                    results=_without(state.results, trial),
                )
            case _:
                return replace(state, roll=fold_roll(state.roll, fact))

    # ------------------------------------------------------------------------------------------------------------

    def _length(self, number: int) -> int:
        return number * self._method.length_per_round

    def _lose(self, turn: Turn[PbtState], trial: int, how: How) -> None:
        left = turn.state.roll.live[trial]
        job = turn.state.training.get(trial)
        turn.remember(Ended(trial, how))
        if left or how in (How.COMPLETED, How.STOPPED):
            return
        if how is How.INVALID and not turn.state.roll.gives_up(self._method.population_size):
            turn.remember(Queued(Job(parents=job.parents if job else ())))
        else:
            turn.remember(Lost())

    def _next_rounds(self, turn: Turn[PbtState]) -> None:
        state = turn.state
        if state.queue or state.training or not state.results:
            return
        best_first = sorted(state.results, key=lambda trial: (state.results[trial], trial))
        if state.round >= self._method.num_rounds:
            turn.finish_all(best_first)
            turn.remember(Planned(state.round, ()))
            return
        count = math.floor(self._method.truncate_fraction * self._method.population_size)
        worst = best_first[len(best_first) - max(0, min(count - state.lost, len(best_first) // 2)) :]
        survivors = best_first[: len(best_first) - len(worst)]
        parents = tuple(survivors[: max(1, count)])
        # The new ones begin first: what they begin from is what their parents have now.
        copies = tuple(Job(parents=(parents[one % len(parents)],)) for one in range(len(worst) + state.lost))
        turn.remember(Planned(state.round + 1, (*copies, *(Job(trial) for trial in survivors))))
        turn.finish_all(worst)

    def _start(self, turn: Turn[PbtState]) -> None:
        most = self._method.max_concurrent_trials
        length = self._length(turn.state.round)
        while turn.state.queue and not 0 < most <= len(turn.state.training):
            job = turn.state.queue[0]
            if job.trial:
                turn.remember(Started(job.trial))
                turn.do(Train(job.trial, length))
                continue
            trial = turn.state.roll.made + 1
            seed = self._spec.seed
            parent = job.parents[choice(len(job.parents), seed, trial, (), "parent")] if job.parents else 0
            hparams = (
                explore(self._spec.hyperparameters, turn.state.hparams[parent], self._method, (seed, trial))
                if parent
                else sample(self._spec.hyperparameters, seed, trial)
            )
            turn.remember(Started(trial, hparams))
            turn.do(Make(trial, hparams, from_trial=parent), Train(trial, length))

    def _close(self, turn: Turn[PbtState]) -> None:
        state = turn.state
        if not state.queue and not state.training and not state.roll.live:
            turn.close(verdict(state.roll, state.roll.gives_up(self._method.population_size)))


# -- hyperparameters ----------------------------------------------------------------------------------------------


def explore(space: Space, known: dict[str, Any], method: Pbt, who: tuple[int, int], path: Path = ()) -> dict[str, Any]:
    """A parent's hyperparameters for trial ``who`` (seed and number): each is drawn anew or a little changed."""
    return {name: _explored(inner, known.get(name), method, who, (*path, name)) for name, inner in space.items()}


def _explored(inner: Hyperparameter, known: Any, method: Pbt, who: tuple[int, int], path: Path) -> Any:
    match inner:
        case Const():
            return inner.val
        case Nested(vals=deeper):
            return explore(deeper, known, method, who, path)
    if chance(*who, path, "resample") < method.resample_probability:
        return draw(inner, *who, path)
    match inner:
        case Categorical():
            return known
        case Int() | Double() | Log():
            sign = 1 if choice(2, *who, path, "direction") else -1
            low, high = bounds(inner)
            changed = known * (1 + sign * method.perturb_factor)
            if isinstance(inner, Int):  # away from what it was, so that small numbers change too
                changed = whole(changed) if changed < known else -whole(-changed)
            return min(max(changed, low), high)


def _without(mapping: dict[int, Any], trial: int) -> dict[int, Any]:
    return {number: value for number, value in mapping.items() if number != trial}
