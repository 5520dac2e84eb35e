"""The stage with the words of these tests: experiments, their trials, and what programs and people say."""

from __future__ import annotations

from typing import Any

import msgspec

from clutch.core.freezing import freeze
from clutch.core.projection import project
from clutch.core.state import Touched
from clutch.testing.stage import POOL, Stage
from clutch.wire import events as e
from clutch.wire import experiment_words as w
from clutch.wire.experiment_open import new_experiment, reopen
from clutch.wire.experiments import (
    Const,
    Double,
    ExperimentSpec,
    ExperimentState,
    Method,
    Retention,
    SearchSpec,
    Single,
    TrialResources,
    TrialState,
)
from clutch.wire.facts import EffectOwed, Fact
from clutch.wire.ids import MemberId, TaskId
from clutch.wire.journal import Gone
from clutch.wire.messages import Exit, ExitCause
from clutch.wire.outcomes import AllocationState, MemberState
from clutch.wire.programs import Program
from clutch.workloads.experiment.controller.controller import ExperimentController
from clutch.workloads.experiment.controller.own import Own
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.machine.trial import Trial

EXP = "e-1"
OWN_VIEWS = ("experiments", "trials", "workloads", "checkpoints", "experiment_archives")


def make_spec(method: Method | None = None, *, max_time: int = 0, **more: Any) -> ExperimentSpec:
    """An experiment that keeps all its checkpoints, unless told otherwise."""
    search = {name: more.pop(name) for name in ("metric", "smaller_is_better", "time_metric") if name in more}
    resources = more.pop("resources", {})
    space: dict[str, Any] = {"lr": Double(0.0, 1.0)} if method is not None else {"lr": Const(0.1)}
    fields: dict[str, Any] = {
        "name": "exp",
        "program": Program(argv=("python", "train.py")),
        "hyperparameters": space,
        "search": SearchSpec(method=method or Single(), max_time=max_time, **search),
        "resources": TrialResources(**{"pool": POOL, **resources}),
        "retention": Retention(save_experiment_best=1000, save_trial_best=1000, save_trial_latest=1000),
    }
    return ExperimentSpec(**{**fields, **more})


