"""A small network in Lightning that learns a curve, can be interrupted at any moment and goes on where it was.

Alone:          python train.py
As a search:    clutch experiment create search.yaml .

The callback reports and validates, saves after each validation, and has the trainer leave when the cluster asks.
"""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import nn

import clutch

DEFAULTS = {"learning_rate": 0.01, "width": 32, "epochs": 5}


class Curve(pl.LightningModule):
    def __init__(self, learning_rate: float, width: int) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                    nn.Linear(width, 1))  # fmt: skip

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = self.error(batch)
        self.log("training_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        self.log("loss", self.error(batch))

    def error(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def points(count: int, seed: int) -> torch.utils.data.DataLoader:
    x = torch.rand((count, 1), generator=torch.Generator().manual_seed(seed)) * 6 - 3
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.sin(2 * x)), batch_size=32)


def main() -> None:
    torch.set_num_threads(1)  # so small a network is not faster with more
    with clutch.init(hparams=DEFAULTS) as run:
        pl.seed_everything(run.seed, verbose=False)
        callback = clutch.LightningCallback(run)
        trainer = pl.Trainer(
            max_epochs=run.hparams["epochs"], accelerator="cpu", logger=callback.logger(), log_every_n_steps=8,
            callbacks=[callback], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        model = Curve(run.hparams["learning_rate"], run.hparams["width"])
        trainer.fit(model, points(512, 0), points(128, 1), ckpt_path=callback.resume_path)


if __name__ == "__main__":
    main()
