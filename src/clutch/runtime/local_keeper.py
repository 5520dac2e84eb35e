"""Checkpoints of a run by itself: folders beside each other in the run's own."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

from clutch.runtime.local import CHECKPOINTS, UNSAFE, LocalFolder, read_json, write_whole
from clutch.runtime.saving import Kept, Wanted
from clutch.wire.errors import NotFound


class LocalKeeper:
    """Checkpoints as folders. One counts when the file beside it says that it is whole."""

    def __init__(self, folder: LocalFolder) -> None:
        self._folder = folder

    def draft(self, step: int) -> Path:
        place = self._folder.made() / CHECKPOINTS
        place.mkdir(exist_ok=True)
        path = place / f".draft-{step}-{os.getpid()}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def keep(self, folder: Path, wanted: Wanted) -> Kept:
        label = UNSAFE.sub("-", wanted.label)
        kept = Kept(
            id=f"step-{wanted.step:09d}{f'-{label}' if label else ''}", step=wanted.step, metadata=wanted.metadata
        )
        place = folder.parent
        note, target = place / f"{kept.id}.json", place / kept.id
        note.unlink(missing_ok=True)  # one of the same step is replaced, and counts for nothing while it is
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
        about = {"step": kept.step, "label": wanted.label, "metadata": kept.metadata, "at": time.time()}
        write_whole(note, json.dumps(about, indent=2) + "\n")
        return kept

    def latest(self) -> str:
        place = self._folder.path / CHECKPOINTS
        found: list[tuple[int, float, str]] = []
        for note in place.glob("*.json"):
            said = read_json(note)
            if isinstance(said, dict) and (place / note.stem).is_dir():
                found.append((int(said.get("step", 0)), float(said.get("at", 0.0)), note.stem))
        return max(found)[2] if found else ""

    def look(self, checkpoint: str) -> Kept:
        said = read_json(self._folder.path / CHECKPOINTS / f"{checkpoint}.json")
        if not isinstance(said, dict):
            raise NotFound("it is not there any more", object=f"checkpoint {checkpoint} in {self._folder.path}")
        return Kept(id=checkpoint, step=int(said["step"]), metadata=dict(said.get("metadata") or {}))

    def fetch(self, checkpoint: str) -> Path:
        self.look(checkpoint)
        return self._folder.path / CHECKPOINTS / checkpoint

    def close(self) -> None:
        return
