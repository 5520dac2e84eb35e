"""Population based training: a learning rate that changes while it trains.

The search asks for one round after the other (``run.operations()``). After each round the weakest runs end, and
copies of the strongest begin from their checkpoints with a slightly different learning rate.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

import clutch

DEFAULTS = {"learning_rate": 0.02}


def main() -> None:
    with clutch.init(hparams=DEFAULTS, max_length=100) as run:
        weights, step = load(run)
        for operation in run.operations():
            while step < operation.length and not run.should_stop():
                weights -= run.hparams["learning_rate"] * slope(weights)
                step += 1
                run.report(step, loss=valley(weights), learning_rate=run.hparams["learning_rate"])
            save(run, step, weights)
            if step < operation.length:
                break  # asked to leave; the operation goes on after the restart
            run.validate(step, loss=valley(weights))
            operation.complete(valley(weights))


def valley(weights: np.ndarray) -> float:
    """Rosenbrock's curved valley: a large step is good at first and bad at its ground."""
    x, y = weights
    return float((1 - x) ** 2 + 20 * (y - x * x) ** 2)


def slope(weights: np.ndarray) -> np.ndarray:
    x, y = weights
    found = np.array([-2 * (1 - x) - 80 * x * (y - x * x), 40 * (y - x * x)])
    length = math.hypot(*found)
    return found / length * min(length, 1.0)


def load(run: clutch.Run) -> tuple[np.ndarray, int]:
    if run.latest_checkpoint is None:
        return np.array([-1.2, 1.0]), 0
    kept = json.loads((Path(run.latest_checkpoint) / "weights.json").read_text())
    return np.array(kept["weights"]), kept["step"]


def save(run: clutch.Run, step: int, weights: np.ndarray) -> None:
    with run.checkpoint(step) as folder:
        (folder / "weights.json").write_text(json.dumps({"weights": weights.tolist(), "step": step}))


if __name__ == "__main__":
    main()
