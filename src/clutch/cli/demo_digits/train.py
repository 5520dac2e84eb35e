"""A small neural network that reads handwritten digits, in NumPy: the program a search trains many times.

Alone:          python train.py
As a search:    clutch experiment create search.yaml .
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import clutch

DEFAULTS = {"learning_rate": 0.05, "hidden": 32, "momentum": 0.9, "batch": 32, "epochs": 27}


def main() -> None:
    with clutch.init(hparams=DEFAULTS) as run:
        train, held_out = digits()
        network, velocity, begin = load(run, train[0].shape[1])
        for epoch in range(begin + 1, run.hparams["epochs"] + 1):
            loss = learn(network, velocity, train, run, epoch)
            run.report(epoch, loss=loss)
            go_on = run.validate(epoch, accuracy=accuracy(network, held_out))
            if epoch % 3 == 0:
                save(run, epoch, network, velocity)
            crash_once(run, epoch)
            if not go_on or run.should_stop():
                save(run, epoch, network, velocity)
                break
            time.sleep(run.hparams.get("pause_s", 0.0))  # a demonstration should be seen


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """1,797 pictures of 8 x 8 points: three quarters to learn from, the rest to be asked about."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    pictures, answers = found.data[order] / 16.0, found.target[order]
    cut = len(answers) * 3 // 4
    return (pictures[:cut], answers[:cut]), (pictures[cut:], answers[cut:])


def load(run: clutch.Run, inputs: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], int]:
    """The network as its last committed checkpoint has it, or a new one."""
    if run.latest_checkpoint is not None:
        kept = np.load(Path(run.latest_checkpoint) / "network.npz")
        parts = {name: kept[name] for name in kept.files}
        network = {name: value for name, value in parts.items() if not name.startswith("v_")}
        return network, {name: parts[f"v_{name}"] for name in network}, run.latest_checkpoint.step
    chance, hidden = np.random.default_rng(run.seed), run.hparams["hidden"]
    network = {
        "w1": chance.normal(0, np.sqrt(2 / inputs), (inputs, hidden)),
        "b1": np.zeros(hidden),
        "w2": chance.normal(0, np.sqrt(2 / hidden), (hidden, 10)),
        "b2": np.zeros(10),
    }
    return network, {name: np.zeros_like(value) for name, value in network.items()}, 0


def save(run: clutch.Run, epoch: int, network: dict[str, np.ndarray], velocity: dict[str, np.ndarray]) -> None:
    with run.checkpoint(epoch) as folder:
        np.savez(folder / "network.npz", **network, **{f"v_{name}": value for name, value in velocity.items()})


def learn(
    network: dict[str, np.ndarray],
    velocity: dict[str, np.ndarray],
    data: tuple[np.ndarray, np.ndarray],
    run: clutch.Run,
    epoch: int,
) -> float:
    """One pass over the pictures by stochastic gradient descent with momentum; the mean loss."""
    pictures, answers = data
    order = np.random.default_rng((run.seed, epoch)).permutation(len(answers))  # the same after a restart
    losses = []
    for start in range(0, len(order), run.hparams["batch"]):
        chosen = order[start : start + run.hparams["batch"]]
        inputs, wanted = pictures[chosen], answers[chosen]
        hidden = np.maximum(inputs @ network["w1"] + network["b1"], 0)
        likely = softmax(hidden @ network["w2"] + network["b2"])
        losses.append(-np.log(likely[np.arange(len(wanted)), wanted] + 1e-12).mean())
        error = likely
        error[np.arange(len(wanted)), wanted] -= 1
        error /= len(wanted)
        back = (error @ network["w2"].T) * (hidden > 0)
        slopes = {"w1": inputs.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
        for name, slope in slopes.items():
            velocity[name] = run.hparams["momentum"] * velocity[name] - run.hparams["learning_rate"] * slope
            network[name] = network[name] + velocity[name]
    return float(np.mean(losses))


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def answers(network: dict[str, np.ndarray], pictures: np.ndarray) -> np.ndarray:
    """Which digit each picture shows, as the network sees it."""
    hidden = np.maximum(pictures @ network["w1"] + network["b1"], 0)
    return (hidden @ network["w2"] + network["b2"]).argmax(1)


def accuracy(network: dict[str, np.ndarray], data: tuple[np.ndarray, np.ndarray]) -> float:
    return float((answers(network, data[0]) == data[1]).mean())


def crash_once(run: clutch.Run, epoch: int) -> None:
    """The trial that a demonstration names dies in the middle of its first run, as power cuts and bugs do."""
    if run.trial == run.hparams.get("crash_trial") and run.epoch == 1 and epoch == run.hparams.get("crash_epoch", 2):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
