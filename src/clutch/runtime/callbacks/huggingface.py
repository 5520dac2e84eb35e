"""A run as a callback of Hugging Face's ``Trainer``: reports, validates, saves, resumes, stops.

::

    with clutch.init() as run:
        callback = clutch.HuggingFaceCallback(run)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.resume_path)

What the trainer saves (``save_strategy``) becomes a checkpoint of the run; a run that must leave saves first.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from clutch.wire.errors import Conflict

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
        if args.world_size > 1:
            raise Conflict(
                f"the trainer has {args.world_size} processes, and this callback knows one",
                object="HuggingFaceCallback",
                next_step="Train with one process.",
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        if not logs:
            return
        if FINAL in logs or any(name.startswith(EVALUATION) for name in logs):
            return  # a summary of the whole, or a validation
        values = _numbers(logs)
        if values:
            self.run.report(state.global_step, values)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
        if not metrics:
            return
        values = {name.removeprefix(EVALUATION): value for name, value in _numbers(metrics).items() if name != "epoch"}
        if values and not self.run.validate(state.global_step, values):
            self._leave(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.run.should_stop():
            self._leave(control)

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        step = state.global_step
        saved = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        with self.run.checkpoint(step, {"epoch": state.epoch or 0.0}) as path:
            shutil.copytree(saved, Path(path) / FOLDER)

    def _leave(self, control: Any) -> None:
        control.should_save = True
        control.should_training_stop = True


def _numbers(metrics: Any) -> dict[str, float]:
    return {
        str(name): float(value) for name, value in dict(metrics).items() if isinstance(value, int | float)
    }  # fmt: skip
