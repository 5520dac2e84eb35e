"""Trials over both nodes, from their configuration to the ranks; and what a trial whose rank failed says of itself."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from launch_ground import PATH, Ground

from clutch.sdk import experiment_calls
from clutch.testing.cluster import until
from clutch.wire.experiment_api import SubmitExperiment
from clutch.wire.experiment_views import TrialView

TRAIN = """
import os, sys
import clutch
with clutch.init() as run:
    rank = int(os.environ["RANK"])
    print("rank", rank, "of", os.environ["WORLD_SIZE"], run.rank, run.size, flush=True)
    if rank == run.hparams.get("fails", -1):
        print("RuntimeError: out of luck", file=sys.stderr)
        sys.exit(9)
    if rank == 0:
        for step in range(3):
            run.report(step, loss=1.0 / (step + 1))
        run.validate(3, loss=0.25)
"""


def trial_of(place: Ground, hparams: dict[str, Any], **more: Any) -> TrialView:
    code = place.folder / f"trial-code-{len(list(place.folder.iterdir()))}"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    client = place.cluster.client
    config = {
        "entrypoint": [sys.executable, "train.py"],
        "hyperparameters": hparams,
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 5, "kind": "artificial"},
        "environment": {"environment_variables": {"PATH": PATH}},
        "max_restarts": 0,
        **more,
    }
    submitted = client.perform(
        experiment_calls.submit_experiment(SubmitExperiment(config=config, code=client.upload(code)))
    )

    def look() -> TrialView | None:
        found = client.perform(experiment_calls.list_trials(submitted.experiment, limit=10)).items
        return found[0] if found and found[0].ended_at else None

    return until(look, "the trial has ended", 90)


LAUNCHES = ["ranks", pytest.param("torchrun", marks=pytest.mark.slow)]


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_trial_over_two_unequal_nodes(two_nodes: Ground, launch: str) -> None:
    trial = trial_of(two_nodes, {}, launch=launch)
    task = two_nodes.cluster.client.task(trial.task)
    lines = [line.text for line in task.output()]
    assert trial.state == "completed", "\n".join([trial.detail, *lines])
    found = sorted(line for line in lines if "] rank " in line)
    assert found == [f"[rank={n}] rank {n} of 5 {n} 5" for n in range(5)]


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_trial_says_which_of_its_ranks_failed(two_nodes: Ground, launch: str) -> None:
    trial = trial_of(two_nodes, {"fails": 4}, launch={"name": launch})
    assert trial.state == "failed", trial
    whole, ended_early = (
        "rank 4 exited with code 9; its last lines: .*RuntimeError: out of luck",
        "rank 4 failed: SystemExit",
    )
    assert re.search(f"{whole}|{ended_early}", trial.detail), trial


def test_a_trial_whose_launcher_is_missing_says_so(two_nodes: Ground) -> None:
    nowhere = {"environment_variables": {"PATH": "/usr/bin:/bin"}}
    trial = trial_of(two_nodes, {}, launch="torchrun", environment=nowhere)
    assert "torchrun is not installed in this environment: pip install torch" in trial.detail, trial
