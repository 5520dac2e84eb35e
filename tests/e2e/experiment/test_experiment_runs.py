"""Experiments on a real cluster: submitted, run, looked at, compared."""

from __future__ import annotations

import concurrent.futures
import math

import pytest
from experiment_ground import Ground

from clutch.sdk import calls, experiment_calls
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.experiment_api import SubmitExperiment


def test_a_single_trial_runs_to_its_end_and_is_looked_at(ground: Ground) -> None:
    experiment = ground.start({"steps": 4, "base": 2.0, "save": 2}, labels=["blue", "round"])
    view = ground.until_ended(experiment)
    assert (view.state, view.trials, view.trials_failed) == ("completed", 1, 0)
    assert (view.has_best, view.best, view.best_trial, view.best_step) == (True, 0.5, 1, 4)
    (trial,) = ground.trials(experiment)
    assert (trial.key, trial.state, trial.last_step, trial.checkpoint_step) == (f"{experiment}.1", "completed", 4, 4)
    detail = ground.client.perform(experiment_calls.get_experiment(experiment))
    assert detail.config["hyperparameters"]["steps"] == 4
    assert detail.best is not None and detail.best.key == trial.key
    rows = ground.client.perform(experiment_calls.list_workloads(trial.key)).items
    kinds = [row.kind for row in rows]
    assert kinds.count("validate") == 4 and kinds.count("checkpoint") == 2 and kinds[-1] == "end"
    assert [row.step for row in rows if row.kind == "validate"] == [1, 2, 3, 4]


def test_metrics_of_a_trial_and_curves_of_all(ground: Ground) -> None:
    hparams = {"steps": 6, "base": {"type": "categorical", "vals": [1.0, 2.0, 3.0]}}
    experiment = ground.start(hparams, {"name": "grid", "metric": "loss"})
    assert ground.until_ended(experiment).trials == 3
    trial = ground.trials(experiment)[0]
    (series,) = ground.client.perform(
        experiment_calls.trial_metrics(trial.key, group="validation", name="loss")
    ).items  # fmt: skip
    assert [point.step for point in series.points] == [1, 2, 3, 4, 5, 6]
    latest = {
        (one.group, one.name): one.value
        for one in ground.client.perform(experiment_calls.latest_metrics(trial.key)).items
    }
    assert latest["training", "speed"] == 6.0
    curves = ground.client.perform(experiment_calls.experiment_metrics(experiment, points=3)).items
    assert [curve.member.task for curve in curves] == [f"{experiment}.{n}" for n in (1, 2, 3)]
    assert all(len(curve.points) <= 3 and curve.total == 6 for curve in curves)
    (one,) = ground.client.perform(experiment_calls.experiment_metrics(experiment, name="loss", trial=[2])).items
    assert one.member.task == f"{experiment}.2" and math.isclose(float(one.points[-1].value), 2.0 / 6)
    summary = ground.client.perform(experiment_calls.get_trial(trial.key)).summaries
    assert {(s.group, s.name, s.count) for s in summary} >= {("validation", "loss", 6), ("training", "speed", 6)}
    best = ground.client.perform(experiment_calls.list_trials(experiment, order="best")).items
    assert [row.best for row in best] == sorted(row.best for row in best)
    first = ground.client.perform(experiment_calls.list_trials(experiment, order="best", limit=2))
    second = ground.client.perform(experiment_calls.list_trials(experiment, order="best", limit=2, after=first.next))
    assert [row.key for row in (*first.items, *second.items)] == [row.key for row in best]


def test_the_same_key_is_the_same_experiment(ground: Ground) -> None:
    config = ground.config({"steps": 1})
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: ground.submit(config, key="once").experiment, range(4)))
    assert len(set(found)) == 1
    ground.until_ended(found[0])
    assert ground.submit(config, key="once").experiment == found[0], "also when it is over"
    assert ground.submit(config, key="twice").experiment != found[0]
    assert ground.submit(config).experiment != ground.submit(config).experiment


