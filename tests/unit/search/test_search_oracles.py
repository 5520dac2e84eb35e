"""Successive halving to the number: brackets, concurrency, rungs, previews, and who trains how long."""

from __future__ import annotations

from collections import Counter

import pytest
from search_harness import Search, Value, experiment, run_in_order

from clutch.wire.errors import BadRequest
from clutch.wire.experiments import AdaptiveAsha, Asha, Grid, Int, Method, Pbt, RandomSearch, SearchSpec, Single, Tpe
from clutch.workloads.experiment.search.adaptive_asha import (
    adaptive_plan,
    bracket_rungs,
    bracket_trials,
    bracket_widths,
)
from clutch.workloads.experiment.search.base import Began, Exited, Finish, How, Make, Stop, Train, Trained, Validated
from clutch.workloads.experiment.search.preview import preview
from clutch.workloads.experiment.search.rungs import halvings, rung_lengths


@pytest.mark.parametrize(
    ("max_trials", "divisor", "rungs", "trials"),
    [
        (20, 3, (3, 2, 1), (12, 5, 3)),
        (50, 3, (4, 3), (35, 15)),
        (50, 4, (3, 2), (37, 13)),
        (100, 4, (4, 3, 2), (70, 22, 8)),
        (3, 4, (3, 2, 1), (1, 1, 1)),  # never more than asked for
        (4, 4, (5, 2, 1), (2, 1, 1)),
    ],
)
def test_trials_of_brackets(max_trials: int, divisor: float, rungs: tuple[int, ...], trials: tuple[int, ...]) -> None:
    assert bracket_trials(max_trials, divisor, rungs) == trials


@pytest.mark.parametrize(
    ("max_concurrent", "divisor", "trials", "widths"),
    [
        (0, 3, (9, 3, 1), (3, 3, 3)),
        (11, 3, (9, 3, 1), (4, 4, 3)),
        (0, 4, (40, 10), (10, 10)),
        (1, 4, (40, 10), (1, 1)),
    ],
)
def test_concurrency_of_brackets(
    max_concurrent: int, divisor: float, trials: tuple[int, ...], widths: tuple[int, ...]
) -> None:
    assert bracket_widths(max_concurrent, divisor, trials) == widths


@pytest.mark.parametrize(
    ("rungs", "max_time", "divisor", "lengths"),
    [
        (3, 9, 3, (1, 3, 9)),
        (4, 10, 2, (1, 2, 5, 10)),
        (1, 9, 4, (9,)),
        (3, 900, 3, (100, 300, 900)),
        (3, 9000, 3, (1000, 3000, 9000)),
        (5, 4, 4, (1, 4)),  # rungs at the same length are one
        (6, 243, 3, (1, 3, 9, 27, 81, 243)),
    ],
)
def test_lengths_of_rungs(rungs: int, max_time: int, divisor: float, lengths: tuple[int, ...]) -> None:
    assert rung_lengths(rungs, max_time, divisor) == lengths


@pytest.mark.parametrize(
    ("count", "divisor", "times"), [(243, 3, 5), (242, 3, 4), (1000, 10, 3), (1, 4, 0), (1024, 4, 5), (125, 5, 3)]
)
def test_how_often_a_number_is_divided_does_not_suffer_from_rounding(count: int, divisor: float, times: int) -> None:
    assert halvings(count, divisor) == times


@pytest.mark.parametrize(
    ("method", "max_time", "brackets"),
    [
        (AdaptiveAsha(10, max_concurrent_trials=2), 100, [(2, 7, 1), (1, 3, 1)]),
        (
            AdaptiveAsha(10, mode="conservative", divisor=3, max_concurrent_trials=5),
            1000,
            [(3, 7, 2), (2, 2, 2), (1, 1, 1)],
        ),
        (AdaptiveAsha(500), 1024, [(5, 354, 6), (4, 110, 5), (3, 36, 5)]),
        (
            AdaptiveAsha(500, mode="conservative"),
            1024,
            [(5, 341, 4), (4, 105, 3), (3, 35, 3), (2, 13, 3), (1, 6, 3)],
        ),
        (AdaptiveAsha(500, mode="aggressive"), 1024, [(5, 500, 16)]),
        (AdaptiveAsha(20, bracket_rungs=(1, 3, 2), divisor=3), 1024, [(3, 12, 6), (2, 5, 5), (1, 3, 5)]),
    ],
)
def test_brackets(method: AdaptiveAsha, max_time: int, brackets: list[tuple[int, int, int]]) -> None:
    plan = adaptive_plan(method, SearchSpec(method=method, max_time=max_time))
    assert [(one.rungs, one.trials, one.concurrent) for one in plan.brackets] == brackets


