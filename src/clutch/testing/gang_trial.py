"""A trial on several ranks that is made to be killed: a small network in NumPy, trained data-parallel, that can be
checked to the last bit.

Every rank draws its own part of each batch by seed, step and rank; gradients are summed by ``allreduce`` in the order
of ranks. So the weights are a function of the seed, the number of ranks and the steps that were done: a gang that was
interrupted and went on from its checkpoint ends with the same loss as one that was not, and a step that was lost,
repeated or taken from the wrong checkpoint changes it.

Hyperparameters: ``steps``; ``every``, steps between checkpoints; ``pace_s``, how long a step takes; ``shard``, whether
all ranks write a checkpoint or the first one; ``marks``, a folder in which each rank notes who it is and where it
ended, for tests to read; ``gate``, a file without which the last step is not begun; ``clash``, a step whose checkpoint
is written by all ranks under one name with different bytes; ``fails``, the rank that raises in its third step the first
time; ``lingers``, how long that rank takes to end after its run; ``alone``, whether the ranks that are left when a peer
is lost go on by themselves for so many seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import clutch
from clutch.runtime.info import read_info
from clutch.wire.errors import PeerLost

INPUTS, HIDDEN, BATCH = 8, 16, 16
LEARNING_RATE = 0.05
LOOK_S = 0.01
DEFAULTS = {
    "steps": 40, "every": 5, "pace_s": 0.0, "shard": False, "marks": "", "gate": "", "clash": 0, "fails": -1,
    "lingers": 0.0, "alone": 0.0,
}  # fmt: skip
FAILS_AT = 3


class GangTrial:
    """The weights, and how far they are trained. Equal on every rank after every step."""

    def __init__(self, run: clutch.Run) -> None:
        self.run = run
        self.ranks = run.distributed
        draw = np.random.default_rng(run.seed)
        self.truth = draw.normal(size=INPUTS)
        self.weights = {"first": draw.normal(size=(INPUTS, HIDDEN)) / 3, "last": draw.normal(size=HIDDEN) / 4}
        self.step = self.saved = 0
        found = run.restore()
        if found is not None:
            self.load(Path(found))

    # -- training --------------------------------------------------------------------------------------------------

    def learn(self) -> float:
        """One step of all ranks; the loss of the whole batch before it."""
        self.step += 1
        draw = np.random.default_rng([self.run.seed, self.step, self.ranks.rank])
        x = draw.normal(size=(BATCH, INPUTS))
        hidden = np.tanh(x @ self.weights["first"])
        wrong = hidden @ self.weights["last"] - np.sin(x @ self.truth)
        back = np.outer(wrong, self.weights["last"]) * (1 - hidden**2)
        parts = {"first": x.T @ back, "last": hidden.T @ wrong, "loss": np.array(float(wrong @ wrong))}
        total = self.ranks.allreduce(parts, added)
        count = BATCH * self.ranks.size
        for name in self.weights:
            self.weights[name] = self.weights[name] - LEARNING_RATE * total[name] / count
        return float(total["loss"]) / count

    def train(self) -> bool:
        """Whether it came to its end; False: it was asked to leave."""
        hparams = self.run.hparams
        loss = float("nan")
        while self.step < hparams["steps"]:
            if self.step == hparams["steps"] - 1:
                self.wait_gate(hparams["gate"])
            if (self.step, self.run.rank, self.run.epoch) == (FAILS_AT, hparams["fails"], 1):
                raise ValueError(f"rank {self.run.rank} was told to fail")
            loss = self.learn()
            time.sleep(hparams["pace_s"])
            if self.run.rank == 0:
                self.run.report(self.step, loss=loss)
            if self.step % hparams["every"] == 0:
                self.save()
            if self.run.should_stop() and self.step < hparams["steps"]:
                return False
        self.run.validate(self.step, loss=loss, all_ranks=True)
        return True

    def wait_gate(self, gate: str) -> None:
        """Rank 0 waits, and the others for it: in the next call that all make."""
        while gate and self.ranks.rank == 0 and not Path(gate).exists():
            self.ranks.check()
            time.sleep(LOOK_S)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self) -> None:
        """All of it by rank 0; or a piece by each rank."""
        if self.saved == self.step:
            return
        self.saved = self.step
        if self.step == self.run.hparams["clash"]:
            with self.run.checkpoint(self.step, shard=True) as folder:
                (folder / "weights").write_text(f"of rank {self.ranks.rank}")
        elif self.run.hparams["shard"]:
            with self.run.checkpoint(self.step, {"step": self.step}, shard=True) as folder:
                pieces = {name: self.piece(value, self.ranks.rank) for name, value in self.weights.items()}
                write(folder / f"piece{self.ranks.rank}.npz", self.step, pieces)
        elif self.ranks.rank == 0:
            with self.run.checkpoint(self.step) as folder:
                write(folder / "whole.npz", self.step, self.weights)

    def load(self, folder: Path) -> None:
        whole = folder / "whole.npz"
        if whole.exists():
            self.step, self.weights = read(whole)
        else:
            pieces = [read(folder / f"piece{rank}.npz") for rank in range(self.ranks.size)]
            assert len({step for step, _ in pieces}) == 1, "pieces of different steps"
            self.step = pieces[0][0]
            self.weights = {name: np.concatenate([piece[name] for _, piece in pieces]) for name in self.weights}
        self.saved = self.step

    def piece(self, value: Any, rank: int) -> Any:
        return np.array_split(value, self.ranks.size)[rank]


def added(every: list[dict[str, Any]]) -> dict[str, Any]:
    """In the order of ranks, so that the sum is the same to the last bit."""
    total = every[0]
    for one in every[1:]:
        total = {name: value + one[name] for name, value in total.items()}
    return total


def write(path: Path, step: int, weights: dict[str, Any]) -> None:
    np.savez(path, **weights, step=np.array(step))


def read(path: Path) -> tuple[int, dict[str, Any]]:
    with np.load(path, allow_pickle=False) as found:
        weights = {name: found[name] for name in found.files}
    return int(weights.pop("step")), weights


class Marks:
    """Files by which a test sees what its ranks do: ``EPOCH.RANK.begun`` with pid, node and step; and ``.left`` with
    the step and the moment at which it ended."""

    def __init__(self, run: clutch.Run) -> None:
        self.folder = run.hparams["marks"]
        self.name = f"{run.epoch}.{run.rank}"

    def note(self, what: str, *words: object) -> None:
        if not self.folder:
            return
        path = Path(self.folder) / f"{self.name}.{what}"
        aside = path.with_suffix(f".{what}-aside")
        aside.write_text(" ".join(map(str, words)))
        aside.rename(path)


def train(run: clutch.Run) -> None:
    trial = GangTrial(run)
    marks = Marks(run)
    marks.note("begun", os.getpid(), read_info().node or "-", trial.step)
    try:
        whole = trial.train()
    except PeerLost:
        if run.hparams["alone"]:
            time.sleep(run.hparams["alone"])
            marks.note("alone", trial.step)
        raise
    if not whole:
        trial.save()
    marks.note("left", trial.step, int(whole), time.time())


def main() -> None:
    run = clutch.init(hparams=DEFAULTS)
    try:
        with run:
            train(run)
    except ValueError:
        time.sleep(run.hparams["lingers"])
        raise


if __name__ == "__main__":
    main()
