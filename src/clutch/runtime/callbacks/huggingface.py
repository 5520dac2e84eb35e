"""A run as a callback of Hugging Face's ``Trainer``: reports, validates, saves, resumes, stops.

::

    with clutch.init() as run:
        callback = clutch.HuggingFaceCallback(run)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.resume_path)

What the trainer saves (``save_strategy``) becomes a checkpoint of the run; a run that must leave saves first. A trainer
that evaluates at all does so at the end too. On several processes each of them makes a run and its callback; rank 0
reports, and what each node has saved is one checkpoint.
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
SPEED = ("_runtime", "_per_second", "_compilation_time")
"""How long the trainer took says nothing about the model."""


class HuggingFaceCallback(TrainerCallback):
    """What the trainer logs is reported, what it evaluates is a validation: without the prefix ``eval_``, and with
    ``epochs`` and ``batches``, either of which may be the search's ``time_metric``."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._evaluated_step = -1

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
        if state.max_steps > 0:
            self.run.progress(min(1.0, state.global_step / state.max_steps))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
        self._evaluated_step = state.global_step
        found = _numbers(metrics or {})
        values = {name.removeprefix(EVALUATION): value for name, value in found.items()}
        asked = self.run.config.get("searcher", {}).get("metric")
        if asked in found:  # a search may call it as the trainer does
            values[asked] = found[asked]
        if values:
            values = {"epochs": float(state.epoch or 0.0), "batches": float(state.global_step), **values}
        if not validate_together(self.run, state.global_step, values):
            self._leave(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.run.should_stop():
            self._leave(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        ends = 0 < state.max_steps <= state.global_step
        if ends and args.eval_strategy != "no" and self._evaluated_step != state.global_step:
            control.should_evaluate = True

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
    """Those about the model."""
    return {
        str(name): float(value)
        for name, value in dict(metrics).items()
        if isinstance(value, int | float) and name != "epoch" and not str(name).endswith(SPEED)
    }