def test_there_are_never_more_brackets_than_trials() -> None:
    assert len(bracket_rungs(AdaptiveAsha(2, mode="conservative", divisor=1.1), 1000)) == 2
    with pytest.raises(BadRequest) as caught:
        bracket_rungs(AdaptiveAsha(2, bracket_rungs=(3, 2, 1)), 1000)
    assert caught.value.path == "searcher.max_trials"


# -- previews -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promotion", [False, True])
@pytest.mark.parametrize(
    ("method", "max_time", "lines"),
    [
        (AdaptiveAsha(10, divisor=3, max_rungs=10), 900, {100: 5, 300: 3, 900: 2}),
        (AdaptiveAsha(500, mode="aggressive"), 1024, {4: 375, 16: 94, 64: 24, 256: 6, 1024: 1}),
        (AdaptiveAsha(500), 1024, {4: 266, 16: 149, 64: 65, 256: 16, 1024: 4}),
        (AdaptiveAsha(500, mode="conservative"), 1024, {4: 256, 16: 143, 64: 63, 256: 25, 1024: 13}),
    ],
)
def test_preview_of_halving(method: AdaptiveAsha, max_time: int, lines: dict[int, int], promotion: bool) -> None:
    asked = AdaptiveAsha(method.max_trials, method.mode, method.max_rungs, divisor=method.divisor, promotion=promotion)
    shown = preview(experiment(asked, max_time=max_time))
    assert {line.length: line.trials for line in shown.lines} == lines
    assert not shown.exact
    assert shown.trials == method.max_trials
    assert shown.total == sum(length * count for length, count in lines.items())


def test_preview_of_the_others() -> None:
    space = {"n": Int(1, 8, 8)}

    def outline(method: Method, max_time: int = 0) -> tuple[int, int, dict[int, int], bool, int, int]:
        shown = preview(experiment(method, space, max_time=max_time))
        lines = {line.length: line.trials for line in shown.lines}
        return shown.trials, shown.total, lines, shown.exact, shown.concurrent, len(shown.samples)

    assert outline(Single(), 10) == (1, 10, {10: 1}, True, 1, 1)
    assert outline(RandomSearch(20), 0) == (20, 0, {0: 20}, True, 16, 5)
    assert outline(RandomSearch(20, 0), 5) == (20, 100, {5: 20}, True, 20, 5)
    assert outline(Grid(), 2) == (8, 16, {2: 8}, True, 8, 5)
    assert outline(Tpe(30), 2) == (30, 60, {2: 30}, True, 4, 0)
    assert outline(Pbt(10, 3, 100)) == (14, 3000, {100: 2, 200: 2, 300: 10}, False, 10, 5)
    assert outline(Asha(16, num_rungs=2, max_concurrent_trials=0), 8) == (16, 56, {2: 12, 8: 4}, False, 4, 5)


def test_the_samples_of_a_preview_are_the_trials_that_will_be() -> None:
    for method in (RandomSearch(3), Grid(), Asha(3), AdaptiveAsha(3), Pbt(3, 1, 1)):
        spec = experiment(method, {"n": Int(1, 1000, 3)}, max_time=100)
        search = Search(spec)
        search.tell(Began())
        made = tuple(trial.made.hparams for trial in search.trials.values())
        assert preview(spec).samples == made[:5], method


# -- whole searches -----------------------------------------------------------------------------------------------


def reached(method: Method, value: Value, max_time: int) -> dict[int, int]:
    """How many trials trained to which length."""
    search = run_in_order(experiment(method, max_time=max_time), value, check=True)
    assert search.over is not None and not search.over.failed
    return dict(Counter(trial.longest for trial in search.trials.values()))


STOPPING = Asha(10, num_rungs=3, divisor=3, max_concurrent_trials=3)
PROMOTING = Asha(12, num_rungs=3, divisor=3, promotion=True)


def test_stopping_with_ever_worse_trials_lets_one_through() -> None:
    assert reached(STOPPING, lambda trial, _: float(trial), 900) == {900: 1, 100: 9}


def test_stopping_with_ever_better_trials_lets_all_through() -> None:
    assert reached(STOPPING, lambda trial, _: -float(trial), 900) == {900: 10}


def test_stopping_with_equal_trials_lets_all_through() -> None:
    """A result takes its place before those that are as good."""
    assert reached(STOPPING, lambda trial, _: 1.0, 900) == {900: 10}


def test_promotion_of_equal_trials() -> None:
    assert reached(PROMOTING, lambda trial, _: 1.0, 9000) == {9000: 1, 3000: 3, 1000: 8}


def test_promotion_does_not_wait_for_better_ones() -> None:
    """An early mediocre trial is promoted; later, better ones are promoted as well."""
    found = reached(PROMOTING, lambda trial, _: -float(trial), 9000)
    assert sum(found.values()) == 12
    assert found[9000] > 1


def test_promotion_lengths_count_from_the_beginning() -> None:
    search = Search(experiment(Asha(1, num_rungs=3, divisor=3, promotion=True), max_time=9000))
    assert Train(1, 1000) in search.tell(Began())


