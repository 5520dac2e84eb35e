"""Trials of four ranks over two real nodes: searched, stopped together, restored, refused, killed."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clutch.sdk import experiment_calls
from clutch.testing.cluster import Cluster, until
from clutch.wire.experiment_api import SubmitExperiment
from clutch.wire.experiment_views import ExperimentView, TrialView
from clutch.wire.output import OutputQuery
from clutch.wire.push import CheckpointFile

BEGIN = """
import json, os, sys, time
from pathlib import Path
import clutch
def say(**what):
    print(json.dumps(what, default=str), flush=True)
RANK = int(os.environ["RANK"])
"""
TRAIN = """
def save(run, step):
    with run.checkpoint(step, {"by": {str(RANK): step}}, shard=True) as path:
        (path / f"rank-{RANK}").write_text(str(step))
        (path / "step").write_text(str(step))
def begin(run):
    found = run.restore(selector=["step", f"rank-{RANK}"])
    step = int((found / "step").read_text()) if found else 0
    assert not found or int((found / f"rank-{RANK}").read_text()) == step
    say(begins=step, rank=RANK, id=found.id if found else "", path=found.path if found else "")
    return step
"""


class House:
    """Two nodes of two slots each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder / "cluster")

    def submit(self, text: str, hparams: dict[str, Any], searcher: dict[str, Any] | None = None, **more: Any) -> str:
        script = self.folder / f"script{time.monotonic_ns()}.py"
        script.write_text(BEGIN + TRAIN + textwrap.dedent(text))
        config = {
            "name": "ranks",
            "entrypoint": [sys.executable, str(script)],
            "launch": "ranks",
            "hyperparameters": hparams,
            "searcher": {"name": "single", "metric": "loss", **(searcher or {})},
            "resources": {"slots_per_trial": 4},
            "max_restarts": 0,
            "preemption_timeout": 60,
            **more,
        }
        call = experiment_calls.submit_experiment(SubmitExperiment(config=config))
        return self.cluster.client.perform(call).experiment

    def move(self, experiment: str, how: str) -> None:
        self.cluster.client.perform(experiment_calls.move_experiment(experiment, how))

    def view(self, experiment: str) -> ExperimentView:
        return self.cluster.client.perform(experiment_calls.get_experiment(experiment)).view

    def trials(self, experiment: str) -> list[TrialView]:
        return list(self.cluster.client.perform(experiment_calls.list_trials(experiment, limit=100)).items)

    def output(self, task: str) -> list[str]:
        call = experiment_calls.read_trial_output(task, OutputQuery(task=task, limit=1000))
        return [line.text for line in self.cluster.client.perform(call).lines]

    def said(self, task: str) -> list[dict[str, Any]]:
        """What ranks have said, whatever their launcher writes before it."""
        found = [re.sub(r"^\[rank=\d+\] ", "", line) for line in self.output(task)]
        return [msgspec.json.decode(line) for line in found if line.startswith("{")]

    def until(self, experiment: str, *states: str) -> ExperimentView:
        try:
            return until(lambda: (v := self.view(experiment)).state in states and v, f"{experiment} {states}", 90)  # type: ignore[return-value]
        except AssertionError as error:
            said = ["\n".join(self.output(trial.key)[-60:]) for trial in self.trials(experiment)]
            raise AssertionError(f"{error}\n{self.view(experiment)}\n" + "\n---\n".join(said)) from None

    def checkpoints(self, experiment: str) -> list[Any]:
        found = self.cluster.client.perform(experiment_calls.list_checkpoints(experiment, limit=100)).items
        return sorted(found, key=lambda row: row.step)

    def files(self, checkpoint: str) -> tuple[CheckpointFile, ...]:
        return self.cluster.client.perform(experiment_calls.get_checkpoint(checkpoint)).files


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("ranks"))
    with made.cluster as cluster:
        cluster.start()
        for name in ("n1", "n2"):
            cluster.add_agent(name, 2)
        cluster.wait_nodes("n1", "n2")
        yield made


