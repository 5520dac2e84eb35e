"""What people do with a checkpoint afterwards: fetch all of it, remove a part, change what is said of it."""

from __future__ import annotations

import sys
from pathlib import Path

from experiment_ground import Ground

from clutch.sdk.experiment import Checkpoint
from clutch.testing.cluster import until

SCRIPT = """
import clutch
with clutch.init() as run:
    with run.checkpoint(1, metadata={"epoch": 3, "by": "ada"}) as path:
        (path / "model.pt").write_text("weights")
        (path / "logs" / "empty").mkdir(parents=True)
        (path / "cache").mkdir()
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