def test_the_brackets_of_a_tournament_together() -> None:
    """Ever worse, one at a time in each bracket: the first of each bracket goes to the top."""
    found = reached(AdaptiveAsha(10, divisor=3, max_rungs=10), lambda trial, _: float(trial), 900)
    assert found == {100: 6, 300: 2, 900: 2}


# -- halving, step by step ----------------------------------------------------------------------------------------


def stopping(trials: int = 10, concurrent: int = 3) -> Search:
    search = Search(experiment(Asha(trials, num_rungs=3, divisor=3, max_concurrent_trials=concurrent), max_time=900))
    search.tell(Began())
    return search


def entries(search: Search) -> list[list[tuple[int, float]]]:
    return [[(entry.trial, entry.value) for entry in rung] for rung in search.state.brackets[0].rungs]


def test_a_stopped_trial_is_compared_once_and_replaced_once() -> None:
    search = stopping()
    search.report(1, 100, 0.1)
    search.report(2, 100, 0.2)
    assert isinstance(search.trials[2].told_to_leave, Stop)
    for time in (101, 200, 900):
        search.report(2, time, 0.0)
    assert entries(search) == [[(1, 0.1), (2, 0.2)], [], []]
    assert len(search.trials) == 3
    search.end(2, How.STOPPED)
    assert len(search.trials) == 4
    search.tell(Exited(2, How.STOPPED))
    assert len(search.trials) == 4


def test_reports_between_rungs_say_nothing() -> None:
    search = stopping()
    for time in (1, 50, 99):
        search.report(1, time, 0.5)
    assert entries(search) == [[], [], []]
    search.report(1, 250, 0.4)
    assert entries(search) == [[(1, 0.4)], [], []]
    search.report(1, 299, 0.1)
    assert entries(search) == [[(1, 0.4)], [], []]


def test_one_report_may_clear_all_rungs() -> None:
    search = stopping()
    search.report(1, 1000, 0.5)
    assert entries(search) == [[(1, 0.5)], [(1, 0.5)], [(1, 0.5)]]
    assert isinstance(search.trials[1].told_to_leave, Finish)


def test_a_trial_that_fails_counts_as_the_worst_where_it_was() -> None:
    search = stopping()
    search.report(1, 100, 0.5)
    search.end(1, How.FAILED)
    assert entries(search) == [[(1, 0.5)], [(1, float("inf"))], []]
    assert len(search.trials) == 4


def test_a_trial_that_refuses_its_hyperparameters_leaves_no_trace() -> None:
    search = stopping(trials=3)
    search.report(1, 300, 0.5)
    search.end(1, How.INVALID)
    assert entries(search) == [[], [], []]
    assert len(search.trials) == 4
    for number in (2, 3, 4):
        search.report(number, 900, 1.0)
        search.end(number, How.COMPLETED)
    assert search.over is not None and not search.over.failed


def test_training_that_is_said_to_be_done_counts_as_a_report() -> None:
    search = stopping()
    actions = search.tell(Trained(1, 900, 0.5))
    assert entries(search)[2] == [(1, 0.5)]
    assert Finish(1) in actions


def test_ties_go_before_when_stopping_and_behind_when_promoting() -> None:
    search = stopping()
    search.tell(Validated(1, 100, 100.0, 0.5))
    search.tell(Validated(2, 100, 100.0, 0.5))
    assert [trial for trial, _ in entries(search)[0]] == [2, 1]
    resting = Search(experiment(PROMOTING, max_time=9000))
    resting.tell(Began())
    resting.tell(Trained(1, 1000, 0.5))
    resting.tell(Trained(2, 1000, 0.5))
    assert [trial for trial, _ in entries(resting)[0]] == [1, 2]
    assert [action for action in resting.tell(Trained(3, 1000, 0.5)) if isinstance(action, Train)] == [Train(1, 3000)]


def test_a_promoted_trial_that_is_gone_counts_as_the_worst_there() -> None:
    search = Search(experiment(Asha(6, num_rungs=3, divisor=2, promotion=True, max_concurrent_trials=2), max_time=400))
    search.tell(Began())
    search.report(1, 100, 0.1)  # rests: one result promotes nobody, so another is made
    assert len(search.trials) == 3
    search.end(1, How.CANCELLED)
    search.report(2, 100, 0.2)  # now the best of two is promoted, but it is gone
    assert entries(search)[1] == [(1, float("inf"))]
    assert len(search.trials) == 4


def test_the_most_at_once_holds_over_all_brackets() -> None:
    method = AdaptiveAsha(20, mode="conservative", divisor=2, max_concurrent_trials=1)
    search = run_in_order(experiment(method, max_time=64), lambda trial, _: float(trial), check=True)
    first = Search(experiment(method, max_time=64))
    assert sum(isinstance(action, Make) for action in first.tell(Began())) == 1
    assert len(search.trials) == 20
