"""A small convolutional network in PyTorch that can be stopped at any moment and goes on where it was.

Alone:          python train.py
As a search:    clutch experiment create search.yaml .

What makes a program restartable is in ``save`` and ``load``: weights, optimizer, and the state of chance all
go into one checkpoint, so that a run that was interrupted ends with the same numbers as one that was not.
"""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import clutch

DEFAULTS = {"learning_rate": 0.01, "channels": 8, "dropout": 0.1, "optimizer": {"name": "adam"}, "steps": 300}
BATCH = 64


def main() -> None:
    torch.set_num_threads(1)  # so small a network is not faster with more
    with clutch.init(hparams=DEFAULTS) as run:
        torch.manual_seed(run.seed)
        train, held_out = digits()
        training = Training(run.hparams)
        if run.latest_checkpoint is not None:
            training.load(Path(run.latest_checkpoint))
        while training.step < run.hparams["steps"]:
            loss = training.learn(*train)
            run.report(training.step, loss=loss)
            if training.step % 50 == 0:
                go_on = run.validate(training.step, accuracy=training.accuracy(*held_out))
                with run.checkpoint(training.step) as folder:
                    training.save(folder)
                if not go_on:
                    break
            elif run.should_stop():
                with run.checkpoint(training.step) as folder:
                    training.save(folder)
                break


def digits() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    pictures = torch.tensor(found.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    answers = torch.tensor(found.target)[order]
    cut = len(answers) * 3 // 4
    return (pictures[:cut], answers[:cut]), (pictures[cut:], answers[cut:])


class Training:
    """Everything that changes while it trains."""

    def __init__(self, hparams: dict) -> None:
        channels = hparams["channels"]
        self.model = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(hparams["dropout"]), nn.Linear(8 * channels, 10),
        )  # fmt: skip
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        self.optimizer = kinds[hparams["optimizer"]["name"]](self.model.parameters(), lr=hparams["learning_rate"])
        self.step = 0

    def learn(self, pictures: torch.Tensor, answers: torch.Tensor) -> float:
        self.model.train()
        chosen = torch.randint(len(answers), (BATCH,))
        loss = nn.functional.cross_entropy(self.model(pictures[chosen]), answers[chosen])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()

    @torch.no_grad()
    def accuracy(self, pictures: torch.Tensor, answers: torch.Tensor) -> float:
        self.model.eval()
        return float((self.model(pictures).argmax(1) == answers).float().mean())

    def save(self, folder: Path) -> None:
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step,
            "chance": torch.get_rng_state(),
        }  # fmt: skip
        torch.save(state, folder / "training.pt")

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "training.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        torch.set_rng_state(state["chance"])


if __name__ == "__main__":
    main()
