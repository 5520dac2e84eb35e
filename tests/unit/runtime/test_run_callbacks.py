"""Callbacks with the libraries themselves, on models of a few weights: what they report, save, and go on from."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import clutch

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CLUTCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    warnings.simplefilter("ignore")  # of the libraries: they warn of few workers, small data and each other


def numbers(count: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 3, generator=made)
    return inputs, inputs @ torch.tensor([[1.0], [2.0], [3.0]])


def said(folder: Path) -> list[dict[str, Any]]:
    import msgspec

    return [msgspec.json.decode(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# -- Lightning -----------------------------------------------------------------------------------------------------


def lightning_fit(run: clutch.Run, *, epochs: int, ask_at: int = -1, logger: bool = False) -> float:
    """The weights' sum after so many epochs; ``ask_at``: the run is asked to stop in that epoch's validation."""
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

        def on_validation_epoch_end(self) -> None:
            if self.current_epoch == ask_at and not self.trainer.sanity_checking:
                signal.raise_signal(signal.SIGINT)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.05)

    data = DataLoader(TensorDataset(*numbers()), batch_size=8)
    callback = clutch.LightningCallback(run, report_every=2)
    trainer = pl.Trainer(
        max_epochs=epochs, callbacks=[callback], logger=callback.logger() if logger else False, accelerator="cpu",
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=2,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, data, data, ckpt_path=callback.resume_path)
    return float(sum(parameter.sum() for parameter in model.parameters()))


def test_lightning_reports_saves_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with clutch.init(resume=tmp_path / "whole") as run:
        whole = lightning_fit(run, epochs=4)
        latest = run.latest_checkpoint
        assert latest is not None and latest.step == 16 and latest.metadata["epoch"] == 3
    found = said(tmp_path / "whole")
    training = [point for point in found if point["group"] == "training"]
    validations = [point for point in found if point["group"] == "validation"]
    assert [point["step"] for point in training] == [2, 4, 6, 8, 10, 12, 14, 16] and "loss" in training[0]["values"]
    assert [point["step"] for point in validations] == [4, 8, 12, 16] and "val_loss" in validations[0]["values"]
    assert [(p["values"]["epochs"], p["values"]["batches"]) for p in validations] == [(1, 4), (2, 8), (3, 12), (4, 16)]

    with clutch.init(resume=tmp_path / "parts") as run:
        lightning_fit(run, epochs=4, ask_at=1)
        assert run.should_stop() and run.stop_reason == "signal"
        assert run.latest_checkpoint is not None and run.latest_checkpoint.step == 8
    with clutch.init(resume=tmp_path / "parts") as run:
        assert run.latest_checkpoint is not None and run.latest_checkpoint.step == 8
        assert lightning_fit(run, epochs=4) == pytest.approx(whole, abs=1e-7)
    again = [point for point in said(tmp_path / "parts") if point["group"] == "validation"]
    assert [(p["step"], p["values"]["val_loss"]) for p in again] == [
        (p["step"], pytest.approx(p["values"]["val_loss"], abs=1e-7)) for p in validations
    ]


def test_lightnings_logger_reports_what_is_logged(tmp_path: Path) -> None:
    with clutch.init(resume=tmp_path / "run") as run:
        lightning_fit(run, epochs=1, logger=True)
    training = [point for point in said(tmp_path / "run") if point["group"] == "training"]
    assert [point["step"] for point in training if "loss" in point["values"]] == [1, 3]


# -- Hugging Face --------------------------------------------------------------------------------------------------


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def hugging_train(run: clutch.Run, output: Path, ask_at: int = -1, eval_steps: int = 4) -> float:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Asker(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == ask_at:
                signal.raise_signal(signal.SIGINT)

    inputs, targets = numbers()
    data = [{"x": x, "labels": y} for x, y in zip(inputs, targets, strict=True)]
    arguments = TrainingArguments(
        output_dir=str(output), max_steps=12, per_device_train_batch_size=8, learning_rate=0.05, logging_steps=2,
        eval_strategy="steps", eval_steps=eval_steps, save_strategy="steps", save_steps=4, report_to=[], use_cpu=True,
        disable_tqdm=True, seed=3, dataloader_pin_memory=False,
    )  # fmt: skip
    callback = clutch.HuggingFaceCallback(run)
    model = Tiny()
    trainer = Trainer(
        model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=[Asker(), callback]
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=callback.resume_path)
    return float(sum(parameter.sum() for parameter in model.parameters()))


def test_hugging_face_reports_saves_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with clutch.init(resume=tmp_path / "whole") as run:
        whole = hugging_train(run, tmp_path / "a")
        assert run.latest_checkpoint is not None and run.latest_checkpoint.step == 12
    found = said(tmp_path / "whole")
    training = [point for point in found if point["group"] == "training"]
    validations = [point for point in found if point["group"] == "validation"]
    assert [point["step"] for point in training] == [2, 4, 6, 8, 10, 12] and "loss" in training[0]["values"]
    assert [point["step"] for point in validations] == [4, 8, 12]
    assert [set(point["values"]) for point in validations] == [{"loss", "epochs", "batches"}] * 3
    assert [(p["values"]["epochs"], p["values"]["batches"]) for p in validations] == [(1, 4), (2, 8), (3, 12)]

    with clutch.init(resume=tmp_path / "parts") as run:
        hugging_train(run, tmp_path / "b", ask_at=6)
        assert run.latest_checkpoint is not None and run.latest_checkpoint.step == 6, "between two saves of its own"
    with clutch.init(resume=tmp_path / "parts") as run:
        assert hugging_train(run, tmp_path / "c") == pytest.approx(whole, abs=1e-6)


def test_hugging_face_evaluates_what_it_ends_with_but_not_what_it_leaves_with(tmp_path: Path) -> None:
    for ask_at, steps in ((-1, [5, 10, 12]), (7, [5])):
        with clutch.init(resume=tmp_path / str(ask_at)) as run:
            run._config = {"searcher": {"metric": "eval_loss"}}  # a search may call it as the trainer does
            hugging_train(run, tmp_path / f"out{ask_at}", ask_at=ask_at, eval_steps=5)
        found = [point for point in said(tmp_path / str(ask_at)) if point["group"] == "validation"]
        assert [point["step"] for point in found] == steps
        assert all(point["values"]["eval_loss"] == point["values"]["loss"] for point in found)
