"""What holds for every search method, whatever its trials do and in whatever order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_harness import Chaos, Search, experiment

from clutch.wire.errors import BadRequest
from clutch.wire.experiments import (
    AdaptiveAsha,
    Asha,
    Categorical,
    Const,
    Double,
    Grid,
    Hyperparameter,
    Int,
    Log,
    Method,
    Nested,
    Pbt,
    RandomSearch,
    Single,
)
from clutch.workloads.experiment.search.adaptive_asha import adaptive_plan
from clutch.workloads.experiment.search.base import Began, Exited, Extended, Finish, How, Make, Over, Train, Trained
from clutch.workloads.experiment.search.opening import method_for
from clutch.workloads.experiment.search.pbt import explore
from clutch.workloads.experiment.search.sampling import grid_axes, grid_point, sample

SPACE: dict[str, Hyperparameter] = {
    "lr": Log(-5, -1, count=2),
    "n": Int(1, 9, 3),
    "o": Nested({"m": Double(0, 1, 2), "k": Categorical(("a", "b"))}),
    "c": Const([1]),
}
GRID_POINTS = 24
CONCURRENT = st.integers(0, 5)
TRIALS = st.integers(1, 25)

PLAIN = st.one_of(
    st.just(Single()),
    st.builds(RandomSearch, TRIALS, CONCURRENT),
    st.builds(Grid, CONCURRENT),
)
HALVING = st.one_of(
    st.builds(Asha, TRIALS, st.integers(1, 5), st.sampled_from([1.5, 2.0, 3.0, 4.0]), CONCURRENT, st.booleans()),
    st.builds(
        AdaptiveAsha,
        TRIALS,
        st.sampled_from(["aggressive", "standard", "conservative"]),
        st.integers(1, 5),
        st.just(()),
        st.sampled_from([1.5, 2.0, 3.0, 4.0]),
        CONCURRENT,
        st.booleans(),
    ),
)
POPULATION = st.builds(
    Pbt,
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.2, 0.34, 0.5]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.0, 0.2, 1.0]),
    CONCURRENT,
)
METHODS = st.one_of(PLAIN, HALVING, POPULATION)


def at_most(method: Method) -> int:
    """How many trials may train at once; 0: as many as there are."""
    return 1 if isinstance(method, Single) else method.max_concurrent_trials  # type: ignore[union-attr]


@settings(max_examples=400, deadline=None)
@given(
    method=METHODS,
    max_time=st.sampled_from([1, 7, 100]),
    seed=st.integers(0, 2**31 - 1),
    invalid=st.sampled_from([0.0, 0.05, 0.3]),
    failing=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_every_search_ends_and_keeps_its_promises(
    method: Method, max_time: int, seed: int, invalid: float, failing: float
) -> None:
    failing = min(failing, 0.95 - invalid)
    search = Search(experiment(method, SPACE, max_time=max_time, seed=seed))
    chaos = Chaos(search, Random(seed), invalid=invalid, failing=failing)
    chaos.run()
    assert search.over is not None, "no trial lives and it is not over"
    assert search.overs == 1
    assert sorted(search.trials) == list(range(1, len(search.trials) + 1))
    assert search.method.progress(search.state) == 1.0
    assert search.replayed() == search.state
    hows = [trial.ended for trial in search.trials.values()]
    refused = hows.count(How.INVALID)
    if isinstance(method, RandomSearch | Asha | AdaptiveAsha):
        assert len(search.trials) == method.max_trials + refused
    elif isinstance(method, Grid):
        assert len(search.trials) == GRID_POINTS
    elif isinstance(method, Single):
        assert len(search.trials) == 1
    if at_most(method):
        assert chaos.most <= at_most(method)
    useful = How.COMPLETED in hows or How.STOPPED in hows
    assert search.over.failed == (not useful and (How.FAILED in hows or refused > 0))


@settings(max_examples=100, deadline=None)
@given(method=st.one_of(PLAIN, HALVING), seed=st.integers(0, 1000), one=st.integers(), other=st.integers())
def test_the_same_seed_makes_the_same_trials_in_whatever_order(method: Method, seed: int, one: int, other: int) -> None:
    spec = experiment(method, SPACE, max_time=50, seed=seed)
    runs = []
    for chance in (one, other):
        search = Search(spec, check=False)
        Chaos(search, Random(chance)).run()
        runs.append({number: trial.made.hparams for number, trial in search.trials.items()})
    for number in sorted(runs[0].keys() & runs[1].keys()):
        assert runs[0][number] == runs[1][number]
        if isinstance(method, Grid):
            assert runs[0][number] == grid_point(SPACE, grid_axes(SPACE), number)
        else:
            assert runs[0][number] == sample(SPACE, seed, number)


def test_no_search_tries_for_ever_when_every_trial_refuses() -> None:
    for method in (RandomSearch(5), Asha(5), Asha(5, promotion=True), AdaptiveAsha(5), Pbt(5, 3, 10)):
        search = Search(experiment(method, SPACE, max_time=50), check=False)
        Chaos(search, Random(1), invalid=1.0, failing=0.0).run()
        assert search.over is not None and search.over.failed, method
        assert "refused" in search.over.detail
        assert len(search.trials) <= 200


def test_when_every_trial_fails_the_search_has_failed() -> None:
    for method in (Single(), RandomSearch(5), Grid(), Asha(5), Asha(5, promotion=True), Pbt(4, 3, 10)):
        search = Search(experiment(method, SPACE, max_time=50))
        Chaos(search, Random(1), invalid=0.0, failing=0.0)
        search.tell(Began())
        while search.live():
            search.end(search.live()[0], How.FAILED)
        assert search.over == Over(True, "every trial failed"), method


def test_when_every_trial_was_cancelled_nothing_failed() -> None:
    search = Search(experiment(RandomSearch(3), SPACE))
    search.tell(Began())
    while search.live():
        search.end(search.live()[0], How.CANCELLED)
    assert search.over is not None and not search.over.failed


# -- single, random, grid -----------------------------------------------------------------------------------------


def test_a_single_trial_that_refuses_its_hyperparameters_has_failed() -> None:
    search = Search(experiment(Single(), SPACE))
    search.tell(Began())
    search.end(1, How.INVALID)
    assert search.over is not None and search.over.failed
    assert len(search.trials) == 1


def test_a_grid_skips_points_that_are_refused() -> None:
    search = Search(experiment(Grid(2), SPACE))
    search.tell(Began())
    search.end(1, How.INVALID)
    while search.live():
        search.end(search.live()[0], How.COMPLETED)
    assert [search.trials[number].made.hparams for number in range(1, GRID_POINTS + 1)] == [
        grid_point(SPACE, grid_axes(SPACE), number) for number in range(1, GRID_POINTS + 1)
    ]
    assert search.over is not None and not search.over.failed


def test_with_a_length_trials_are_told_and_end_there() -> None:
    search = Search(experiment(RandomSearch(2, 1), SPACE, max_time=100))
    assert [a for a in search.tell(Began()) if isinstance(a, Train)] == [Train(1, 100)]
    assert search.tell(Trained(1, 50, 0.1)) == []
    assert Finish(1) in search.tell(Trained(1, 100, 0.1))
    assert search.tell(Trained(1, 100, 0.1)) == []
    search.end(1, How.COMPLETED)
    assert search.trials[2].target == 100


def test_without_a_length_trials_end_by_themselves() -> None:
    search = Search(experiment(Single(), SPACE))
    actions = search.tell(Began())
    assert [type(action) for action in actions if not isinstance(action, type(actions[0]))] == [Make]
    assert search.tell(Trained(1, 100, 0.1)) == []


def test_telling_things_twice_changes_nothing() -> None:
    search = Search(experiment(RandomSearch(5, 2), SPACE, max_time=10))
    search.tell(Began())
    assert search.tell(Began()) == []
    search.end(1, How.FAILED)
    state = search.state
    assert search.tell(Exited(1, How.FAILED)) == []
    assert search.tell(Exited(99, How.FAILED)) == []
    assert search.state == state


# -- extending ----------------------------------------------------------------------------------------------------


def finished(method: Method, max_time: int = 0) -> Search:
    search = Search(experiment(method, SPACE, max_time=max_time))
    search.tell(Began())
    while search.live():
        number = search.live()[0]
        if max_time:
            search.tell(Trained(number, search.trials[number].target, float(number)))
            if search.trials[number].told_to_leave is None:
                continue
        search.end(number, How.COMPLETED)
    assert search.over is not None
    return search


def revive(search: Search, *numbers: int) -> None:
    """As the controller does before it tells the search."""
    search.over = None
    for number in numbers:
        search.trials[number].ended = None
        search.trials[number].told_to_leave = None


def test_more_trials_after_the_end() -> None:
    search = finished(RandomSearch(3, 2))
    revive(search)
    search.tell(Extended(max_trials=5))
    assert search.live() == [4, 5]
    assert search.trials[4].made.hparams == sample(SPACE, 7, 4)
    for number in (4, 5):
        search.end(number, How.COMPLETED)
    assert search.over is not None and search.overs == 2


def test_a_longer_single_trial() -> None:
    search = finished(Single(), 100)
    revive(search, 1)
    assert Train(1, 300) in search.tell(Extended(max_time=300, trials=(1,)))
    assert search.tell(Trained(1, 100, 0.0)) == []
    assert Finish(1) in search.tell(Trained(1, 300, 0.0))
    search.end(1, How.COMPLETED)
    assert search.over is not None


def test_a_longer_length_for_trials_that_live() -> None:
    search = Search(experiment(RandomSearch(3, 1), SPACE, max_time=10))
    search.tell(Began())
    assert [a for a in search.tell(Extended(max_time=20)) if isinstance(a, Train)] == [Train(1, 20)]
    search.tell(Trained(1, 20, 0.0))
    search.end(1, How.COMPLETED)
    assert search.trials[2].target == 20


@pytest.mark.parametrize("promotion", [False, True])
def test_a_failed_trial_of_a_halving_search_goes_on_at_its_rung(promotion: bool) -> None:
    search = Search(experiment(Asha(2, 3, 3.0, 2, promotion), SPACE, max_time=9))
    search.tell(Began())
    search.report(1, 1, 0.1)
    search.end(1, How.FAILED)
    search.end(2, How.FAILED)
    assert search.over is not None and search.over.failed
    revive(search, 1, 2)
    actions = search.tell(Extended(trials=(1, 2)))
    assert {a.trial: a.length for a in actions if isinstance(a, Train)} == {1: 3, 2: 1}
    assert not any(entry.value == float("inf") for rung in search.state.brackets[0].rungs for entry in rung)
    for number in (2, 1):
        while search.trials[number].told_to_leave is None and search.trials[number].trains:
            search.report(number, search.trials[number].target, float(number))
    while search.live():
        search.end(search.live()[0], How.COMPLETED)
    assert search.over is not None and not search.over.failed


def test_more_trials_are_shared_by_the_brackets() -> None:
    method = AdaptiveAsha(10, divisor=3, max_rungs=10)
    search = Search(experiment(method, SPACE, max_time=900))
    before = [one.trials for one in adaptive_plan(method, search.spec.search).brackets]
    search.tell(Began())
    search.tell(Extended(max_trials=30))
    after = [bracket.trials for bracket in search.state.brackets]
    assert sum(after) == 30
    assert all(late > early for late, early in zip(after, before, strict=True))


def test_what_cannot_be_extended_says_so_and_changes_nothing() -> None:
    asked = [
        (Single(), Extended(max_trials=2)),
        (Grid(), Extended(max_trials=100)),
        (Asha(3), Extended(max_time=10**6)),
        (Pbt(2, 2, 2), Extended(max_trials=5)),
        (RandomSearch(2), Extended(trials=(17,))),
    ]
    for method, event in asked:
        search = Search(experiment(method, SPACE, max_time=100))
        search.tell(Began())
        state = search.state
        with pytest.raises(BadRequest) as caught:
            search.tell(event)
        assert caught.value.next_step
        assert search.state == state


# -- population based training ------------------------------------------------------------------------------------


def test_a_population_replaces_its_worst_by_copies_of_its_best() -> None:
    search = Search(experiment(Pbt(5, 3, 100, 0.4), SPACE))
    search.tell(Began())
    assert len(search.trials) == 5
    for number in range(1, 6):
        assert len(search.trials) == 5, "the round is not over"
        search.report(number, 100, float(number))
    assert isinstance(search.trials[4].told_to_leave, Finish) and isinstance(search.trials[5].told_to_leave, Finish)
    copies = [search.trials[number].made for number in (6, 7)]
    assert [copy.from_trial for copy in copies] == [1, 2], "each of the best is copied"
    method = search.spec.search.method
    assert isinstance(method, Pbt)
    for copy in copies:
        parent = search.trials[copy.from_trial].made.hparams
        assert copy.hparams == explore(SPACE, parent, method, (7, copy.trial))
    assert all(search.trials[number].target == 200 for number in (1, 2, 3, 6, 7))


def test_what_a_copy_changes_stays_in_range() -> None:
    method = Pbt(2, 2, 1, perturb_factor=0.5, resample_probability=0.0)
    known = sample(SPACE, 7, 1)
    changed = set()
    for trial in range(2, 300):
        found = explore(SPACE, known, method, (7, trial))
        assert 1e-5 <= found["lr"] <= 0.1 and found["lr"] in (
            pytest.approx(known["lr"] * 0.5), pytest.approx(known["lr"] * 1.5), 1e-5, 0.1
        )  # fmt: skip
        assert found["n"] in range(1, 10) and isinstance(found["n"], int)
        assert 0 <= found["o"]["m"] <= 1 and found["o"]["k"] == known["o"]["k"] and found["c"] == [1]
        changed.add(found["lr"])
    assert len(changed) == 2
    drawn = explore(SPACE, known, Pbt(2, 2, 1, resample_probability=1.0), (7, 5))
    assert drawn == sample(SPACE, 7, 5)


def test_small_whole_numbers_change_too() -> None:
    method = Pbt(2, 2, 1, perturb_factor=0.2, resample_probability=0.0)
    found = {explore({"n": Int(-3, 30)}, {"n": 1}, method, (7, trial))["n"] for trial in range(1, 30)}
    assert found == {0, 2}
    found = {explore({"n": Int(-3, 30)}, {"n": 10}, method, (7, trial))["n"] for trial in range(1, 30)}
    assert found == {8, 12}, "rounding adds nothing to a whole result"
    assert explore({"n": Int(-3, 30)}, {"n": 1}, Pbt(2, 2, 1, 0.2, 0.0, 0.0), (7, 1)) == {"n": 1}


def test_copies_begin_before_their_parents_go_on() -> None:
    search = Search(experiment(Pbt(4, 2, 10, 0.25, max_concurrent_trials=1), SPACE))
    search.tell(Began())
    for number in (1, 2, 3, 4):
        search.report(number, 10, float(number))
    assert search.trials[5].made.from_trial == 1
    assert search.trials[1].target == 10, "its parent waits"


def test_a_failed_trial_of_a_population_is_replaced_in_the_next_round() -> None:
    search = Search(experiment(Pbt(3, 2, 10, 0.0), SPACE))
    search.tell(Began())
    search.end(2, How.FAILED)
    search.report(1, 10, 2.0)
    search.report(3, 10, 1.0)
    assert search.trials[4].made.from_trial == 3
    assert search.live() == [1, 3, 4]


# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "max_time", "path"),
    [
        (RandomSearch(0), 0, "searcher.max_trials"),
        (RandomSearch(1, -1), 0, "searcher.max_concurrent_trials"),
        (Asha(5), 0, "searcher.max_time"),
        (Asha(5, divisor=1.0), 10, "searcher.divisor"),
        (Asha(5, num_rungs=0), 10, "searcher.num_rungs"),
        (AdaptiveAsha(5, mode="bold"), 10, "searcher.mode"),
        (AdaptiveAsha(5), 0, "searcher.max_time"),
        (AdaptiveAsha(5, bracket_rungs=(0,)), 10, "searcher.bracket_rungs"),
        (Pbt(0, 1, 1), 0, "searcher.population_size"),
        (Pbt(2, 1, 1, truncate_fraction=0.6), 0, "searcher.truncate_fraction"),
        (Pbt(2, 1, 1, resample_probability=float("nan")), 0, "searcher.resample_probability"),
    ],
)
def test_settings_that_no_search_can_work_with_are_named(method: Method, max_time: int, path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        method_for(experiment(method, SPACE, max_time=max_time))
    assert caught.value.path == path
    assert caught.value.next_step
