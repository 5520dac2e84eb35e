"""Experiments in seeded worlds: every promise of theirs holds under faults, and broken ones are noticed."""

from __future__ import annotations

import msgspec
import pytest

from clutch.testing.sim.cluster import Cluster
from clutch.testing.sim.mutations import EXPERIMENT_MUTATIONS
from clutch.testing.sim.plan import SimPlan, make_plan
from clutch.testing.sim.run import lived, run_plan
from clutch.wire import facts as f
from clutch.wire.experiment_views import ExperimentView, TrialView
from clutch.wire.experiments import EXPERIMENT_ENDED, KIND, Asha, Custom, ExperimentState, Pbt, RandomSearch
from clutch.workloads.experiment.controller.rows import experiment_view
from clutch.workloads.experiment.machine import notes as n

SEEDS_MAX = 100


def plan_of(seed: int, *, faults: bool = True) -> SimPlan:
    """A seed's day with two experiments in it and one that begins from what they save, whatever else it has."""
    return msgspec.structs.replace(make_plan(seed, faults=faults), experiments=2, borrowers=1)


def unbroken(plan: SimPlan) -> Cluster:
    cluster, outcome = lived(plan)
    assert not outcome.broken, "\n".join([f"seed {outcome.seed}: {outcome.broken}", *outcome.story])
    return cluster


def notes(cluster: Cluster) -> list[tuple[str, float, n.Fact]]:
    kinds: dict[str, str] = {}
    found = []
    for recorded in cluster.truth.history:
        fact = recorded.fact
        if isinstance(fact, f.ControllerOpened):
            kinds[fact.controller] = fact.kind
        elif isinstance(fact, f.ControllerNoted) and kinds[fact.controller] == KIND:
            found.append((fact.controller, recorded.at, n.noted(fact.note)))
    return found


def test_every_promise_holds_under_faults_in_every_kind_of_search_and_of_end() -> None:
    """Those of experiments too. What the simulator never reaches, it does not test."""
    methods: set[type] = set()
    states: set[str] = set()
    seen: set[str] = set()
    borrowed = 0
    for seed in range(40):
        cluster = unbroken(plan_of(seed))
        borrowed += cluster.borrower.begun if cluster.borrower is not None else 0
        for name, _, fact in notes(cluster):
            seen.add(type(fact).__name__)
            if isinstance(fact, n.Moved):
                states.add(fact.state)
            if isinstance(fact, n.TrialOver):
                seen.add(f"trial {fact.state}")
            if isinstance(fact, n.Began):
                opened = next(
                    r.fact for r in cluster.truth.history
                    if isinstance(r.fact, f.ControllerOpened) and r.fact.controller == name
                )  # fmt: skip
                own = cluster.controllers[KIND].open(name, opened.spec)
                methods.add(type(own.exp.spec.search.method))
    assert methods == {RandomSearch, Asha, Pbt, Custom}
    assert borrowed >= 10
    assert states == {str(state) for state in ExperimentState}
    ends = {f"trial {end}" for end in ("completed", "stopped", "cancelled", "failed", "invalid")}
    wanted = {"Deferred", "DeferredTaken", "CleanupEnded", "Pinned", "TrialContinued", "Removed", "Labelled"}
    assert ends | wanted <= seen, (ends | wanted) - seen


def test_a_trial_stopped_by_its_search_gives_its_slots_back_in_its_window() -> None:
    """Without faults: no later than its window and the moment that ending what stays takes."""
    checked = 0
    for seed in range(12):
        cluster = unbroken(plan_of(seed, faults=False))
        history = cluster.truth.history
        ended = {r.fact.member.task: r.at for r in history if isinstance(r.fact, f.MemberExited)}
        windows = {r.fact.task: r.fact.spec.leave_within_s for r in history if isinstance(r.fact, f.TaskSubmitted)}
        for name, at, fact in notes(cluster):
            task = f"{name}.{getattr(fact, 'trial', 0)}"
            if isinstance(fact, n.EndWished) and fact.end is n.End.STOP and task in ended:
                checked += 1
                assert ended[task] - at <= windows[task] + 5.0, f"seed {seed}: {task} held on"  # type: ignore[index]
    assert checked >= 10


def test_trials_beyond_a_lowered_bound_of_slots_leave_in_their_window() -> None:
    """Without faults: of a bounded experiment one trial stays, and no other begins beside it."""
    asked_to_leave = 0
    for seed in range(16):
        cluster = unbroken(plan_of(seed, faults=False))
        bounds: dict[str, int] = {}
        deadlines: dict[str, float] = {}
        staying: dict[str, set[str]] = {}
        for recorded in cluster.truth.history:
            fact, at = recorded.fact, recorded.at
            if isinstance(fact, f.MaxSlotsSet):
                bounds[fact.task.rpartition(".")[0]] = fact.max_slots
            elif isinstance(fact, f.AllocationGranted):
                name = fact.task.rpartition(".")[0]
                staying.setdefault(name, set()).add(fact.task)
                assert not bounds.get(name) or len(staying[name]) == 1, f"seed {seed}: {fact.task} began"
            elif isinstance(fact, f.LeaveAsked):
                name = fact.task.rpartition(".")[0]
                staying[name].discard(fact.task)
                if bounds.get(name):
                    asked_to_leave += 1
                    deadlines[fact.task] = fact.deadline
            elif isinstance(fact, f.MemberExited):
                staying[fact.member.task.rpartition(".")[0]].discard(fact.member.task)
                held_on = at - deadlines.pop(fact.member.task, at)
                assert held_on <= 5.0, f"seed {seed}: {fact.member.task} held on for {held_on} s"
        assert not deadlines
    assert asked_to_leave >= 3


def test_rows_are_the_truth_and_whoever_should_hear_of_it_does() -> None:
    """The journal's views of experiments, written by masters that crashed, against a fold that did not."""
    compared = told = 0
    for seed in range(10):
        cluster = unbroken(plan_of(seed))
        views = cluster.store.views(ExperimentView.table)
        for name, archive in cluster.experiment_promises.archives.items():
            own = cluster.controllers[KIND].load(archive)
            assert views[name] == experiment_view(own), f"seed {seed}"
            assert views[name].state in EXPERIMENT_ENDED
            trials = [key for key in cluster.store.views(TrialView.table) if key.startswith(f"{name}.")]
            assert len(trials) == len(own.exp.trials)
            compared += 1
        owed = [r.fact.token for r in cluster.truth.history if isinstance(r.fact, f.EffectOwed)]
        assert len(owed) == len(set(owed))
        assert set(owed) <= set(cluster.experiment_promises.delivered)
        told += len(owed)
    assert compared >= 10
    assert told >= 30


@pytest.mark.parametrize("name", EXPERIMENT_MUTATIONS)
def test_an_experiment_that_breaks_a_promise_is_caught(name: str) -> None:
    for seed in range(SEEDS_MAX):
        if run_plan(plan_of(seed), EXPERIMENT_MUTATIONS[name]).broken:
            assert not run_plan(plan_of(seed)).broken, "the seed breaks a promise without the mutation too"
            return
    pytest.fail(f"an experiment that {name} was not caught in {SEEDS_MAX} seeds")
