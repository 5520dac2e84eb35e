"""A search of somebody's own whose trials begin from what other experiments have saved.

It does what a master does for such a search: the checkpoint is held first, and only then is the answer that wants it
told. The lender knows nothing of it but the hold.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from clutch.testing.sim.calls import Caller
from clutch.testing.sim.experiments import make_experiment
from clutch.wire import events as e
from clutch.wire import experiment_words as w
from clutch.wire.experiment_open import new_experiment
from clutch.wire.experiments import KIND, CheckpointState, Const, Custom, SearchSpec

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster

AGAIN_S = 2.0
REQUEST = "borrowed"


class Borrower:
    """Experiments that begin from others' checkpoints, one after the other."""

    holds = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.chance = self.world.chance("borrowing")
        self.caller = Caller(cluster, "people/borrowing")
        self.begun = 0
        for number in range(cluster.plan.borrowers):
            self.world.after(self.chance.uniform(8.0, 40.0), partial(self._look, f"borrower-{number}"))

    def _look(self, name: str) -> None:
        """Until somebody has saved something that retention may not keep."""
        if self.cluster.winding_up:
            return
        found = [
            (lender, one.checkpoint)
            for lender, workload in self.cluster.truth.state.workloads.items()
            if workload.kind == KIND and lender.startswith("exp-")
            for one in workload.own.exp.checkpoints.values()
            if one.state is CheckpointState.COMMITTED
        ]
        if not found:
            self.world.after(AGAIN_S, lambda: self._look(name))
            return
        lender, checkpoint = self.chance.choice(found)
        spec = make_experiment(name, self.chance)
        hyperparameters = {**spec.hyperparameters, "steps": Const(24)}
        spec = msgspec.structs.replace(spec, search=SearchSpec(method=Custom()), hyperparameters=hyperparameters)
        paused = self.chance.random() < 0.5
        event = e.OpenController(cause="api:ada", controller=name, kind=KIND, spec=new_experiment(spec, paused))
        self.caller.ask(event, lambda answer, error: self._opened(name, lender, checkpoint))

    def _opened(self, name: str, lender: str, checkpoint: str) -> None:
        if not self.holds:
            self._answer(name, checkpoint, "")
            return
        self._say(
            lender,
            w.PinCheckpoints((checkpoint,), w.holder_of(name)),
            lambda answer, error: self._answer(name, checkpoint, error),
        )

    def _answer(self, name: str, checkpoint: str, refused: str) -> None:
        """What cannot be held is not begun from."""
        wanted: tuple[w.Operation, ...] = () if refused else (w.MakeTrial(REQUEST, checkpoint=checkpoint),)
        self.begun += len(wanted)
        self._say(name, w.SearchAnswered(1, (*wanted, w.Shutdown())), _nothing)
        self.world.after(self.chance.uniform(5.0, 60.0), lambda: self._say(name, w.ResumeExperiment(), _nothing))

    def _say(self, name: str, said: w.Said, then: object) -> None:
        event = e.TellController(cause="api:ada", controller=name, payload=w.say(said))
        self.caller.ask(event, then)  # type: ignore[arg-type]  # a Then


def _nothing(answer: object, error: str) -> None:
    """Whatever it hears, it goes on."""
