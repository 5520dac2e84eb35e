"""Masters that die at the worst moment: nothing that was committed is forgotten, nothing is decided twice."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from experiment_ground import Ground

from clutch.master.metrics_lane.opening import open_metrics
from clutch.master.output.opening import open_output
from clutch.sdk import experiment_calls
from clutch.testing.cluster import until
from clutch.testing.postgres import temporary_server
from clutch.wire.experiment_views import WorkloadView
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.link import OutputPiece
from clutch.wire.metrics import VALIDATION, MetricBatch, MetricPoint


def restart(ground: Ground) -> None:
    ground.cluster.masters[0].start()
    ground.cluster.wait_serving()


def commit_only(address: str, task: str, step: int, loss: float) -> None:
    """What a master leaves that dies when its lane has committed a validation and before anything was decided."""

    async def write() -> None:
        async with open_metrics(address) as lane:
            known = await lane.store.task(TaskId(task))
            source = known.sources[-1]
            point = MetricPoint(VALIDATION, step, {"loss": loss}, time.time())
            batch = MetricBatch(source.sequence + 1, (point,))
            await lane.write(MemberId(TaskId(task), "main", 0), Fence(*_numbers(source.fence)), (batch,))

    asyncio.run(write())


def _numbers(fence: Fence) -> tuple[int, int, int]:
    return fence.generation, fence.epoch, fence.incarnation


def rows(ground: Ground, trial: str, kind: str) -> list[WorkloadView]:
    found = ground.client.items(experiment_calls.list_workloads(trial, limit=1000))
    return [row for row in found if row.kind == kind]


def test_a_validation_whose_master_died_before_it_decided_is_decided(tmp_path: Path) -> None:
    """ASHA stops the trial for a validation that nobody ever said again."""
    with Ground(tmp_path) as ground:
        gate = ground.gate()
        (gate / "1").touch()
        searcher = {"name": "asha", "metric": "loss", "max_time": 4, "max_trials": 2, "num_rungs": 2, "divisor": 2}
        hparams = {"steps": 9, "gate": str(gate), "base": {"type": "double", "minval": 1.0, "maxval": 1.001}}
        experiment = ground.start(hparams, searcher)
        for number in (1, 2):
            ground.until_trial(f"{experiment}.{number}", lambda t: t.last_step == 1, "validated")
        assert [trial.state for trial in ground.trials(experiment)] == ["running", "running"]
        ground.cluster.masters[0].kill()
        data = ground.cluster.folder / "master0"
        commit_only(str(data / "metrics.db"), f"{experiment}.1", 2, 0.1)
        commit_only(str(data / "metrics.db"), f"{experiment}.2", 2, 99.0)
        restart(ground)
        ground.until_trial(f"{experiment}.2", lambda t: t.state in ("stopping", "stopped"), "stopped")
        winner = ground.client.perform(experiment_calls.get_trial(f"{experiment}.1")).view
        assert (winner.last_step, winner.last, winner.state) == (2, 0.1, "running")
        ground.client.perform(experiment_calls.move_experiment(experiment, "kill"))
        ground.until_ended(experiment)


def test_killed_again_and_again_every_step_counts_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    with Ground(tmp_path) as ground:
        gate = ground.gate()
        hparams = {"steps": 30, "gate": str(gate), "base": {"type": "categorical", "vals": [1.0, 2.0]}, "save": 5}
        experiment = ground.start(hparams, {"name": "grid", "metric": "loss"}, max_restarts=5)
        for number in (1, 2):
            until(lambda n=number: ground.output(f"{experiment}.{n}"), "both to begin")
        for step in range(1, 31):
            (gate / str(step)).touch()
            if step % 6 == 0:
                time.sleep(chance.random() * 0.05)  # the moment at which it dies is the point
                ground.cluster.masters[0].kill()
                restart(ground)
        assert ground.until_ended(experiment, 120.0).state == "completed", ground.story(experiment)
        for number in (1, 2):
            trial = ground.client.perform(experiment_calls.get_trial(f"{experiment}.{number}")).view
            assert (trial.last_step, trial.restarts, trial.epoch) == (30, 0, 1), ground.story(experiment)
            validated = [row.step for row in rows(ground, trial.key, "validate")]
            assert validated == list(range(1, 31))
            steps = [row.step for row in rows(ground, trial.key, "checkpoint")]
            assert steps == [5, 10, 15, 20, 25, 30]


def test_a_deletion_is_carried_to_its_end_by_the_next_master(tmp_path: Path) -> None:
    with Ground(tmp_path) as ground:
        experiment = ground.start({"steps": 2})
        ground.until_ended(experiment)
        ground.client.perform(experiment_calls.move_experiment(experiment, "delete"))
        ground.cluster.masters[0].kill()
        restart(ground)

        def gone() -> bool:
            listed = ground.client.perform(experiment_calls.list_experiments()).items
            return experiment not in [view.key for view in listed]

        until(gone, "the experiment to be gone")
        assert ground.output(f"{experiment}.1") == []


@pytest.mark.slow
def test_on_postgresql_it_is_the_same(tmp_path: Path) -> None:
    with temporary_server() as server, Ground(tmp_path, db=server.address()) as ground:
        gate = ground.gate()
        hparams = {"steps": 6, "gate": str(gate), "save": 3, "base": {"type": "double", "minval": 1.0, "maxval": 2.0}}
        experiment = ground.start(hparams, {"name": "random", "metric": "loss", "max_trials": 3}, labels=["pg"])
        (gate / "1").touch()
        for number in (1, 2, 3):
            ground.until_trial(f"{experiment}.{number}", lambda t: t.last_step == 1, "validated")
        ground.cluster.masters[0].kill()
        restart(ground)
        (gate / "all").touch()
        view = ground.until_ended(experiment)
        assert (view.state, view.trials, view.trials_failed) == ("completed", 3, 0)
        listed = ground.client.perform(experiment_calls.list_experiments(label="pg", archived="false")).items
        assert [one.key for one in listed] == [experiment]
        best = ground.client.perform(experiment_calls.list_trials(experiment, order="best")).items
        assert [row.best for row in best] == sorted(row.best for row in best)
        assert len(ground.client.perform(experiment_calls.experiment_metrics(experiment)).items) == 3
        ground.client.perform(experiment_calls.move_experiment(experiment, "archive"))
        assert ground.view(experiment).archived


def test_a_line_whose_master_died_before_it_matched_is_matched(tmp_path: Path) -> None:
    """The line lies in the lane; no agent will ever send it again. The next master reads it all the same."""
    text = "worn out for ever"
    rules = [{"name": "broken", "pattern": "worn out", "action": "cancel_retries"}]
    with Ground(tmp_path) as ground:
        gate = ground.gate()
        hparams = {"steps": 3, "gate": str(gate), "print_at": 1, "text": text, "fail_at": 2}
        experiment = ground.start(hparams, max_restarts=5, output_rules=rules)
        task = f"{experiment}.1"
        until(lambda: ground.output(task) == ["begins at 0"], "it to begin")
        ground.cluster.masters[0].kill()
        (gate / "1").touch()
        spool = ground.cluster.folder / "n1"
        until(lambda: any(text.encode() in path.read_bytes() for path in spooled(spool)), "the line to be printed")
        commit_line(str(ground.cluster.folder / "master0" / "output.db"), task, f"{text}\n".encode())
        restart(ground)
        ground.until_trial(task, lambda trial: trial.labels == ",broken,", "labelled")
        (gate / "all").touch()
        assert ground.until_ended(experiment).state == "failed"
        assert ground.trials(experiment)[0].restarts == 0


def spooled(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 2**20]


def commit_line(address: str, task: str, data: bytes) -> None:
    """What a master leaves that dies when its lane has committed a line and before anybody looked at it."""

    async def write() -> None:
        async with open_output(address, lambda _: False) as lane:
            (stream,) = [one for one in await lane.store.streams(TaskId(task)) if one.stream == "stdout"]
            await lane.write([OutputPiece(stream.member, stream.fence, "stdout", stream.committed, time.time(), data)])

    asyncio.run(write())
