"""A real cluster for experiments: one master, one agent with artificial slots, and what tests ask of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from clutch.testing.cluster import Cluster
from clutch.testing.experiments import Experiments

PROGRAM = Path(__file__).with_name("experiment_trial.py")


class Ground(Experiments):
    """A cluster with one node ``n1`` of so many slots."""

    def __init__(self, folder: Path, slots: int = 4, db: str = "") -> None:
        super().__init__(folder, Cluster(folder / "cluster", db=db))
        self.slots = slots
        self._gates = 0

    def join(self) -> tuple[str, ...]:
        self.cluster.add_agent("n1", self.slots)
        return ("n1",)

    def gate(self) -> Path:
        """A new folder in which steps are let through."""
        self._gates += 1
        path = self.folder / f"gate{self._gates}"
        path.mkdir()
        return path

    def config(self, hparams: dict[str, Any], searcher: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return {
            "name": "test",
            "entrypoint": [sys.executable, str(PROGRAM)],
            "hyperparameters": {"base": 1.0, "steps": 3, **hparams},
            "searcher": searcher or {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": 1},
            "max_restarts": 0,
            "preemption_timeout": 60,
            **more,
        }

    def start(self, hparams: dict[str, Any], searcher: dict[str, Any] | None = None, **more: Any) -> str:
        """A submitted experiment's id."""
        return self.submit(self.config(hparams, searcher, **more)).experiment
