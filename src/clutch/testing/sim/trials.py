"""Programs of simulated experiments: trials that train, validate and save, and clean-ups that remove files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from clutch.testing.sim.processes import Process, Work, checkpoint_step
from clutch.wire import events as e
from clutch.wire import experiment_words as w
from clutch.wire.experiments import CLEANUP_VARIABLE, TRIAL_VARIABLE, CleanupOrder, TrialInfo
from clutch.wire.messages import WantedMember
from clutch.wire.programs import Program

if TYPE_CHECKING:
    from clutch.testing.sim.machine import Machine

VALIDATES_EVERY = 2
FINAL = "final"
"""The output rule after which a failure is the last."""


def loss(hparams: dict[str, Any], step: int) -> float:
    """What a trial with these hyperparameters reports at a step, in whatever epoch it comes there."""
    return float(hparams["base"]) + 1.0 / (1.0 + step)


class TrialProcess(Process):
    """Trains up to its length, or until it is asked to leave. It hears of that from a master, not by a signal."""

    plain = 0.0

    def __init__(self, machine: Machine, wanted: WantedMember, program: Program) -> None:
        self.info = info = msgspec.json.decode(program.environment[TRIAL_VARIABLE], type=TrialInfo)
        work = Work(
            steps=info.max_time or int(info.hparams["steps"]),
            step_s=float(info.hparams["step_s"]),
            checkpoint_every=3,
            stubborn=float(info.hparams["stubborn"]),
            failing=float(info.hparams["failing"]),
        )
        super().__init__(machine, wanted, work)
        if not wanted.checkpoint:
            self.step = self.saved = checkpoint_step(info.warm_start)

    def name(self, step: int) -> str:
        """Other trials of the experiment have the same fences: a checkpoint's name must tell them apart."""
        return f"{self.wanted.fence}:{self.wanted.member.task}:{step}"

    def _trained(self) -> None:
        if self.step % VALIDATES_EVERY and self.step < self.work.steps:
            self._go_on()
            return
        said = w.Validated(
            self.wanted.member.task, self.wanted.fence.epoch, self.step, {"loss": loss(self.info.hparams, self.step)}
        )
        step = self.step

        def answered(answer: object, error: str) -> None:
            if not error:
                promises = self.machine.cluster.experiment_promises
                promises.validation_acknowledged(self.info, said.task, said.epoch, step)
            if self.alive and not self.leaving:
                self._remark()
                self._go_on()

        self._tell(said, answered)

    def _tell(self, said: w.Said, then: Any) -> None:
        event = e.TellController(cause="lane", controller=self.info.experiment, payload=w.say(said))
        self.caller.ask(event, then)

    def _remark(self) -> None:
        """Now and then it says more: that it is through, that it refuses, a line that matches a rule."""
        task, epoch, luck = self.wanted.member.task, self.wanted.fence.epoch, self.world.chance("trials").random()
        if luck < 0.05:
            self._tell(w.OperationDone(task, epoch, self.step), _nothing)
        elif luck < 0.07:
            self._tell(w.EarlyExit(task, epoch, "invalid_hp"), _nothing)
        elif luck < 0.12:
            self._tell(w.Matched(task, epoch, self.machine.node, FINAL), _nothing)

    def _go_on(self) -> None:
        if self.step >= self.work.steps:
            self._finish()
        elif self.step % self.work.checkpoint_every == 0:
            self._checkpoint(self._next)
        else:
            self._next()


class CleanupProcess(Process):
    """Removes files, which takes a moment and does not always succeed."""

    plain = 0.0

    def __init__(self, machine: Machine, wanted: WantedMember, program: Program) -> None:
        self.order = msgspec.json.decode(program.environment[CLEANUP_VARIABLE], type=CleanupOrder)
        super().__init__(machine, wanted, Work(steps=1, step_s=0.5, failing=0.1))

    def _trained(self) -> None:
        self.machine.cluster.experiment_promises.removing(self.order)
        self._finish()


def _nothing(answer: object, error: str) -> None:
    """Whatever it hears, it goes on."""


def make_program(machine: Machine, wanted: WantedMember, program: Program) -> Process:
    kind = TrialProcess if TRIAL_VARIABLE in program.environment else CleanupProcess
    return kind(machine, wanted, program)