def test_names_and_beginnings_are_enough(ground: Ground) -> None:
    experiment = ground.start({"steps": 1}, name="named-once")
    ground.until_ended(experiment)
    assert ground.view("named-once").key == experiment
    assert ground.view(experiment[:7]).key == experiment
    assert ground.client.perform(experiment_calls.get_trial("named-once.1")).view.key == f"{experiment}.1"
    other = ground.start({"steps": 1}, name="named-twice")
    ground.until_ended(other)
    ground.until_ended(ground.start({"steps": 1}, name="named-twice"))
    with pytest.raises(Conflict, match="several experiments fit"):
        ground.view("named-twice")
    with pytest.raises(NotFound):
        ground.view("nobody")
    with pytest.raises(NotFound):
        ground.client.perform(experiment_calls.get_trial(f"{experiment}.7"))
    listed = ground.client.perform(experiment_calls.list_experiments(name="named-once")).items
    assert [view.key for view in listed] == [experiment]


def test_what_cannot_work_is_said_before_anything_runs(ground: Ground) -> None:
    with pytest.raises(BadRequest, match="entrypoint"):
        ground.submit({"name": "x", "searcher": {"name": "single", "metric": "loss"}})
    with pytest.raises(BadRequest, match="no pool"):
        ground.start({}, resources={"slots_per_trial": 1, "resource_pool": "nowhere"})
    with pytest.raises(BadRequest, match="no secret"):
        ground.start({}, environment={"secrets": ["nothing=VARIABLE"]})
    with pytest.raises(BadRequest, match="not uploaded"):
        ground.submit(ground.config({}), code="sha256:" + "0" * 64)
    with pytest.raises(NotFound):
        ground.submit(ground.config({}), workspace="nowhere")
    with pytest.raises(NotFound):
        ground.submit(ground.config({}), template="nothing")
    with pytest.raises(NotFound):
        ground.submit(ground.config({}), parent="nothing")


def test_a_search_is_previewed_and_its_words_are_a_schema(ground: Ground) -> None:
    searcher = {"name": "asha", "metric": "loss", "max_time": 16, "max_trials": 16, "num_rungs": 3, "divisor": 4}
    asked = SubmitExperiment(config=ground.config({"base": {"type": "double", "minval": 1.0, "maxval": 2.0}}, searcher))
    before = len(ground.client.perform(experiment_calls.list_experiments(limit=1000)).items)
    preview = ground.client.perform(experiment_calls.preview_experiment(asked))
    assert preview.method == "asha" and preview.trials == 16 and preview.samples
    assert len(ground.client.perform(experiment_calls.list_experiments(limit=1000)).items) == before
    assert "properties" in ground.client.perform(experiment_calls.config_schema())


def test_lists_are_filtered_ordered_and_paged(ground: Ground) -> None:
    made = [ground.start({"steps": 1}, labels=["paged", f"n{n}"], name=f"paged{n}") for n in range(5)]
    for experiment in made:
        ground.until_ended(experiment)

    def keys(**filters: object) -> list[str]:
        return [view.key for view in ground.client.items(experiment_calls.list_experiments(**filters))]

    assert keys(label="paged", order="submitted_at") == made
    assert keys(label="paged", limit=2) == made[::-1]
    assert keys(label="n3") == [made[3]]
    assert keys(label="page") == [], "a label is a whole word"
    assert keys(label="paged", state="active") == []
    assert keys(label="paged", archived="true") == []
    assert keys(name="paged1,paged2", order="name") == [made[1], made[2]]
    assert keys(workspace="elsewhere") == []
    with pytest.raises(BadRequest, match="no state 'asleep'"):
        keys(state="active,asleep")
    assert made[0] in keys(method="single", owner="admin", archived="false", limit=1000)


def test_why_an_experiment_stands_where_it_does(ground: Ground) -> None:
    gate = ground.gate()
    experiment = ground.start({"steps": 2, "gate": str(gate)}, resources={"slots_per_trial": 3})
    waits = ground.start({"steps": 2}, resources={"slots_per_trial": 4})
    ground.until_trial(f"{experiment}.1", lambda t: t.state == "running", "runs")
    why = ground.client.perform(experiment_calls.why_experiment(waits))
    assert "1 queued" in why.sentence and why.story[0].startswith(f"{waits}.1: ")
    (gate / "all").touch()
    ground.until_ended(experiment)
    ground.until_ended(waits)
    assert "completed" in ground.client.perform(experiment_calls.why_experiment(waits)).sentence
    task = ground.client.perform(calls.get_task(f"{waits}.1")).task
    assert task.kind == "trial" and task.state == "ended"
