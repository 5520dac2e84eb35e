"""A run by itself, off the cluster: the quiet twin. The same script, and what it says is kept in a folder.

::

    FOLDER/run.json            name, hyperparameters, when it began
    FOLDER/metrics.jsonl       one line a point: group, step, values, at
    FOLDER/metadata.json       its notes
    FOLDER/checkpoints/ID/     the files of a checkpoint
    FOLDER/checkpoints/ID.json that it is whole, its step and metadata

Nothing is made before there is something to write. A folder that is given again goes on: its latest checkpoint, its
metadata, its metrics behind those that are there.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clutch.wire.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clutch.runtime.spool import Point

RUNS = "clutch-runs"
RUN, METRICS, METADATA, CHECKPOINTS = "run.json", "metrics.jsonl", "metadata.json", "checkpoints"
UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class LocalFolder:
    """Where one run is kept; made when it is first needed."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self._about = dict(about)
        self._made = False
        self._alone = threading.Lock()

    def made(self) -> Path:
        with self._alone:
            if not self._made:
                self.path.mkdir(parents=True, exist_ok=True)
                if not (self.path / RUN).exists():
                    write_whole(self.path / RUN, json.dumps(self._about, indent=2, default=str) + "\n")
                self._made = True
        return self.path

    def metadata(self) -> dict[str, Any]:
        found = read_json(self.path / METADATA)
        return found if isinstance(found, dict) else {}

    def keep_metadata(self, metadata: dict[str, Any]) -> None:
        write_whole(self.made() / METADATA, json.dumps(metadata, indent=2) + "\n")


def choose_folder(resume: str | os.PathLike[str] | bool, name: str, now: float, base: Path | None = None) -> Path:
    """The folder to go on in, or a new one. ``resume=True`` is the newest one of this name."""
    runs = (base or Path.cwd()) / RUNS
    word = UNSAFE.sub("-", name).strip("-.") or "run"
    if resume is True:
        found = sorted(
            path for path in runs.glob(f"{word}-*") if re.fullmatch(rf"{re.escape(word)}-\d{{8}}-.*", path.name)
        )
        if found:
            return found[-1]
    elif resume:
        return Path(resume)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    for number in range(1000):
        path = runs / (f"{word}-{stamp}" if not number else f"{word}-{stamp}-{number:03d}")
        if not path.exists():
            return path
    raise BadRequest("a thousand runs of this name began in this second", object=str(runs))


class LocalOutlet:
    """Reports as lines of a file."""

    def __init__(self, folder: LocalFolder, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._failed = False
        self._took = False

    def take(self, points: list[Point]) -> None:
        lines = [
            json.dumps({"group": group, "step": step, "values": {n: _spoken(v) for n, v in values.items()}, "at": at})
            for group, step, values, at in points
        ]
        try:
            with (self._folder.made() / METRICS).open("a") as file:
                file.write("\n".join(lines) + "\n")
            self._took = True
        except OSError as error:
            if not self._failed:
                self._say(f"reports are not written: {error}")
            self._failed = True

    def progress(self, fraction: float, message: str) -> None:
        return

    def flush(self, within_s: float) -> bool:
        return True

    def close(self, within_s: float) -> None:
        """Whoever sits before it is told where to look; a log or a pipe is not."""
        if self._took and sys.stderr.isatty():
            self._say(f"what it reported is in {self._folder.path}")


def write_whole(path: Path, text: str) -> None:
    """A reader sees the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _spoken(value: float | int) -> float | int | str:
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
