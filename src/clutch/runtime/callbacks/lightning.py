"""A run as a callback of Lightning's ``Trainer``: reports, validates, saves, resumes, stops.

::

    with clutch.init() as run:
        callback = clutch.LightningCallback(run)
        trainer = Trainer(max_epochs=10, callbacks=[callback], logger=callback.logger(), enable_checkpointing=False)
        trainer.fit(model, data, ckpt_path=callback.resume_path)

On several processes each of them makes a run and its callback; rank 0 reports, all save together.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger

from clutch.runtime.callbacks.ranks import check_ranks, validate_together
from clutch.wire.errors import BadRequest

if TYPE_CHECKING:
    from clutch.runtime.context import Run

FILE = "lightning.ckpt"
EVERYWHERE = "/tmp"
"""Where a folder of one name can be made on each of several nodes."""


class LightningCallback(pl.Callback):
    """After each validation the metrics are reported and a checkpoint is saved; a run that must leave saves and stops.
    With them go ``epochs`` and ``batches``, either of which may be the search's ``time_metric``.

    ``report_every``: steps between reports of training metrics; 0: as often as the trainer logs.
    ``save_every``: validations between checkpoints; 0: only when the run must leave and at the end.
    """

    def __init__(self, run: Run, *, report_every: int = 0, save_every: int = 1) -> None:
        if report_every < 0 or save_every < 0:
            raise BadRequest("a number of steps is not negative", object="LightningCallback")
        self.run = run
        self._report_every = report_every
        self._save_every = save_every
        self._validations = 0
        self._saved_step = -1
        self._save_later = False

    @property
    def resume_path(self) -> str | None:
        """For ``fit(ckpt_path=...)``: the run's latest checkpoint; None: begin anew."""
        found = self.run.latest_checkpoint
        return None if found is None else str(found / FILE)

    def logger(self) -> ClutchLogger:
        """What is logged with ``self.log`` is reported at the step it is logged at, if this is the trainer's logger."""
        return ClutchLogger(self.run)

    # -- what the trainer calls ------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        check_ranks(self.run, trainer.world_size, "LightningCallback")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:  # fmt: skip
        step = trainer.global_step
        every = self._report_every or trainer.log_every_n_steps
        has_logger = any(isinstance(one, ClutchLogger) for one in trainer.loggers)
        if self.run.rank == 0 and not has_logger and every and step % every == 0:
            values = _numbers(trainer.logged_metrics or trainer.callback_metrics)
            if values:
                self.run.report(step, values)
        if self.run.should_stop():
            self._save(trainer)
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        step = trainer.global_step
        values = _numbers(trainer.callback_metrics)
        if values:
            values = {"epochs": _epochs(trainer), "batches": float(step), **values}
        go_on = validate_together(self.run, step, values)
        self._validations += 1
        if not go_on or (self._save_every and self._validations % self._save_every == 0):
            self._save_later = True
        if not go_on:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        # Not where the validation ends: there the epoch is still under way, and would be begun again on resuming
        if self._save_later:
            self._save(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._save(trainer)

    def _save(self, trainer: Any) -> None:
        self._save_later = False
        step = trainer.global_step
        if step == self._saved_step:
            return
        self._saved_step = step
        metadata = {"epoch": trainer.current_epoch}
        if self.run.size == 1:
            with self.run.checkpoint(step, metadata) as path:
                trainer.save_checkpoint(Path(path) / FILE)
            return
        ranks = self.run.distributed
        folder = Path(ranks.broadcast(str(self._common_folder(step))))  # some strategies write to rank 0's path
        try:
            with self.run.checkpoint(step, metadata, shard=True, folder=folder) as path:
                trainer.save_checkpoint(Path(path) / FILE)
        finally:
            if ranks.is_local_chief:
                shutil.rmtree(folder, ignore_errors=True)

    def _common_folder(self, step: int) -> Path:
        name = f"clutch-lightning-{step}-{os.urandom(8).hex()}"
        return (Path(EVERYWHERE) if self.run.distributed.cross_size > 1 else self.run.output_dir) / name


class ClutchLogger(Logger):
    """Reports what a module logs while it trains. Validations are the callback's."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    @property
    def name(self) -> str:
        return self._run.name or "clutch"

    @property
    def version(self) -> str:
        return str(self._run.trial or "")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        return  # the experiment knows them

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        values = {name: value for name, value in _numbers(metrics).items() if name != "epoch"}
        if values and self._run.rank == 0:
            self._run.report(step or 0, values)


def _epochs(trainer: Any) -> float:
    """How often it has seen its data."""
    seen, whole = trainer.fit_loop.epoch_loop.batch_progress.current.ready, trainer.num_training_batches
    return float(trainer.current_epoch + (min(1.0, seen / whole) if whole else 0.0))


def _numbers(metrics: Any) -> dict[str, float]:
    """Those that are one number."""
    found = {}
    for name, value in dict(metrics).items():
        count = getattr(value, "numel", lambda: 1)()
        if count == 1 and not isinstance(value, str):
            found[str(name)] = float(value)
    return found
