"""A search method that is a process: its queue of events, its cursor, and what its answers do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_climber import Climber
from search_harness import Search, experiment
from search_world import Killed, MemorySearch

from clutch.wire.errors import BadRequest, NotFound, TooLarge, Unavailable
from clutch.wire.experiment_api import AnswerSearch, SearchEvents
from clutch.wire.experiment_words import (
    CloseTrial,
    MakeTrial,
    Operation,
    SearchEvent,
    SetProgress,
    Shutdown,
    TrainTo,
)
from clutch.wire.experiments import Custom, Double, Hyperparameter, Int, Nested
from clutch.workloads.experiment.search import custom
from clutch.workloads.experiment.search.base import (
    Action,
    Answered,
    Began,
    Exited,
    Extended,
    Finish,
    How,
    Make,
    Over,
    Remember,
    Stop,
    Train,
    Trained,
    Validated,
)
from clutch.workloads.experiment.search.custom import EVENTS_MAX, search_events
from clutch.workloads.experiment.search.sampling import sample
from clutch.workloads.experiment.search_process.runner import SearchRunner

SPACE: dict[str, Hyperparameter] = {"x": Double(0, 1), "o": Nested({"a": Int(1, 9), "b": Int(1, 9)})}


def begun(max_concurrent: int = 0) -> Search:
    search = Search(experiment(Custom(max_concurrent_trials=max_concurrent), SPACE, max_time=100))
    search.tell(Began())
    return search


def answer(search: Search, *operations: Operation, state: bytes = b"") -> list[Action]:
    """The answer to everything there is."""
    actions = search.tell(Answered(search.state.next_event - 1, operations, state))
    return [action for action in actions if not isinstance(action, Remember)]


def waiting(search: Search) -> list[str]:
    return [event.kind for event in search.state.events]


def test_the_first_event_describes_the_experiment() -> None:
    search = begun()
    (event,) = search_events(search.state, 0).events
    assert event.number == 1 and event.kind == "begin"
    assert event.hparams["seed"] == 7 and event.hparams["max_time"] == 100
    assert event.hparams["hyperparameters"]["o"]["vals"]["a"] == {"type": "int", "minval": 1, "maxval": 9, "count": 0}
    assert event.hparams["method"]["type"] == "custom"
    assert search.tell(Began()) == []


def test_a_trial_from_asking_to_its_end() -> None:
    search = begun()
    hparams = {**sample(SPACE, 7, 1), "o": {"a": 5, "b": sample(SPACE, 7, 1)["o"]["b"]}}
    assert answer(search, MakeTrial("first", {"o": {"a": 5}}), TrainTo("first", 10)) == [
        Make(1, hparams, request="first"),
        Train(1, 10),
    ]
    made = search.trials[1].made
    assert made.hparams == hparams and made.request == "first"
    assert search.trials[1].target == 10
    search.tell(Validated(1, 5, 5.0, 0.3, {"loss": 0.3, "odd": math.nan}))
    search.tell(Trained(1, 10, math.inf))
    created, validated, trained = search_events(search.state, search.state.answered).events
    assert (created.kind, created.request, created.trial, created.hparams) == ("created", "first", 1, hparams)
    assert (validated.step, validated.value, validated.values) == (5, 0.3, {"loss": 0.3})
    assert (trained.kind, trained.length, trained.value) == ("trained", 10, None)
    assert answer(search, CloseTrial("first"), SetProgress(0.5)) == [Finish(1)]
    assert search.method.progress(search.state) == 0.5
    search.end(1, How.COMPLETED)
    (closed,) = search.state.events
    assert (closed.kind, closed.reason, closed.request) == ("closed", "completed", "first")
    assert answer(search, Shutdown()) == [Over()]


def test_an_answer_counts_once() -> None:
    search = begun()
    answer(search, MakeTrial("a"), state=b"one")
    before = search.state
    assert search.tell(Answered(1, (MakeTrial("b"),), b"two")) == []
    assert search.tell(Answered(0, (MakeTrial("b"),), b"two")) == []
    assert search.state == before and search.state.kept == b"one"
    with pytest.raises(BadRequest):
        search.tell(Answered(99, ()))
    assert search.state == before


def test_what_was_answered_is_dropped_and_the_rest_stays() -> None:
    search = begun()
    answer(search, MakeTrial("a"), MakeTrial("b"))
    assert [event.number for event in search.state.events] == [2, 3]
    search.tell(Answered(2, ()))
    assert [event.number for event in search.state.events] == [3]
    assert search_events(search.state, 1).events[0].number == 3
    assert search_events(search.state, 3).events == ()


def test_the_kept_state_comes_with_the_events_to_whoever_is_not_where_the_answers_are() -> None:
    search = begun()
    answer(search, MakeTrial("a"), state=b"kept")
    assert search_events(search.state, 0).state == b"kept"
    assert search_events(search.state, 0).answered == 1
    assert search_events(search.state, 1).state == b""


def test_trials_beyond_the_most_at_once_wait_with_what_is_said_about_them() -> None:
    search = begun(max_concurrent=1)
    answer(
        search,
        MakeTrial("a"),
        MakeTrial("b"),
        MakeTrial("c"),
        MakeTrial("d"),
        TrainTo("b", 7),
        CloseTrial("c", now=True),
    )
    assert search.live() == [1]
    assert [(e.kind, e.request, e.reason) for e in search.state.events] == [
        ("closed", "c", "withdrawn"),
        ("created", "a", ""),
    ]
    answer(search, TrainTo("b", 9))
    search.end(1, How.FAILED)
    assert search.live() == [2]
    assert search.trials[2].made.request == "b" and search.trials[2].target == 9
    search.end(2, How.INVALID)
    assert search.trials[3].made.request == "d"
    assert [(e.kind, e.reason) for e in search.state.events if e.kind == "exited"] == [
        ("exited", "failed"),
        ("exited", "invalid"),
    ]


def test_a_trial_may_begin_from_another_or_from_a_checkpoint() -> None:
    search = begun()
    answer(search, MakeTrial("a"), MakeTrial("b", checkpoint="request:a"), MakeTrial("c", checkpoint="ckpt-1"))
    assert search.trials[2].made.from_trial == 1 and search.trials[2].made.from_checkpoint == ""
    assert search.trials[3].made.from_trial == 0 and search.trials[3].made.from_checkpoint == "ckpt-1"


@pytest.mark.parametrize(
    ("operations", "path"),
    [
        ((TrainTo("nobody", 5),), "operations.0.request"),
        ((CloseTrial("nobody"),), "operations.0.request"),
        ((MakeTrial("a"), MakeTrial("a")), "operations.1.request"),
        ((MakeTrial(""),), "operations.0.request"),
        ((MakeTrial("x" * 201),), "operations.0.request"),
        ((MakeTrial("a"), TrainTo("a", 0)), "operations.1.length"),
        ((MakeTrial("a", checkpoint="request:nobody"),), "operations.0.request"),
    ],
)
def test_a_wrong_answer_is_refused_whole(operations: tuple[Operation, ...], path: str) -> None:
    search = begun()
    before = search.state
    with pytest.raises(BadRequest) as caught:
        answer(search, *operations)
    assert caught.value.path == path
    assert search.state == before


def test_a_state_beyond_its_limit_is_refused() -> None:
    with pytest.raises(TooLarge):
        answer(begun(), state=b"x" * (2**20 + 1))


def test_what_comes_too_late_is_no_error() -> None:
    search = begun()
    answer(search, MakeTrial("a"))
    search.end(1, How.FAILED)
    assert answer(search, TrainTo("a", 5), CloseTrial("a", now=True)) == []


def test_shutting_down_waits_for_those_that_live() -> None:
    search = begun(max_concurrent=2)
    answer(search, MakeTrial("a"), MakeTrial("b"), MakeTrial("c"), TrainTo("a", 5))
    assert answer(search, Shutdown()) == [Finish(1)]  # the second runs to its own end
    assert answer(search, MakeTrial("late")) == []
    for number in (1, 2, 3):  # the third has waited for its turn
        assert search.over is None
        search.end(number, How.COMPLETED)
    assert search.over == Over() and len(search.trials) == 3
    assert waiting(search)[-1] == "ended"
    assert not search_events(search.state, 0).over
    assert search_events(search.state, search.state.next_event - 1).over


def test_a_trial_may_be_made_trained_and_closed_in_one_answer() -> None:
    search = begun(max_concurrent=1)
    both = (operation for name in "ab" for operation in (MakeTrial(name), TrainTo(name, 5), CloseTrial(name)))
    actions = answer(search, *both, Shutdown())
    assert [type(action) for action in actions] == [Make, Train, Finish]
    search.end(1, How.COMPLETED)
    assert search.trials[2].target == 5 and isinstance(search.trials[2].told_to_leave, Finish)
    search.end(2, How.COMPLETED)
    assert search.over == Over()


def test_a_failed_shutdown_stops_those_that_live() -> None:
    search = begun(max_concurrent=1)
    answer(search, MakeTrial("a"), MakeTrial("never"))
    assert answer(search, Shutdown(failed=True, detail="no idea")) == [Stop(1)]
    search.end(1, How.STOPPED)
    assert search.over == Over(True, "no idea")


def test_going_on_after_the_end() -> None:
    search = begun()
    answer(search, MakeTrial("a"))
    search.end(1, How.FAILED)
    answer(search, Shutdown())
    assert search.over is not None and search.over.failed
    search.over = None
    search.trials[1].ended = None
    search.tell(Extended(max_trials=9, trials=(1,)))
    events = search_events(search.state, search.state.answered).events
    assert [(event.kind, event.request) for event in events] == [("created", "a"), ("extended", "")]
    assert events[-1].values == {"max_trials": 9.0, "max_time": 0.0}
    assert answer(search, TrainTo("a", 5), MakeTrial("b"))[0] == Train(1, 5)
    assert search.live() == [1, 2]


def test_a_process_that_never_answers_does_not_fill_the_master() -> None:
    search = Search(experiment(Custom(), SPACE), check=False)
    search.tell(Began())
    answer(search, MakeTrial("a"), MakeTrial("b"))
    state = search.state
    for step in range(EVENTS_MAX + 500):
        for action in search.method.decide(state, Validated(1 + step % 2, step, float(step), float(step))):
            assert isinstance(action, Remember)
            state = search.method.apply(state, action.fact)
    assert len(state.events) <= EVENTS_MAX + 1
    newest = [event for event in state.events if event.trial == 1][-1]
    assert newest.step == EVENTS_MAX + 498
    numbers = [event.number for event in state.events]
    assert numbers == sorted(numbers)
    assert len(search_events(state, 0).events) == custom.EVENTS_AT_ONCE


# -- the loop of the process --------------------------------------------------------------------------------------


def test_a_runner_runs_a_method_to_the_end() -> None:
    world = MemorySearch(experiment(Custom(), SPACE), lambda hparams: hparams["x"])
    method = Climber()
    SearchRunner(world, "exp", method).run()
    assert world.search.over == Over()
    assert [trial.made.hparams["x"] for trial in world.search.trials.values()] == [n / 10 for n in range(1, 9)]
    assert world.most == 2
    assert method.seen[-1][1] == "ended"
    assert world.largest <= 6, "answered events are dropped"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_process_killed_anywhere_goes_on_as_if_nothing_had_been(seed: int) -> None:
    """Killed before and after each question, with answers lost on the way: the same trials, each event seen once."""
    quiet = MemorySearch(experiment(Custom(), SPACE), lambda hparams: hparams["x"])
    SearchRunner(quiet, "exp", Climber()).run()
    world = MemorySearch(experiment(Custom(), SPACE), lambda hparams: hparams["x"], faults=Random(seed))
    for _ in range(1000):
        method = Climber()
        try:
            SearchRunner(world, "exp", method, patience_s=0.0).run()
        except (Killed, Unavailable):
            continue
        break
    assert world.search.over == Over()
    made = [trial.made for trial in world.search.trials.values()]
    assert made == [trial.made for trial in quiet.search.trials.values()]
    numbers = [number for number, _, _ in method.seen]
    assert numbers == sorted(set(numbers)), "no event was answered twice"


def test_a_runner_that_was_overtaken_goes_on_from_the_others_state() -> None:
    world = MemorySearch(experiment(Custom(), SPACE), lambda hparams: hparams["x"])
    other = Climber()

    class Overtaken(MemorySearch):
        def __init__(self) -> None:
            self.__dict__ = world.__dict__
            self.once = True

        def search_events(self, experiment: str, after: int, timeout_s: float) -> SearchEvents:
            if self.once and after:  # the other one answers two events before this one asks again
                self.once = False
                other.load(self.search.state.kept)
                for _ in range(2):
                    found = world.search_events(experiment, self.search.state.answered, 1.0)
                    operations = tuple(one for event in found.events for one in other.on_event(event))
                    last = found.events[-1].number
                    world.answer_search(experiment, AnswerSearch(last, operations, other.save()))
            return world.search_events(experiment, after, timeout_s)

    method = Climber()
    SearchRunner(Overtaken(), "exp", method).run()
    assert world.search.over == Over()
    assert len(world.search.trials) == 8


def test_an_experiment_that_ends_before_its_last_events_are_answered_is_no_error() -> None:
    class Gone:
        """Its search is over and it is put away, while the runner still thinks about what it heard last."""

        def __init__(self) -> None:
            self.read = 0

        def search_events(self, experiment: str, after: int, timeout_s: float) -> SearchEvents:
            self.read += 1
            if self.read > 1:
                return SearchEvents(events=(), answered=after, over=True)
            return SearchEvents(events=(SearchEvent(number=1, kind="closed", trial=1),), answered=0)

        def answer_search(self, experiment: str, answer: AnswerSearch) -> None:
            raise NotFound("nothing with this id is live", object=f"workload {experiment}")

    gone = Gone()
    SearchRunner(gone, "exp", Climber()).run()
    assert gone.read == 2


def test_a_refused_answer_reaches_the_user() -> None:
    class Confused(Climber):
        def on_event(self, event: SearchEvent) -> Iterable[Operation]:
            return (TrainTo("nobody", 1),)

    world = MemorySearch(experiment(Custom(), SPACE), lambda hparams: 0.0)
    with pytest.raises(BadRequest):
        SearchRunner(world, "exp", Confused()).run()


def test_exits_of_strangers_are_ignored() -> None:
    search = begun()
    assert search.tell(Exited(3, How.FAILED)) == []
    assert search.tell(Validated(3, 1, 1.0, 1.0)) == []


def test_the_method_in_the_documentation_works() -> None:
    page = (Path(__file__).parents[3] / "docs" / "architecture" / "search.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert example.endswith("run_as_task(Halves())\n")
    names: dict[str, Any] = {}
    exec(compile(example.removesuffix("run_as_task(Halves())\n"), "search.md", "exec"), names)  # noqa: S102
    world = MemorySearch(experiment(Custom(), SPACE), lambda hparams: abs(hparams["x"] - 0.12))
    SearchRunner(world, "exp", names["Halves"]()).run()
    assert [trial.made.hparams["x"] for trial in world.search.trials.values()] == [0.5, 0.25, 0.125, 0.0625]
    assert world.search.over == Over()
    saved = names["Halves"]()
    saved.x, saved.best = 0.125, 0.3
    again = names["Halves"]()
    again.load(saved.save())
    assert (again.x, again.best) == (0.125, 0.3)
