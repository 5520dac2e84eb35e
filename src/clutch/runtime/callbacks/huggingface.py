"""A run as a callback of Hugging Face's ``Trainer``: reports, validates, saves, resumes, stops.

::

    with clutch.init() as run:
        callback = clutch.HuggingFaceCallback(run)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.resume_path)

What the trainer saves (``save_strategy``) becomes a checkpoint of the run; a run that must leave saves first. On
several processes each of them makes a run and its callback; rank 0 reports, and what each node has saved is one
checkpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from clutch.runtime.callbacks.ranks import check_ranks, validate_together

if TYPE_CHECKING:
    from clutch.runtime.context import Run

FOLDER = "trainer"
EVALUATION, FINAL = "eval_", "train_runtime"


class HuggingFaceCallback(TrainerCallback):
    """What the trainer logs is reported, what it evaluates is a validation (without the prefix ``eval_``)."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def resume_path(self) -> str | None:
        """For ``train(resume_from_checkpoint=...)``: the run's latest checkpoint; None: begin anew."""
        found = self.run.latest_checkpoint
        return None if found is None else str(found / FOLDER)

    # -- what the trainer calls ------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        check_ranks(self.run, args.world_size, "HuggingFaceCallback")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        if not logs or self.run.rank != 0:
            return
        if FINAL in logs or any(name.startswith(EVALUATION) for name in logs):
            return  # a summary of the whole, or a validation
        values = _numbers(logs)
        if values:
            self.run.report(state.global_step, values)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
        found = _numbers(metrics or {})
        values = {name.removeprefix(EVALUATION): value for name, value in found.items() if name != "epoch"}
        if not validate_together(self.run, state.global_step, values):
            self._leave(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.run.should_stop():
            self._leave(control)

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        step = state.global_step
        saved = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        several = self.run.size > 1
        if several:
            self.run.distributed.barrier()  # each process writes some files of its own, before it comes here
        with self.run.checkpoint(step, {"epoch": state.epoch or 0.0}, shard=several) as path:
            if not several or self.run.distributed.is_local_chief:
                shutil.copytree(saved, Path(path) / FOLDER)

    def _leave(self, control: Any) -> None:
        control.should_save = True
        control.should_training_stop = True


def _numbers(metrics: Any) -> dict[str, float]:
    return {
        str(name): float(value) for name, value in dict(metrics).items() if isinstance(value, int | float)
    }  # fmt: skip
