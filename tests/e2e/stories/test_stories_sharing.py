"""Experiments share a pool with each other and with commands: early stops, preemption, quotas, the most slots."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from stories_ground import Ground

from clutch.sdk import access_calls, calls
from clutch.testing.bars import within
from clutch.testing.cluster import until
from clutch.wire.ids import PoolName
from clutch.wire.specs import PoolSpec, Quota

SLOTS_BACK_S = within(1.0)
DO = ["report", "validate"]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """One node of four slots, and work that may be a victim at once: who wants more has to wait."""
    with Ground(tmp_path_factory.mktemp("sharing"), 4) as found:
        found.client.perform(calls.put_pool(PoolSpec(name=PoolName("default"), min_run_s=0.0)))
        yield found


def test_an_early_stop_gives_its_slots_back(ground: Ground) -> None:
    """Of two trials the worse validates second: it is stopped. From its validation on the clock runs."""
    first, second = ground.gate(), ground.gate()
    searcher = {"name": "asha", "metric": "loss", "max_time": 4, "max_trials": 2, "num_rungs": 2, "divisor": 4}
    base = {"type": "double", "minval": 1.0, "maxval": 2.0}
    do = [f"at 1: wait {first}", "validate", f"at 1: wait {second}"]
    experiment = ground.start(do, 4, searcher=searcher, hparams={"base": base}, resources={"slots_per_trial": 2})
    for number in (1, 2):
        until(lambda task=f"{experiment}.{number}": ground.output(task), "both to begin", 60.0)
    bases = {trial.trial: json.loads(trial.hparams)["base"] for trial in ground.trials(experiment)}
    better, worse = sorted(bases, key=bases.__getitem__)
    first.with_name(f"{first.name}.{better}").touch()
    ground.reached(f"{experiment}.{better}", 1)
    assert ground.held() == 4
    began = time.monotonic()
    first.touch()
    until(lambda: ground.held() == 2, "its slots to be free", SLOTS_BACK_S)
    took_s = time.monotonic() - began
    second.touch()
    ground.ended(experiment)
    states = {trial.trial: trial.state for trial in ground.trials(experiment)}
    assert states == {better: "completed", worse: "stopped"}
    print(f"slots were back {took_s * 1000:.0f} ms after the validation that lost")


def test_for_something_more_important_a_trial_saves_leaves_and_comes_back(ground: Ground) -> None:
    gate, command = ground.gate(), ground.gate()
    resources = {"slots_per_trial": 4, "priority": 50}
    experiment = ground.start([*DO, f"at 3: wait {gate}"], 5, resources=resources)
    ground.reached(f"{experiment}.1", 2)
    wait = f"until [ -e {command} ]; do sleep 0.05; done"
    urgent = ground.client.run("sh", "-c", wait, slots=2, kind="artificial", code=None, priority=10)
    ground.until_trial(f"{experiment}.1", lambda view: view.state == "queued", "waits")
    until(lambda: ground.cluster.state(urgent.id) == "running", "the command to run")
    assert ground.held() == 2
    gate.touch()
    command.touch()
    assert urgent.wait(30).exit_code == 0
    ground.ended(experiment)
    assert ground.kinds(f"{experiment}.1") == ["start", "checkpoint", "preempt", "start", "end"]
    left = next(row for row in ground.workloads(f"{experiment}.1") if row.kind == "preempt")
    assert "preempted" in left.value, left
    trial = ground.trial(f"{experiment}.1")
    assert (trial.restarts, trial.epoch, trial.last_step) == (0, 2, 5)
    assert [step for step, _ in ground.curve(trial.key, "validation", "loss")] == [1, 2, 3, 4, 5]


def test_an_experiment_holds_no_more_than_it_may(ground: Ground) -> None:
    """Three trials that wait at a gate, a bound of two slots; a command takes what is left."""
    gate = ground.gate()
    base = {"type": "categorical", "vals": [1.0, 2.0, 3.0]}
    resources = {"slots_per_trial": 1, "max_slots": 2}
    experiment = ground.start(
        [f"at 1: wait {gate}", *DO], 2, searcher={"name": "grid", "metric": "loss"}, hparams={"base": base},
        resources=resources,
    )  # fmt: skip
    beside = ground.client.run("true", slots=2, kind="artificial", code=None)
    assert beside.wait(30).exit_code == 0, "there was room beside it"

    def states() -> list[str]:
        return sorted(trial.state for trial in ground.trials(experiment))

    until(lambda: states() == ["queued", "running", "running"], "two of three to run")
    assert ground.held() == 2
    third = next(trial.task for trial in ground.trials(experiment) if trial.state == "queued")
    why = ground.client.perform(calls.why_task(third))
    assert "2" in why.sentence and "slots" in why.sentence, why.sentence
    gate.touch()
    assert ground.ended(experiment).trials_failed == 0


def test_a_quota_holds_for_trials_and_commands_together(ground: Ground) -> None:
    gate = ground.gate()
    ground.client.perform(access_calls.set_quota(Quota("workspace:default", 2)))
    try:
        experiment = ground.start([f"at 1: wait {gate}", *DO], 2, resources={"slots_per_trial": 2})
        ground.until_trial(f"{experiment}.1", lambda view: view.state == "running", "runs")
        waits = ground.client.run("true", slots=1, kind="artificial", code=None)
        why = until(lambda: (found := ground.client.perform(calls.why_task(waits.id))).sentence and found, "a reason")
        assert "workspace:default may hold 2 slots at once" in why.sentence
        assert ground.held() == 2
        gate.touch()
        ground.ended(experiment)
        assert waits.wait(30).exit_code == 0
    finally:
        ground.client.perform(access_calls.remove_quota("workspace:default"))