class Laboratory(Stage):
    """A stage with one experiment on it. ``table`` holds the rows of its views as a reader would find them."""

    def __init__(self, nodes: int = 2, slots: int = 4) -> None:
        self.table: dict[tuple[str, str], Any] = {}
        super().__init__({"experiment": ExperimentController()})
        self.owed: list[w.ExperimentNews] = []
        self.released: list[w.Release] = []
        for number in range(nodes):
            self.add_node(f"n{number}", slots)

    def schedule(self) -> list[Fact]:
        facts = super().schedule()
        self._project()
        return facts

    def _project(self) -> None:
        """What the loop does after each turn: rows of whatever has been touched by workloads."""
        touched = Touched()
        touched.notes, self.state.touched.notes = self.state.touched.notes, {}
        touched.ended_workloads = self.state.touched.ended_workloads
        for row in project(self.state, touched):
            if isinstance(row, Gone):
                self.table.pop((row.table, row.key), None)
            elif row.table in OWN_VIEWS:
                self.table[row.table, row.key] = row

    # -- the experiment ------------------------------------------------------------------------------------------

    def open(self, spec: ExperimentSpec, *, paused: bool = False, experiment: str = EXP) -> Laboratory:
        payload = new_experiment(spec, paused)
        event = e.OpenController(cause="api", controller=experiment, kind="experiment", spec=payload)
        self._do(event)
        return self

    def reopen(self) -> None:
        payload = reopen(self.table["experiment_archives", EXP].payload)
        self._do(e.OpenController(cause="api", controller=EXP, kind="experiment", spec=payload))

    def say(self, said: w.Said) -> list[Fact]:
        return self._do(e.TellController(cause="api", controller=EXP, payload=w.say(said)))

    def _do(self, event: e.Event) -> list[Fact]:
        facts = self.do(event)
        self._owe(facts)
        return facts

    def _owe(self, facts: list[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, EffectOwed) and fact.kind == w.RELEASE:
                self.released.append(msgspec.msgpack.decode(fact.payload, type=w.Release))
            elif isinstance(fact, EffectOwed):
                self.owed.append(msgspec.msgpack.decode(fact.payload, type=w.ExperimentNews))

    @property
    def own(self) -> Own:
        own: Own = self.state.workloads[EXP].own
        return own

    @property
    def exp(self) -> Experiment:
        return self.own.exp

    @property
    def closed(self) -> bool:
        return EXP not in self.state.workloads

    @property
    def view(self) -> Any:
        return self.table["experiments", EXP]

    def trial(self, number: int) -> Trial:
        return self.exp.trials[number]

    def trial_row(self, number: int) -> Any:
        return self.table["trials", f"{EXP}.{number}"]

    def rows(self, kind: str) -> list[Any]:
        return [row for (table, _), row in sorted(self.table.items()) if table == kind]

    def steps(self, number: int) -> list[str]:
        """A trial's workloads, in words."""
        rows = [row for row in self.rows("workloads") if row.trial == f"{EXP}.{number}"]
        assert [row.number for row in rows] == list(range(1, len(rows) + 1))
        return [row.kind if row.state == "done" else f"{row.kind} {row.state}" for row in rows]

    # -- its tasks -----------------------------------------------------------------------------------------------

    def task(self, number: int) -> TaskId:
        return TaskId(self.trial(number).task)

    def placed(self, task: TaskId) -> bool:
        return task in self.state.allocations

    def up(self, task: TaskId) -> TaskId:
        for member in list(self.state.members_of(task)):
            if member.state in (MemberState.PLACED, MemberState.STARTING):
                self.run(member.member)
        return task

    def chief(self, task: TaskId) -> MemberId:
        return MemberId(task, "main", 0)

    def epoch(self, task: TaskId) -> int:
        return self.state.tasks[task].epoch

    def validate(self, number: int, step: int, loss: float | None = None, **values: float) -> list[Fact]:
        task = self.up(self.task(number))
        values = {**values, **({"loss": loss} if loss is not None else {})}
        return self.say(w.Validated(task, self.epoch(task), step, values, self.now))

    def checkpoint(self, number: int, step: int, name: str = "") -> str:
        task = self.up(self.task(number))
        member = self.state.members[self.chief(task)]
        checkpoint = name or f"c{number}-{self.epoch(task)}-{step}"
        fence = member.fence(self.state.generation)
        self._do(
            e.CommitCheckpoint(
                cause="program", task=task, member=member.member, fence=fence, checkpoint=checkpoint, step=step
            )
        )
        return checkpoint

    def ends(self, task: TaskId, code: int = 0, **more: Any) -> list[Fact]:
        """Its process exits by itself."""
        self.up(task)
        facts = self.exit(self.chief(task), Exit(code, **more))
        self._owe(facts)
        return facts

    def breaks(self, task: TaskId) -> list[Fact]:
        return self.ends(task, 1, cause=ExitCause.MACHINE)

    def leaves(self, task: TaskId) -> list[Fact]:
        """It was asked to leave, says so, and leaves."""
        assert self.state.allocations[task].state is AllocationState.LEAVING, f"{task} was not asked to leave"
        member = self.state.members[self.chief(task)]
        fence = member.fence(self.state.generation)
        self._do(e.AckLeave(cause="program", task=task, member=member.member, fence=fence))
        return self.ends(task)

    def asked_to_leave(self, task: TaskId) -> bool:
        found = self.state.allocations.get(task)
        return found is not None and found.state is AllocationState.LEAVING

    def held_slots(self) -> int:
        return sum(len(m.placement.slots) for m in self.state.members.values() if m.placement is not None)

    # -- what must hold at all times -----------------------------------------------------------------------------

    def check(self) -> None:
        """Invariants that every state satisfies."""
        mine = {task for task, found in self.state.tasks.items() if found.controller == EXP}
        if self.closed:
            assert not mine, f"it is closed and has tasks: {mine}"
            return
        exp = self.exp
        for number, trial in exp.trials.items():
            tasks = [task for task in trial.tasks if TaskId(task) in self.state.tasks]
            assert len(tasks) <= 1, f"trial {number} has two live tasks: {tasks}"
            assert trial.live == (number in exp.live)
            if not trial.live:
                assert not tasks, f"trial {number} is {trial.state} and has {tasks}"
                assert not trial.asked
            elif not exp.spec.detached:
                assert tasks == [trial.task], f"trial {number} is {trial.state} and its task is gone"
            assert trial.steps == sorted(set(trial.steps))
        counted: dict[str, int] = {}
        for trial in exp.trials.values():
            counted[trial.state] = counted.get(trial.state, 0) + 1
        assert {state: count for state, count in exp.counts.items() if count} == counted
        for one in exp.checkpoints.values():
            assert not one.pins or one.state in ("committed", "partial"), f"{one.checkpoint} was pinned and is going"
        known = {*(t.task for t in exp.trials.values()), *exp.cleanups, exp.searcher}
        assert mine <= known, mine - known

    def check_refold(self) -> None:
        """A new process makes the same of the rows; so does one that starts from a snapshot."""
        assert freeze(self.refold()).payload == freeze(self.state).payload
        if not self.closed:
            controller = ExperimentController()
            assert controller.dump(controller.load(controller.dump(self.own))) == controller.dump(self.own)

    def check_rows(self) -> None:
        """Rows made step by step are those that all notes at once would make."""
        controller = ExperimentController()
        own: Any = None
        rows: dict[tuple[str, str], Any] = {}
        for recorded in self.history:
            fact = recorded.fact
            if type(fact).__name__ == "ControllerOpened" and fact.controller == EXP:  # type: ignore[union-attr]
                own, notes = controller.open(EXP, fact.spec), []  # type: ignore[union-attr]
            elif type(fact).__name__ == "ControllerNoted" and fact.controller == EXP:  # type: ignore[union-attr]
                controller.apply(own, fact.note)  # type: ignore[union-attr]
                notes.append(fact.note)  # type: ignore[union-attr]
            last = recorded is self.history[-1]
            if own is not None and notes and (last or type(fact).__name__ == "ControllerClosed"):
                for row in controller.rows(own, notes):
                    if isinstance(row, Gone):
                        rows.pop((row.table, row.key), None)
                    else:
                        rows[row.table, row.key] = row
                notes = []
        assert rows == self.table


__all__ = ["EXP", "ExperimentState", "Laboratory", "TrialState", "make_spec"]
