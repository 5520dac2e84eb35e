"""What experiments promise: every validation counts once and for its own trial, nothing held or counted on is removed,
no more slots are given than their bound allows, all of them end, and whoever should hear of it does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clutch.core.recorded import Recorded
from clutch.core.scheduling.ledger import slots_held
from clutch.core.scheduling.quota import group_of
from clutch.testing.sim.trials import loss
from clutch.wire import facts as f
from clutch.wire.experiments import KIND, CheckpointState, CleanupOrder, TrialInfo
from clutch.wire.ids import TaskId
from clutch.workloads.experiment.controller.own import Own
from clutch.workloads.experiment.controller.sources import foreign
from clutch.workloads.experiment.machine import notes as n

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster

PROMISE = "an experiment's promise"


class ExperimentPromises:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.truth = cluster.truth
        self.archives: dict[str, bytes] = {}
        """Of experiments that are over, as the last that closed left them."""
        self.heard: dict[tuple[str, int, int], None] = {}
        """Experiment, trial and step of each validation that a search was told of."""
        self.best: dict[str, float] = {}
        """The least loss that any trial of an experiment was told is durable."""
        self.delivered: dict[str, int] = {}
        """How often each webhook was told."""
        self.stopped: dict[str, float] = {}
        """When a search stopped which task, and it has not ended since."""

    def _break(self, what: str, subject: str) -> None:
        self.cluster.promises.break_(PROMISE, what, subject)

    def _own(self, experiment: str) -> Own | None:
        workload = self.truth.state.workloads.get(experiment)
        return workload.own if workload is not None and workload.kind == KIND else None

    # -- at each commit ------------------------------------------------------------------------------------------

    def deciding(self, recorded: Recorded) -> None:
        match recorded.fact:
            case f.ControllerNoted(controller, note) if self._own(controller) is not None:
                self._noted(controller, n.noted(note), recorded.at)
            case f.ControllerClosed(controller):
                self._closing(controller)
            case f.TaskEnded(task):
                self.stopped.pop(task, None)
            case f.AllocationGranted(task, _, placed):
                self._granted(task, sum(len(one.placement.slots) for one in placed))

    def _granted(self, task: TaskId, slots: int) -> None:
        """Whoever is leaving still holds what it holds. Only a bound that was just lowered is below what is held."""
        experiment = self.truth.state.tasks[task].controller
        own = self._own(experiment)
        if own is None or not own.exp.max_slots or not slots:
            return
        self.cluster.promises.checks += 1
        holdings = self.truth.state.ledger_of(task).holdings.values()
        held = sum(slots_held(one.placements) for one in holdings if group_of(one.request) == experiment)
        if held + slots > own.exp.max_slots:
            self._break(f"{task} gets {slots} slots, {experiment} holds {held} of {own.exp.max_slots}", task)

    def _noted(self, experiment: str, fact: n.Fact, at: float) -> None:
        own = self._own(experiment)
        assert own is not None
        match fact:
            case n.ValidationHeard(trial=number, step=step):
                self._validation(experiment, own, fact)
                self.heard[experiment, number, step] = None
            case n.EndWished(trial=number, end=n.End.STOP):
                self.stopped[own.exp.trials[number].task] = at
            case n.Removed():
                self.archives.pop(experiment, None)
                self.best.pop(experiment, None)

    def _validation(self, experiment: str, own: Own, fact: n.ValidationHeard) -> None:
        trial = own.exp.trials[fact.trial]
        name = f"{experiment}.{fact.trial}"
        if (experiment, fact.trial, fact.step) in self.heard:
            self._break(f"step {fact.step} of {name} is told to its search twice", trial.task)
        if fact.value != loss(trial.hparams, fact.step):
            self._break(f"step {fact.step} of {name} counts as {fact.value}, which is another trial's", trial.task)
        task = self.truth.state.tasks.get(trial.task)  # type: ignore[call-overload]  # a TaskId is a str
        if task is not None and task.epoch != fact.epoch:
            self._break(f"a fenced incarnation of {name} is listened to: {fact.epoch}, not {task.epoch}", trial.task)

    def _closing(self, experiment: str) -> None:
        own = self._own(experiment)
        if own is None:
            return
        exp = own.exp
        mine = [task for task, found in self.truth.state.tasks.items() if found.controller == experiment]
        if mine:
            self._break(f"{experiment} is put away and {', '.join(mine)} live", experiment)
        if exp.ended:
            self.archives[experiment] = self.cluster.controllers[KIND].dump(own)
            told = min((loss(t.hparams, s) for t in exp.trials.values() for s in t.steps), default=math.inf)
            if exp.best > self.best.get(experiment, math.inf) or exp.best != told:
                self._break(f"the best of {experiment} is {told}, and it says {exp.best}", experiment)

    # -- what programs hear and do -------------------------------------------------------------------------------

    def validation_acknowledged(self, info: TrialInfo, task: str, epoch: int, step: int) -> None:
        """It is durable, unless it was said by somebody whose word does not count any more."""
        self.cluster.promises.checks += 1
        own = self._own(info.experiment)
        trial = own.exp.trials.get(info.trial) if own is not None else None
        if trial is None or trial.task != task or trial.epoch != epoch:
            return
        if not trial.validated(step):
            self._break(f"step {step} of {task} was acknowledged and does not count", task)
        value = loss(info.hparams, step)
        self.best[info.experiment] = min(value, self.best.get(info.experiment, math.inf))

    def removing(self, order: CleanupOrder) -> None:
        """Files are about to go: nobody may hold them, and nobody may count on them."""
        self.cluster.promises.checks += 1
        own = self._own(order.experiment)
        if own is None:
            return
        for item in order.checkpoints:
            one = own.exp.checkpoints[item.checkpoint]
            if one.pins or one.state in (CheckpointState.COMMITTED, CheckpointState.PARTIAL):
                held = f" and {', '.join(one.pins)} hold it" if one.pins else ""
                self._break(f"{item.checkpoint} is removed while it is {one.state}{held}", item.task)
            for name, workload in self.truth.state.workloads.items():
                if workload.kind == KIND and not workload.own.exp.ended and item.checkpoint in foreign(workload.own):
                    self._break(f"{item.checkpoint} is removed and {name} begins from it", item.task)

    # -- at the end ----------------------------------------------------------------------------------------------

    def at_rest(self) -> bool:
        return not self.truth.owed

    def settled(self) -> None:
        for name, workload in self.truth.state.workloads.items():
            if workload.kind == KIND:
                exp = workload.own.exp
                live = ", ".join(f"{n} {exp.trials[n].state}" for n in exp.live)
                self._break(f"{name} does not end: it is {exp.state}, trials {live or 'none'}", name)
        for task in self.stopped:
            self._break(f"{task} was stopped by its search and has not ended", task)
        for token in self.truth.owed:
            self._break(f"{token} is owed and nobody has heard of it", token)