def test_four_ranks_are_paused_at_one_step_and_go_on_from_one_checkpoint(house: House) -> None:
    text = """
    with clutch.init() as run:
        step = begin(run)
        goal = run.hparams["steps"]
        while step < goal or not run.hparams["ends"] or not Path(run.hparams["ends"]).exists():
            step += 1
            run.report(step, loss=1.0 + RANK, all_ranks=True)
            if run.should_stop():
                break
            time.sleep(0.01)
        save(run, step)
        say(left=step, rank=RANK, reason=run.stop_reason, node=run.distributed.cross_rank)
    """
    ends = house.folder / "ends"
    experiment = house.submit(text, {"steps": 1, "ends": str(ends)})
    trial = f"{experiment}.1"
    until(lambda: len(house.said(trial)) == 4, "four ranks to begin", 60.0)
    assert {(one["begins"], one["id"]) for one in house.said(trial)} == {(0, "")}
    house.move(experiment, "pause")
    house.until(experiment, "paused")
    until(lambda: len([one for one in house.said(trial) if "left" in one]) == 4, "four ranks to leave")
    left = [one for one in house.said(trial) if "left" in one]
    assert len({one["left"] for one in left}) == 1 and {one["reason"] for one in left} == {"paused"}, left
    assert sorted(one["rank"] for one in left) == [0, 1, 2, 3] and {one["node"] for one in left} == {0, 1}
    (saved,) = house.checkpoints(experiment)
    assert saved.step == left[0]["left"]
    assert [file.path for file in house.files(saved.key)] == ["rank-0", "rank-1", "rank-2", "rank-3", "step"]
    ends.touch()
    house.move(experiment, "resume")
    house.until(experiment, "completed")
    again = [one for one in house.said(trial) if "begins" in one][4:]
    assert {(one["begins"], one["id"]) for one in again} == {(saved.step, saved.key)} and len(again) == 4, again
    assert len({one["path"] for one in again}) == 2, "each node has fetched it once"


def test_operations_on_four_ranks_under_a_search_that_promotes(house: House) -> None:
    text = """
    with clutch.init() as run:
        step, lengths = begin(run), []
        for operation in run.operations():
            while step < operation.length:
                step += 1
                if run.should_stop():
                    break
                run.validate(step, loss=run.hparams["base"] / step + RANK, all_ranks=True)
            if run.should_stop():
                break
            lengths.append(operation.length)
            save(run, step)
            operation.complete()
        say(lengths=lengths, rank=RANK)
    """
    searcher = {
        "name": "asha", "max_time": 4, "max_trials": 4, "num_rungs": 2, "divisor": 2, "stop_once": False,
        "max_concurrent_trials": 1,
    }  # fmt: skip
    hparams = {"base": {"type": "double", "minval": 1.0, "maxval": 2.0}}
    experiment = house.submit(text, hparams, searcher)
    view = house.until(experiment, "completed", "failed")
    assert view.state == "completed" and view.trials_failed == 0
    trained = []
    for trial in house.trials(experiment):
        said = [one for one in house.said(trial.key) if "lengths" in one]
        starts: dict[int, list[list[int]]] = {}
        for one in said:
            starts.setdefault(one["rank"], []).append(one["lengths"])
        assert len(starts) == 4 and len({str(found) for found in starts.values()}) == 1, (trial.key, starts)
        trained.append(max(length for lengths in starts[0] for length in lengths))
    assert sorted(trained)[-1] == 4 and sorted(trained)[0] < 4, trained


def test_hyperparameters_that_one_rank_refuses_end_all_of_them(house: House) -> None:
    text = """
    with clutch.init() as run:
        if RANK == 3:
            run.invalid_hparams("too wide for rank 3")
        while not run.should_stop():
            time.sleep(0.01)
        say(stopped=RANK)
    """
    experiment = house.submit(text, {})
    view = house.until(experiment, "completed", "failed")
    (trial,) = house.trials(experiment)
    assert trial.state == "invalid", (view, trial, house.output(trial.key))


def test_a_rank_that_is_killed_in_a_checkpoint_leaves_none(house: House) -> None:
    """The node's other ranks, and those of the other node, hear of it; the trial begins again from the last whole."""
    text = """
    with clutch.init() as run:
        step = begin(run)
        save(run, step + 1)
        with run.checkpoint(step + 2, shard=True) as path:
            (path / f"rank-{RANK}").write_text(str(step + 2))
            (path / "step").write_text(str(step + 2))
            if RANK == 2 and step == 0:
                say(kill=os.getpid())
                time.sleep(120)
        say(done=step + 2)
    """
    experiment = house.submit(text, {}, max_restarts=1)
    trial = f"{experiment}.1"
    (found,) = until(lambda: [one for one in house.said(trial) if "kill" in one], "rank 2 inside", 60.0)
    assert [row.step for row in house.checkpoints(experiment)] == [1]
    os.kill(found["kill"], signal.SIGKILL)
    house.until(experiment, "completed")
    said = house.said(trial)
    begun = [one for one in said if "begins" in one]
    assert sorted(one["begins"] for one in begun) == [0] * 4 + [1] * 4, said
    assert sorted(row.step for row in house.checkpoints(experiment)) in ([1, 2, 3], [2, 3], [3])
