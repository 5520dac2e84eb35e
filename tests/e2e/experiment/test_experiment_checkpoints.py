"""What people do with a checkpoint afterwards: fetch all of it, remove a part, change what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from experiment_ground import Ground

from clutch.sdk import experiment_calls
from clutch.sdk.experiment import Checkpoint
from clutch.testing.cluster import until
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.experiment_api import AnswerSearch, ChangeMetadata
from clutch.wire.experiment_words import MakeTrial, Shutdown

SCRIPT = """
import clutch
with clutch.init() as run:
    with run.checkpoint(1, metadata={"epoch": 3, "by": "ada"}) as path:
        (path / "model.pt").write_text("weights")
        (path / "logs" / "empty").mkdir(parents=True)
        (path / "cache").mkdir()
    run.validate(1, loss=1.0)
"""

READING = """
import clutch
with clutch.init() as run:
    print("says", run.latest_checkpoint.metadata)
    run.validate(1, loss=1.0)
"""


def saved(ground: Ground) -> Checkpoint:
    """A checkpoint of a trial that has ended."""
    entrypoint = [sys.executable, "-c", SCRIPT]
    experiment = ground.submit(ground.config({}) | {"entrypoint": entrypoint}).experiment
    assert ground.until_ended(experiment).state == "completed", ground.story(experiment)
    (row,) = ground.client.experiment(experiment).checkpoints()
    return ground.client.checkpoint(row.key)


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_empty_folders_come_back(ground: Ground, tmp_path: Path) -> None:
    checkpoint = saved(ground)
    detail = checkpoint.detail()
    assert [file.path for file in detail.files] == ["cache/", "logs/empty/", "model.pt"]
    assert detail.row.size_bytes == 7
    for name, through_master in (("straight", False), ("asked", True)):
        checkpoint.download(tmp_path / name, through_master=through_master)
        assert tree(tmp_path / name) == ["cache", "logs", "logs/empty", "model.pt"]
    checkpoint.delete("cache/")
    until(lambda: checkpoint.detail().row.state == "partial", "a part of it to be gone", 60.0)
    assert [file.path for file in checkpoint.detail().files] == ["logs/empty/", "model.pt"]
    checkpoint.download(tmp_path / "rest")
    assert tree(tmp_path / "rest") == ["logs", "logs/empty", "model.pt"]


def test_what_is_said_of_it_is_changed(ground: Ground) -> None:
    checkpoint = saved(ground)
    assert checkpoint.metadata == {"epoch": 3, "by": "ada"}
    assert checkpoint.add_metadata({"epoch": 4, "tags": ["a", None], "text": "3"}) == {
        "epoch": 4, "by": "ada", "tags": ["a", None], "text": "3",
    }  # fmt: skip
    assert checkpoint.remove_metadata("by", "never", "tags") == {"epoch": 4, "text": "3"}
    again = ground.client.checkpoint(checkpoint.id)
    assert again.metadata == {"epoch": 4, "text": "3"}
    assert again.detail().metadata == {"epoch": "4", "text": '"3"'}, "texts, by decision 1780"
    for change, words in (
        (ChangeMetadata(set={"a": 1}, remove=("a",)), "set and removed"),
        (ChangeMetadata(set={"": 1}), "key"),
        (ChangeMetadata(set={"a": "x" * 3000}), "too long"),
        (ChangeMetadata(set={"a": "\0"}), "no text"),
        (ChangeMetadata(set={str(number): number for number in range(100)}), "at most 100"),
    ):
        with pytest.raises(BadRequest, match=words):
            ground.client.perform(experiment_calls.change_checkpoint_metadata(checkpoint.id, change))
    with pytest.raises(NotFound):
        ground.client.perform(experiment_calls.change_checkpoint_metadata("1-nothing", ChangeMetadata(set={"a": 1})))
    assert again.metadata == {"epoch": 4, "text": "3"}
    warm = ground.submit(
        ground.config({}, {"name": "single", "metric": "loss", "source_checkpoint_uuid": checkpoint.id})
        | {"entrypoint": [sys.executable, "-c", READING]}
    ).experiment
    assert ground.until_ended(warm).state == "completed", ground.story(warm)
    assert "says {'epoch': 4, 'text': '3'}" in ground.output(f"{warm}.1"), "a trial reads what is said now"


def test_the_command_changes_it(ground: Ground) -> None:
    checkpoint = saved(ground)
    token = (ground.cluster.folder / "master0" / "local.token").read_text().strip()
    environment = {**os.environ, "CLUTCH_MASTER": ground.cluster.urls[0], "CLUTCH_TOKEN": token}

    def clutch(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "clutch.cli.main", "checkpoint", "metadata", checkpoint.id, *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)

    said = clutch("--set", "epoch=5", "--set", "note=a = b", "--set", 'tags=["x"]', "--remove", "by", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {"epoch": 5, "note": "a = b", "tags": ["x"]} == checkpoint.metadata
    assert "a = b" in clutch().stdout
    wrong = clutch("--set", "epoch")
    assert wrong.returncode != 0 and "NAME=VALUE" in wrong.stderr


def test_what_a_custom_search_begins_from_is_held(ground: Ground) -> None:
    """The checkpoint is another experiment's, whose retention keeps nothing."""
    gate = ground.gate()
    (gate / "1").touch()
    none = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    source = ground.start({"steps": 2, "save": 1, "gate": str(gate)}, checkpoint_storage=none)
    ground.until_trial(f"{source}.1", lambda view: view.checkpoint, "to have saved")
    (row,) = ground.client.experiment(source).checkpoints()
    search = ground.submit(ground.config({"steps": 2}, {"name": "custom", "metric": "loss"}), paused=True).experiment

    def answer(cursor: int, *operations: MakeTrial | Shutdown) -> None:
        said = AnswerSearch(cursor=cursor, operations=operations)
        ground.client.perform(experiment_calls.answer_search(search, said))

    begun = ground.client.perform(experiment_calls.search_events(search, 0, 20.0)).events[-1].number
    with pytest.raises(NotFound, match="no such checkpoint") as missing:
        answer(begun, MakeTrial("a", checkpoint="1-nothing"))
    assert missing.value.path == "operations[0].checkpoint"
    answer(begun, MakeTrial("a", checkpoint=row.key))
    answer(begun, MakeTrial("a", checkpoint="1-nothing"))  # answered already: it wants nothing
    held = f",experiment:{search},"
    assert ground.client.checkpoint(row.key).detail().row.pins == held, "before the trial is made: it is paused"
    with pytest.raises(Conflict, match=f"held by experiment:{search}"):
        ground.client.checkpoint(row.key).delete()
    (gate / "all").touch()
    ground.until_ended(source)
    kept = {one.key: one.state for one in ground.client.experiment(source).checkpoints()}
    assert kept.pop(row.key) == "committed" and set(kept.values()) == {"deleted"}
    ground.client.perform(experiment_calls.move_experiment(search, "resume"))
    cursor = ground.client.perform(experiment_calls.search_events(search, begun, 20.0)).events[-1].number
    answer(cursor, Shutdown())
    assert ground.until_ended(search).state == "completed", ground.story(search)
    assert "begins at 1" in ground.output(f"{search}.1")
    until(lambda: not ground.client.checkpoint(row.key).detail().row.pins, "it to be let go", 60.0)
