"""Drives any search method as an experiment's controller would, with trials that report, rest, end and fail at random.

After every event it checks what holds for every method: facts fold to the state that decisions saw, a state survives
``dump`` and ``load``, nobody is told anything after he was told to leave, no more trials train than may.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from clutch.wire.experiments import ExperimentSpec, Hyperparameter, Method, SearchSpec
from clutch.wire.programs import Program
from clutch.workloads.experiment.search.base import (
    Action,
    Began,
    Event,
    Exited,
    Finish,
    How,
    Make,
    Over,
    Remember,
    SearchMethod,
    Stop,
    Train,
    Trained,
    Validated,
)
from clutch.workloads.experiment.search.opening import method_for

STEPS_MAX = 200_000


def experiment(
    method: Method,
    space: Mapping[str, Hyperparameter] | None = None,
    *,
    max_time: int = 0,
    seed: int = 7,
) -> ExperimentSpec:
    return ExperimentSpec(
        name="search",
        program=Program(argv=("true",)),
        hyperparameters=dict(space or {}),
        search=SearchSpec(method=method, max_time=max_time, metric="loss"),
        seed=seed,
    )


class Trial:
    """One trial as the controller knows it."""

    def __init__(self, made: Make) -> None:
        self.made = made
        self.time = 0
        self.target = 0
        """The length it was asked for; 0: none, it ends by itself."""
        self.reported = 0
        """The greatest length whose training was told."""
        self.told_to_leave: Stop | Finish | None = None
        self.ended: How | None = None
        self.longest = 0

    @property
    def trains(self) -> bool:
        """It holds slots: it has something to do, or was never told how far to go."""
        if self.ended is not None:
            return False
        return not self.target or self.reported < self.target


class Search:
    """A method, its state, and the trials it has made."""

    def __init__(self, spec: ExperimentSpec, *, check: bool = True) -> None:
        self.spec = spec
        self.method: SearchMethod = method_for(spec)
        self.state: Any = self.method.open()
        self.trials: dict[int, Trial] = {}
        self.over: Over | None = None
        self.overs = 0
        self.events: list[Event] = []
        self._check = check

    def tell(self, event: Event) -> list[Action]:
        """Decides, folds and carries out, checking the contract."""
        before = copy.deepcopy(self.state) if self._check else None
        actions = list(self.method.decide(self.state, event))
        if self._check:
            assert self.state == before, "decide changed the state it was given"
            assert list(self.method.decide(self.state, event)) == actions, "decide is not a function"
        self.events.append(event)
        for action in actions:
            self._carry_out(action)
        if self._check:
            loaded = self.method.load(self.method.dump(self.state))
            assert loaded == self.state
            assert self.method.dump(loaded) == self.method.dump(self.state)
            self.state = loaded
            assert 0.0 <= self.method.progress(self.state) <= 1.0
        return actions

    def _carry_out(self, action: Action) -> None:
        match action:
            case Remember(fact=fact):
                before = copy.deepcopy(self.state) if self._check else None
                state = self.method.apply(self.state, fact)
                assert not self._check or self.state == before, "apply changed the state it was given"
                self.state = state
            case Make(trial=number):
                assert self.over is None
                assert number == len(self.trials) + 1, "numbers are 1, 2, 3 and so on"
                self.trials[number] = Trial(action)
            case Train(trial=number, length=length):
                trial = self._listening(number)
                assert length > trial.reported, "asked for what it has done"
                trial.target = length
            case Stop(trial=number) | Finish(trial=number):
                self._listening(number).told_to_leave = action
            case Over():
                self.over = action
                self.overs += 1

    def _listening(self, number: int) -> Trial:
        trial = self.trials[number]
        assert trial.ended is None, f"trial {number} has ended"
        assert trial.told_to_leave is None, f"trial {number} was told to leave"
        return trial

    # -- what trials do -------------------------------------------------------------------------------------------

    def report(self, number: int, time: int, value: float) -> None:
        """A validation, and what the controller makes of it."""
        trial = self.trials[number]
        trial.time = max(trial.time, time)
        trial.longest = max(trial.longest, time)
        self.tell(Validated(number, time, float(time), value, {"loss": value}))
        if trial.target and time >= trial.target > trial.reported:
            trial.reported = trial.target
            self.tell(Trained(number, trial.target, value))

    def end(self, number: int, how: How) -> None:
        self.trials[number].ended = how
        self.tell(Exited(number, how))

    def live(self) -> list[int]:
        return [number for number, trial in self.trials.items() if trial.ended is None]

    def training(self) -> int:
        return sum(trial.trains for trial in self.trials.values())

    def replayed(self) -> Any:
        """The state as another process makes it: from the events alone, decided anew."""
        state: Any = self.method.open()
        for event in self.events:
            for action in self.method.decide(state, event):
                if isinstance(action, Remember):
                    state = self.method.apply(state, action.fact)
        return state


Value = Callable[[int, int], float]
"""A trial's metric, by its number and how long it has trained."""


def run_in_order(spec: ExperimentSpec, value: Value, *, check: bool = False) -> Search:
    """Trials take turns, in the order of their numbers: each trains to its next length, until all is over."""
    search = Search(spec, check=check)
    search.tell(Began())
    for _ in range(STEPS_MAX):
        live = search.live()
        if not live:
            break
        for number in live:
            trial = search.trials[number]
            if trial.ended is not None:
                continue
            if trial.told_to_leave is None and trial.trains:
                length = next_length(trial)
                search.report(number, length, value(number, length))
            if trial.told_to_leave is not None:
                search.end(number, How.STOPPED if isinstance(trial.told_to_leave, Stop) else How.COMPLETED)
            elif not trial.target:
                search.end(number, How.COMPLETED)
    return search


def next_length(trial: Trial) -> int:
    """Whole powers of ten, or what it was asked for, whichever comes first."""
    step = 10 ** max(0, len(str(trial.time or 1)) - 1)
    further = trial.time + step
    return min(further, trial.target) if trial.target else further


class Chaos:
    """Trials that do anything a trial may do, in any order."""

    def __init__(self, search: Search, random: Random, *, invalid: float = 0.05, failing: float = 0.1) -> None:
        self.search = search
        self.random = random
        self.invalid = invalid
        self.failing = failing
        self.most = 0
        """Trials that trained at once."""

    def run(self) -> None:
        search = self.search
        search.tell(Began())
        for _ in range(STEPS_MAX):
            self.most = max(self.most, search.training())
            live = search.live()
            if not live:
                return
            self._step(self.random.choice(live))
        raise AssertionError("it does not end")

    def _step(self, number: int) -> None:
        search, random = self.search, self.random
        trial = search.trials[number]
        dice = random.random()
        if trial.told_to_leave is not None:
            if dice < 0.3:  # it is slow to leave, and goes on to report
                search.report(number, trial.time + 1, random.random())
            else:
                search.end(number, How.STOPPED if isinstance(trial.told_to_leave, Stop) else How.COMPLETED)
        elif dice < self.invalid:
            search.end(number, How.INVALID)
        elif dice < self.invalid + self.failing:
            search.end(number, random.choice([How.FAILED, How.FAILED, How.CANCELLED]))
        elif dice < self.invalid + self.failing + 0.03:
            search.end(number, How.COMPLETED)
        elif trial.trains:
            value = random.choice([random.random(), 0.5, float("inf")])
            search.report(number, trial.time + random.choice([1, 2, 7, 50]), value)
            if not trial.target and random.random() < 0.3 and trial.ended is None:
                search.end(number, How.COMPLETED)
