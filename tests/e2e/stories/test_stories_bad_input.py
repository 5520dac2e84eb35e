"""What people get wrong, and disks: said at once where it can be known, and never at the cost of what was saved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stories_ground import Ground

from clutch.sdk import access_calls, experiment_calls
from clutch.testing import seaweed
from clutch.wire.access import NewSecret
from clutch.wire.errors import BadRequest

TEN_WRONG = """\
name: [not, a, name]
entrypoint: train:Trial
max_restarts: -1
hyperparametres: {}
hyperparameters:
  lr: {type: log, minval: 3, maxval: 1}
  act: {type: categorical, vals: []}
searcher: {name: random, metric: loss, max_trials: 0}
resources: {slots_per_trial: -2, priority: 1000}
bind_mounts: [{host_path: relative, container_path: /x}]
"""
PATHS = (
    "name", "entrypoint", "max_restarts", "hyperparametres", "hyperparameters.lr", "hyperparameters.act",
    "searcher.max_trials", "resources.slots_per_trial", "resources.priority", "bind_mounts[0].host_path",
)  # fmt: skip


def test_ten_mistakes_are_told_at_once(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(TEN_WRONG)
    command = [sys.executable, "-m", "clutch.cli.main", "experiment", "create", "bad.yaml"]
    before = len(ground.client.perform(experiment_calls.list_experiments()).items)
    done = subprocess.run(
        command, cwd=tmp_path, env=ground.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    missing = [path for path in PATHS if path not in done.stderr]
    assert not missing, done.stderr
    assert "10 problems" in done.stderr and "Did you mean hyperparameters?" in done.stderr
    assert len(ground.client.perform(experiment_calls.list_experiments()).items) == before


def test_a_word_is_no_metric(ground: Ground) -> None:
    """The script is told where it says it, and what it reported before is kept."""
    experiment = ground.start(["validate", "at 2: text mood=calm"], 3)
    ground.ended(experiment, "failed")
    said = "\n".join(ground.output(f"{experiment}.1"))
    assert "metric 'mood' of training at step 2: 'calm' is a text, not a number" in said
    assert [step for step, _ in ground.curve(f"{experiment}.1", "validation", "loss")] == [1, 2]


def test_a_checkpoint_whose_folder_vanishes_is_none(ground: Ground) -> None:
    experiment = ground.start(["validate", "at 1: checkpoint", "at 2: vanish"], 3)
    ground.ended(experiment, "failed")
    said = "\n".join(ground.output(f"{experiment}.1"))
    assert "checkpoint of step 2" in said and "the folder it was written into is gone" in said, said
    (row,) = ground.checkpoints(experiment)
    assert (row.step, row.state, ground.file(row.key)[:2]) == (1, "committed", b"1 ")


# -- storage -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[seaweed.Server]:
    with seaweed.temporary_server() as found:
        yield found


def test_wrong_keys_of_a_bucket_are_refused_when_submitted(ground: Ground, server: seaweed.Server) -> None:
    endpoint = server.endpoint
    storage = {"type": "s3", "bucket": seaweed.BUCKET, "endpoint_url": endpoint, "prefix": "stories"}
    right = f"{seaweed.KEY_ID}:{seaweed.SECRET}"
    for name, value in (("right-keys", right), ("wrong-keys", f"{seaweed.KEY_ID}:wrong")):
        ground.client.perform(access_calls.put_secret("default", NewSecret(name, value)))
    with pytest.raises(BadRequest, match="checkpoints cannot be kept there") as refused:
        ground.start(["checkpoint"], 1, checkpoint_storage={**storage, "credentials": "wrong-keys"})
    assert right not in str(refused.value) and refused.value.next_step
    with pytest.raises(BadRequest, match="has no secret 'no-keys'"):
        ground.start(["checkpoint"], 1, checkpoint_storage={**storage, "credentials": "no-keys"})
    with pytest.raises(BadRequest, match="checkpoints cannot be kept there"):
        ground.start(
            ["checkpoint"], 1, checkpoint_storage={**storage, "bucket": "nobody-s", "credentials": "right-keys"}
        )
    experiment = ground.start(["checkpoint"], 2, checkpoint_storage={**storage, "credentials": "right-keys"})
    ground.ended(experiment)
    assert ground.file(ground.trial(f"{experiment}.1").checkpoint).startswith(b"2 ")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A megabyte."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_costs_nothing_that_was_saved(ground: Ground, small_disk: Path) -> None:
    storage = {"type": "shared_fs", "host_path": str(small_disk), "save_trial_latest": 5, "save_trial_best": 0}
    do = ["validate", "at 1: checkpoint 200000", "at 2: checkpoint 300000", "at 3: checkpoint 3000000"]
    experiment = ground.start(do, 4, checkpoint_storage=storage)
    ground.ended(experiment, "failed")
    said = "\n".join(ground.output(f"{experiment}.1"))
    assert "No space left on device. Free space" in said, said
    rows = ground.checkpoints(experiment)
    assert sorted((row.step, row.state) for row in rows) == [(1, "committed"), (2, "committed")]
    for row in rows:
        assert ground.file(row.key).startswith(f"{row.step} ".encode())
        assert len(ground.file(row.key, "ballast")) == row.step * 100_000 + 100_000
