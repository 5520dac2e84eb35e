"""A researcher: submits experiments, pauses them, loses patience, and wants some of them again when they are over."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from clutch.testing.sim.calls import Caller
from clutch.testing.sim.trials import FINAL
from clutch.testing.sim.users import POOL
from clutch.wire import events as e
from clutch.wire import experiment_words as w
from clutch.wire.experiment_open import new_experiment, reopen
from clutch.wire.experiments import (
    KIND,
    Asha,
    Const,
    Double,
    ExperimentSpec,
    ExperimentState,
    Method,
    OutputRule,
    Pbt,
    RandomSearch,
    Retention,
    RuleAction,
    SearchSpec,
    TrialResources,
)
from clutch.wire.programs import Program
from clutch.wire.resources import ANY
from clutch.workloads.experiment.controller.own import Own

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster

LENGTH = 16
MAY_SAY: tuple[tuple[float, str], ...] = ((0.35, "pause"), (0.1, "cancel"), (0.05, "kill"), (0.2, "stop"), (0.2, "pin"))


class Researcher:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.chance = self.world.chance("experiments")
        self.bounds = self.world.chance("experiments/bounds")
        self.caller = Caller(cluster, "people/experiments")
        self.again: dict[str, str] = {}
        """What was wanted of experiments that had ended."""
        for number in range(cluster.plan.experiments):
            self.world.after(self.chance.uniform(0.5, 25.0), partial(self._submit, number))

    def _submit(self, number: int) -> None:
        name = f"exp-{number}"
        spec = make_experiment(name, self.chance)
        paused = self.chance.random() < 0.1
        self._open(name, new_experiment(spec, paused))
        for likely, what in MAY_SAY:
            if self.chance.random() < likely:
                after = self.chance.uniform(3.0, 60.0)
                self.world.after(after, partial(self._do, name, what))
        if self.bounds.random() < 0.5:
            self.world.after(self.bounds.uniform(3.0, 40.0), lambda: self._bound(name, spec.resources.slots))
        self.world.after(10.0, lambda: self._look(name))

    def _bound(self, name: str, slots: int) -> None:
        """For a while only one of its trials may run."""
        if self.own(name) is None or self.cluster.winding_up:
            return
        self.say(name, w.EditExperiment(max_slots=slots))
        self.world.after(self.bounds.uniform(20.0, 60.0), lambda: self.say(name, w.EditExperiment(max_slots=0)))

    def _open(self, name: str, payload: bytes) -> None:
        event = e.OpenController(cause="api:ada", controller=name, kind=KIND, spec=payload)
        self.caller.ask(event, _nothing)

    def own(self, name: str) -> Own | None:
        workload = self.cluster.truth.state.workloads.get(name)
        return workload.own if workload is not None else None

    def say(self, name: str, said: w.Said) -> None:
        self.caller.ask(e.TellController(cause="api:ada", controller=name, payload=w.say(said)), _nothing)

    def _do(self, name: str, what: str) -> None:
        own = self.own(name)
        if own is None or self.cluster.winding_up:
            return
        if what == "pause":
            self.say(name, w.PauseExperiment())
            self.world.after(self.chance.uniform(1.0, 20.0), lambda: self.say(name, w.ResumeExperiment()))
        elif what == "cancel":
            self.say(name, w.CancelExperiment())
        elif what == "kill":
            self.say(name, w.KillExperiment())
        elif what == "stop" and own.exp.trials:
            self.say(name, w.StopTrial(self.chance.choice(list(own.exp.trials)), kill=self.chance.random() < 0.5))
        elif what == "pin" and own.exp.checkpoints:
            self.say(name, w.PinCheckpoints((self.chance.choice(list(own.exp.checkpoints)),), "model:best/1"))

    # -- afterwards ----------------------------------------------------------------------------------------------

    def _look(self, name: str) -> None:
        """Now and then at one that runs; one that is over is wanted again, once."""
        if self.cluster.winding_up:
            return
        archive = self.cluster.experiment_promises.archives.get(name)
        if self.own(name) is not None or archive is None:
            self.world.after(5.0, lambda: self._look(name))
            return
        self.again[name] = self.chance.choice(("continue", "continue", "extend", "delete", "retention", "nothing"))
        self._open(name, reopen(archive))
        self.world.after(2.0, lambda: self._want(name))

    def _want(self, name: str) -> None:
        match self.again[name]:
            case "continue":
                self.say(name, w.ContinueExperiment(max_restarts=2))
            case "extend":
                self.say(name, w.ContinueExperiment(max_trials=self.chance.randint(4, 9)))
            case "delete":
                self.say(name, w.DeleteExperiment())
                self.world.after(2.0, lambda: self.say(name, w.Forgotten()))
            case "retention":
                self.say(name, w.EditExperiment(save_trial_best=0, save_trial_latest=0))

    def wind_up(self) -> None:
        """Whatever waits for somebody is told to go on; the rest must end by itself."""
        for name, workload in self.cluster.truth.state.workloads.items():
            if workload.kind != KIND:
                continue
            if workload.own.exp.state is ExperimentState.PAUSED:
                self.say(name, w.ResumeExperiment())
            elif workload.own.exp.state is ExperimentState.DELETING:
                self.say(name, w.Forgotten())


def _nothing(answer: object, error: str) -> None:
    """Whatever it hears, it goes on."""


def make_experiment(name: str, chance: Random) -> ExperimentSpec:
    """A search of some kind, with few and short trials."""
    method: Method = chance.choice(
        (
            RandomSearch(max_trials=4, max_concurrent_trials=2),
            Asha(max_trials=6, num_rungs=3, divisor=2.0, max_concurrent_trials=3),
            Asha(max_trials=6, num_rungs=3, divisor=2.0, max_concurrent_trials=3, promotion=True),
            Pbt(population_size=4, num_rounds=2, length_per_round=6, truncate_fraction=0.25),
        )
    )
    settings: dict[str, Any] = {
        "step_s": chance.choice((0.3, 0.8)),
        "failing": chance.choice((0.0, 0.0, 0.02)),
        "stubborn": chance.choice((0.0, 0.0, 0.3)),
        "steps": 40 if isinstance(method, Pbt) else LENGTH,
    }
    own_end = isinstance(method, RandomSearch) and chance.random() < 0.5
    return ExperimentSpec(
        name=name,
        owner="ada",
        workspace="lab",
        program=Program(argv=("train",)),
        hyperparameters={"base": Double(0.0, 1.0), **{key: Const(value) for key, value in settings.items()}},
        search=SearchSpec(method=method, max_time=0 if own_end or isinstance(method, Pbt) else LENGTH),
        resources=TrialResources(
            slots=chance.choice((1, 1, 2)),
            kind=ANY,
            single_node=True,
            pool=POOL,
            priority=chance.choice((30, 42, 42, 60)),
        ),
        retention=Retention(save_trial_best=chance.choice((0, 1)), save_trial_latest=1),
        max_restarts=chance.choice((0, 2, 8)),
        leave_within_s=chance.choice((2.0, 8.0, 20.0)),
        output_rules=(OutputRule(name=FINAL, pattern="x", action=RuleAction.CANCEL_RETRIES),),
        seed=chance.randrange(1000),
    )
