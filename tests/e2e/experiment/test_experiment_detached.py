"""Runs that nobody schedules: they report like a member, are begun again under their key, and say how they ended."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from experiment_ground import Ground

from clutch.runtime.http import MasterConnection
from clutch.runtime.trial_client import TrialClient
from clutch.sdk import calls, experiment_calls
from clutch.sdk.call import Call
from clutch.wire.errors import NotAuthenticated, NotFound, Stale
from clutch.wire.experiment_api import BeginDetached, DetachedBegun
from clutch.wire.metrics import VALIDATION, MetricBatch, MetricPoint
from clutch.wire.output import OutputPage, OutputQuery
from clutch.wire.push import CommitManifest


@pytest.fixture(autouse=True)
def opened() -> Iterator[list[TrialClient]]:
    """Every client that a test opens is closed with it."""
    OPENED.clear()
    yield OPENED
    for client in OPENED:
        client.close()


OPENED: list[TrialClient] = []


def begin(ground: Ground, key: str, **more: object) -> tuple[DetachedBegun, TrialClient]:
    wanted = BeginDetached(name="elsewhere", key=key, hparams={"lr": 0.1, "deep": {"type": "x"}}, **more)
    begun = ground.client.perform(experiment_calls.begin_detached(wanted))
    OPENED.append(TrialClient(MasterConnection(ground.cluster.urls, begun.token), try_s=10.0))
    return begun, OPENED[-1]


def batch(number: int, step: int, loss: float) -> tuple[MetricBatch, ...]:
    return (MetricBatch(number, (MetricPoint(VALIDATION, step, {"loss": loss}, time.time()),)),)


def test_it_reports_saves_prints_and_ends(ground: Ground) -> None:
    begun, client = begin(ground, "first")
    assert ground.view(begun.experiment).state == "active"
    assert client.metrics(batch(1, 1, 0.5)) == 1
    client.put_metadata({"host": "laptop"})
    client.progress(0.5, "half")
    begun_checkpoint = client.begin_checkpoint(3)
    client.commit_checkpoint(begun_checkpoint.id, CommitManifest(step=3))
    say(ground, begun, 0, b"one\ntwo\n")
    say(ground, begun, 0, b"one\ntwo\n")  # a repeat
    say(ground, begun, 8, b"three\n")
    client.ended(failed=False, detail="")
    view = ground.until_ended(begun.experiment)
    (trial,) = ground.trials(begun.experiment)
    assert (view.state, view.best, trial.state, trial.checkpoint_step) == ("completed", 0.5, "completed", 3)
    detail = ground.client.perform(experiment_calls.get_trial(trial.key))
    assert detail.hparams == {"lr": 0.1, "deep": {"type": "x"}} and detail.metadata == {"host": "laptop"}
    lines = [line.text for line in ground.client.perform(output_of(trial.key)).lines]
    assert lines == ["one", "two", "three"]
    with pytest.raises((Stale, NotAuthenticated)):
        client.metrics(batch(2, 2, 0.4))


def output_of(trial: str) -> Call[OutputPage]:
    return experiment_calls.read_trial_output(trial, OutputQuery(task=trial))


def say(ground: Ground, begun: DetachedBegun, offset: int, data: bytes) -> None:
    body = {"stream": "stdout", "offset": offset, "data": base64.b64encode(data).decode(), "at": time.time()}
    headers = {"Authorization": f"Bearer {begun.token}"}
    with httpx.Client(base_url=ground.cluster.urls[0], trust_env=False) as client:
        answer = client.post("/api/v1/run/output", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["offset"] == offset + len(data)


def test_the_same_key_goes_on_with_the_same_trial_and_the_earlier_start_is_over(ground: Ground) -> None:
    first, early = begin(ground, "again")
    early.metrics(batch(1, 1, 0.5))
    made = early.begin_checkpoint(1)
    early.commit_checkpoint(made.id, CommitManifest(step=1))
    second, late = begin(ground, "again")
    assert (second.experiment, second.task, second.epoch) == (first.experiment, first.task, first.epoch + 1)
    assert (second.checkpoint, second.checkpoint_step) == (made.id, 1)
    with pytest.raises((Stale, NotAuthenticated)):
        early.metrics(batch(2, 2, 0.1))
    late.metrics(batch(1, 2, 0.3))
    assert late.checkpoint(made.id).step == 1
    late.ended(failed=True, detail="it broke")
    assert ground.until_ended(first.experiment).state == "failed"
    third, last = begin(ground, "again")
    assert third.epoch == second.epoch + 1 and ground.view(first.experiment).state == "active"
    last.ended(failed=False, detail="")
    assert ground.until_ended(first.experiment).state == "completed"
    other, client = begin(ground, "another")
    assert other.experiment != first.experiment
    client.ended(failed=False, detail="")


def test_it_survives_the_death_of_its_master(tmp_path: Path) -> None:
    with Ground(tmp_path, slots=0) as ground:
        begun, client = begin(ground, "key")
        client.metrics(batch(1, 1, 0.5))
        ground.cluster.masters[0].kill()
        ground.cluster.masters[0].start()
        ground.cluster.wait_serving()
        client.heartbeat()
        client.metrics((*batch(1, 1, 0.5), *batch(2, 2, 0.25)))
        client.ended(failed=False, detail="")
        view = ground.until_ended(begun.experiment)
        assert (view.state, view.best, view.best_step) == ("completed", 0.25, 2)
        with pytest.raises(NotFound):
            ground.client.perform(calls.get_task(begun.task))


def test_a_script_runs_detached_by_itself(ground: Ground, tmp_path: Path) -> None:
    """``clutch.init(detached=True)`` in a plain process on this machine."""
    token = (ground.cluster.folder / "master0" / "local.token").read_text().strip()
    script = (
        "import clutch\n"
        "with clutch.init(hparams={'lr': 0.5}, detached=True, name='script') as run:\n"
        "    print('hello from elsewhere', flush=True)\n"
        "    for step in (1, 2, 3):\n"
        "        run.validate(step, loss=1.0 / step)\n"
        "    with run.checkpoint(3) as folder:\n"
        "        (folder / 'model').write_text('three')\n"
    )
    around = {**os.environ, "CLUTCH_MASTER": ground.cluster.urls[0], "CLUTCH_TOKEN": token}
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, cwd=tmp_path, env=around, capture_output=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr.decode()
    (view,) = ground.client.perform(experiment_calls.list_experiments(name="script")).items
    ended = ground.until_ended(view.key)
    assert (ended.state, ended.best_step) == ("completed", 3)
    (row,) = ground.client.perform(experiment_calls.list_checkpoints(view.key)).items
    assert ground.download(experiment_calls.get_checkpoint_file(row.key, "model")) == b"three"
    lines = [line.text for line in ground.client.perform(output_of(f"{view.key}.1")).lines]
    assert "hello from elsewhere" in lines
