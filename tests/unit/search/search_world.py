"""A custom search in memory: the master's half of it with its trials, and everything that may go wrong between."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from search_harness import Search

from clutch.wire.errors import Unavailable
from clutch.wire.experiment_api import AnswerSearch, SearchEvents
from clutch.wire.experiments import ExperimentSpec
from clutch.workloads.experiment.search.base import Answered, Began, Finish, How, Stop
from clutch.workloads.experiment.search.custom import search_events

Objective = Callable[[dict[str, Any]], float]


class Killed(BaseException):
    """The process of the method is gone, in the middle of something."""


class MemorySearch:
    """A ``SearchClient`` whose trials take a step each time nobody else has anything to do.

    What is said crosses as JSON, as it does in reality.
    """

    def __init__(self, spec: ExperimentSpec, objective: Objective, *, faults: Random | None = None) -> None:
        self.search = Search(spec, check=faults is None)
        self.search.tell(Began())
        self.objective = objective
        self.faults = faults
        self.answers: list[AnswerSearch] = []
        self.largest = 0
        """The most events that ever waited."""
        self.most = 0
        """The most trials that ever lived at once."""

    def search_events(self, experiment: str, after: int, timeout_s: float) -> SearchEvents:
        self._fault(Unavailable("no master answers"))
        self._fault(Killed())
        while timeout_s and not search_events(self.search.state, after).events and self._step():
            pass
        found = search_events(self.search.state, after)
        self.largest = max(self.largest, len(self.search.state.events))
        return msgspec.json.decode(msgspec.json.encode(found), type=SearchEvents)

    def answer_search(self, experiment: str, answer: AnswerSearch) -> None:
        self._fault(Killed())
        answer = msgspec.json.decode(msgspec.json.encode(answer), type=AnswerSearch)
        self.answers.append(answer)
        self.search.tell(Answered(answer.cursor, answer.operations, answer.state))
        self.most = max(self.most, len(self.search.live()))
        self._fault(Killed())
        self._fault(Unavailable("the answer was lost"), again=lambda: self.answer_search(experiment, answer))

    def _fault(self, error: BaseException, again: Callable[[], None] | None = None) -> None:
        if self.faults is not None and self.faults.random() < 0.1:
            if again is not None:  # the client asks again by itself
                self.search.tell(Answered(self.answers[-1].cursor, self.answers[-1].operations, b"another"))
            else:
                raise error

    def _step(self) -> bool:
        """The first trial that lives trains through and ends; whether there was one."""
        for number in self.search.live():
            trial = self.search.trials[number]
            if trial.told_to_leave is None and trial.trains:
                length = trial.target or 1
                self.search.report(number, length, self.objective(trial.made.hparams))
            left = trial.told_to_leave
            if isinstance(left, Stop | Finish) or not trial.target:
                self.search.end(number, How.STOPPED if isinstance(left, Stop) else How.COMPLETED)
            return True
        return False
