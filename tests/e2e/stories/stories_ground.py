"""A real cluster for stories: nodes with artificial slots, trials that do what a few words say, and what is asked."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from clutch.sdk import calls, experiment_calls
from clutch.testing import noop_trial
from clutch.testing.cluster import Cluster, until
from clutch.testing.experiments import WAIT_S, Experiments
from clutch.wire.errors import NotFound
from clutch.wire.experiment_views import WorkloadView

PROGRAM = Path(noop_trial.__file__)


class Ground(Experiments):
    """A cluster with nodes ``n1``, ``n2`` ... of so many slots each."""

    def __init__(self, folder: Path, *slots: int, options: tuple[str, ...] = ()) -> None:
        super().__init__(folder, Cluster(folder / "cluster", options=options))
        self.slots = slots
        self._gates = 0

    def join(self) -> tuple[str, ...]:
        names = tuple(f"n{number}" for number in range(1, len(self.slots) + 1))
        for name, slots in zip(names, self.slots, strict=True):
            self.cluster.add_agent(name, slots)
        return names

    def environment(self) -> dict[str, str]:
        """Of somebody who uses this cluster from elsewhere."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("CLUTCH_")}
        home = {"HOME": str(self.folder), "TMPDIR": str(self.folder)}
        return {**plain, **home, "CLUTCH_MASTER": self.cluster.urls[0], "CLUTCH_TOKEN": self.token}

    def restart_master(self) -> None:
        """Killed at once, and up again."""
        self.cluster.masters[0].kill()
        self.cluster.masters[0].start()
        self.cluster.wait_serving()

    # -- submitting ----------------------------------------------------------------------------------------------

    def gate(self) -> Path:
        """The path of a file that is not there yet."""
        self._gates += 1
        return self.folder / f"gate{self._gates}"

    def config(self, do: list[str], steps: int = 4, **more: Any) -> dict[str, Any]:
        """``more``: anything of a configuration; ``hparams`` are laid over what the trial does."""
        hparams = more.pop("hparams", {})
        return {
            "name": "story",
            "entrypoint": [sys.executable, str(PROGRAM)],
            "hyperparameters": {"do": do, "steps": steps, **hparams},
            "searcher": {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": 1},
            "max_restarts": 0,
            "preemption_timeout": 60,
            **more,
        }

    def start(self, do: list[str], steps: int = 4, **more: Any) -> str:
        """A submitted experiment's id."""
        return self.submit(self.config(do, steps, **more)).experiment

    # -- looking -------------------------------------------------------------------------------------------------

    def workloads(self, trial: str) -> list[WorkloadView]:
        return list(self.client.items(experiment_calls.list_workloads(trial, limit=1000)))

    def kinds(self, trial: str) -> list[str]:
        """What happened to a trial, in order, without what it trained and validated."""
        return [row.kind for row in self.workloads(trial) if row.kind not in ("train", "validate")]

    def file(self, checkpoint: str, name: str = "state") -> bytes:
        """One file of a checkpoint, through the master; the error that it says, raised."""
        return self.download(experiment_calls.get_checkpoint_file(checkpoint, name))

    def files_of(self, *checkpoints: str) -> list[Path]:
        """What the blobs' folder holds of them."""
        found = (self.cluster.folder / "blobs").rglob("*")
        return [path for path in found if any(each in path.name for each in checkpoints) and "push" not in path.parts]

    def held(self) -> int:
        """Slots that somebody holds."""
        return sum(pool.slots_held for pool in self.client.perform(calls.list_pools()).items)

    # -- waiting -------------------------------------------------------------------------------------------------

    def gone(self, experiment: str) -> None:
        """Returns when nobody knows it any more."""

        def look() -> bool:
            try:
                self.view(experiment)
            except NotFound:
                return True
            return False

        until(look, f"{experiment} to be gone", WAIT_S)


def process_of(task: str, program: str) -> int | None:
    """The process that runs a program for a task; None while there is none."""
    mark = f"CLUTCH_TASK={task}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            around = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if program.encode() in command and mark in around:
            return int(entry.name)
    return None


def linger(seconds: float) -> None:
    """The moment is the point of a test that kills: nothing is waited for."""
    time.sleep(seconds)
