"""Callbacks with the libraries themselves on two real processes, which train together over gloo."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from ranks_ground import Ranks, checkpoints, files_of

HUGGING_FACE = """
    import warnings
    warnings.simplefilter("ignore")
    import torch
    from transformers import Trainer, TrainingArguments
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(3, 1)
        def forward(self, x, labels):
            found = self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}
    inputs = torch.randn(32, 3, generator=torch.Generator().manual_seed(5))
    data = [{"x": x, "labels": x.sum(0, keepdim=True)} for x in inputs]
    def train(run, epochs):
        arguments = TrainingArguments(
            "out", num_train_epochs=epochs, per_device_train_batch_size=4, logging_steps=2, eval_strategy="epoch",
            save_strategy="epoch", lr_scheduler_type="constant", report_to=[], use_cpu=True,
            ddp_backend="gloo", disable_tqdm=True,
        )
        callback = clutch.HuggingFaceCallback(run)
        model = Model()
        trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.resume_path)
        return trainer.state.global_step, float(sum(p.sum() for p in model.parameters()))
"""
LIGHTNING = """
    import warnings, logging
    warnings.simplefilter("ignore")
    import torch
    import lightning.pytorch as pl
    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(3, 1)
        def training_step(self, batch, index):
            loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.log("loss", loss)
            return loss
        def validation_step(self, batch, index):
            self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]), sync_dist=True)
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)
    inputs = torch.randn(32, 3, generator=torch.Generator().manual_seed(5))
    def train(run, epochs):
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, True)), batch_size=4)
        callback = clutch.LightningCallback(run, report_every=2)
        trainer = pl.Trainer(
            max_epochs=epochs, callbacks=[callback], logger=False, accelerator="cpu", devices=2, strategy="ddp",
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=2,
        )
        model = Model()
        trainer.fit(model, data, data, ckpt_path=callback.resume_path)
        return trainer.global_step, float(sum(p.sum() for p in model.parameters()))
"""
RUN = """
    with clutch.init(distributed="environment", resume="whole") as run:
        say(whole=train(run, 2))
    with clutch.init(distributed="environment", resume="parts") as run:
        say(first=train(run, 1))
    with clutch.init(distributed="environment", resume="parts") as run:
        assert run.latest_checkpoint.step == 4
        say(parts=train(run, 2))
    try:
        with clutch.init() as run:
            train(run, 1)
    except Conflict as error:
        say(error=str(error))
"""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("library", "file"),
    [(HUGGING_FACE, "trainer/rng_state_1.pth"), (LIGHTNING, "lightning.ckpt")],
    ids=["huggingface", "lightning"],
)
def test_two_processes_report_once_save_together_and_go_on(tmp_path: Path, library: str, file: str) -> None:
    """Two epochs at once, and one after the other in runs of their own, come to the same weights."""
    with Ranks(library + RUN, 2, tmp_path, ENVIRONMENT) as ranks:
        whole, first, parts = ranks.lines(), ranks.lines(), ranks.lines()
        errors = [one["error"] for one in ranks.lines()]
        ranks.done()
    assert whole[0] == whole[1] and whole[0]["whole"][0] == 8
    assert first[0] == first[1] and first[0]["first"][0] == 4
    assert parts[0] == parts[1] and parts[0]["parts"] == pytest.approx(whole[0]["whole"])
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    points = [msgspec.json.decode(line) for line in lines]
    assert len([point for point in points if point["group"] == "validation"]) == 2
    steps = [point["step"] for point in points if point["group"] == "training"]
    assert steps and len(steps) == len(set(steps)), "rank 0 alone has reported"
    saved = checkpoints(tmp_path, "whole")
    assert [path.name for path in saved][-1] == "step-000000008" and file in files_of(saved[-1])
    assert all("has no group with the others" in error for error in errors), errors
