"""Random lives of experiments on the real core: whatever happens in whatever order, the invariants hold and it ends."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import EXP, Laboratory, make_spec

from clutch.core.recorded import Recorded
from clutch.wire import experiment_words as w
from clutch.wire import facts as f
from clutch.wire.errors import ClutchError
from clutch.wire.experiments import Asha, Custom, Method, OutputRule, Pbt, RandomSearch, Retention, RuleAction, Single
from clutch.wire.ids import NodeId, TaskId
from clutch.wire.outcomes import AllocationState
from clutch.workloads.experiment.machine import notes as n

METHODS: dict[str, Method] = {
    "single": Single(),
    "random": RandomSearch(max_trials=5, max_concurrent_trials=3),
    "asha": Asha(max_trials=6, num_rungs=3, divisor=2.0, max_concurrent_trials=3),
    "promotion": Asha(max_trials=6, num_rungs=3, divisor=2.0, max_concurrent_trials=3, promotion=True),
    "pbt": Pbt(population_size=4, num_rounds=3, length_per_round=4, truncate_fraction=0.25),
    "custom": Custom(argv=("python", "s.py"), max_concurrent_trials=3),
}
AT_ONCE = {"single": 1, "random": 3, "asha": 3, "custom": 3}
"""Trials that live at once, where the method bounds them."""
RULES = (
    OutputRule(name="final", pattern="x", action=RuleAction.CANCEL_RETRIES),
    OutputRule(name="away", pattern="y", action=RuleAction.EXCLUDE_NODE),
)


class Walk:
    """One life. ``chance`` decides everything."""

    def __init__(self, kind: str, chance: Random) -> None:
        self.kind = kind
        self.chance = chance
        self.lab = Laboratory(nodes=2, slots=chance.choice((1, 2, 4)))
        max_time = 0 if kind in ("single", "random") and chance.random() < 0.5 else 16
        retention = Retention(save_trial_best=chance.choice((0, 1)), save_trial_latest=1)
        self.lab.open(
            make_spec(
                METHODS[kind], max_time=max_time, retention=retention, max_restarts=chance.choice((0, 2)),
                output_rules=RULES,
            ),
            paused=chance.random() < 0.2,
        )  # fmt: skip
        self.step = 0
        self.answers = 0
        self.fed: dict[tuple[int, int], None] = {}

    def say(self, said: w.Said) -> None:
        """Some of what people say makes no sense now; then nothing happens."""
        before = len(self.lab.history)
        try:
            self.lab.say(said)
        except ClutchError:
            assert len(self.lab.history) == before

    def one(self) -> None:
        lab, chance = self.lab, self.chance
        if lab.closed:
            if chance.random() < 0.3:
                self.afterwards()
            return
        self.step += 1
        tasks = [task for task in lab.state.tasks if lab.placed(task)]
        kind = chance.random()
        if kind < 0.5 and tasks:
            self.program(chance.choice(tasks))
        elif kind < 0.6 and self.kind == "custom":
            self.search()
        elif kind < 0.72:
            self.people()
        elif kind < 0.75:
            lab.new_master()
        elif kind < 0.8:
            lab.pass_time(chance.choice((1.0, 30.0, 4000.0)))
        elif tasks:
            self.program(chance.choice(tasks))

    def program(self, task: TaskId) -> None:
        """Something that the program of a placed task does."""
        lab, chance = self.lab, self.chance
        if lab.state.allocations[task].state in (AllocationState.FLUSHING, AllocationState.ENDING):
            return
        number = next((trial.number for trial in lab.exp.trials.values() if trial.task == task), 0)
        if lab.asked_to_leave(task):
            if chance.random() < 0.4 and number:
                lab.checkpoint(number, self.step)
            lab.leaves(task) if chance.random() < 0.8 else lab.ends(task, chance.choice((0, 1)))
            return
        kind = chance.random()
        if not number or kind < 0.08:
            if chance.random() < 0.3:
                lab.ends(task, chance.choice((0, 0, 1)))
        elif kind < 0.6:
            lab.up(task)
            trial = lab.trial(number)
            step = chance.choice((self.step, trial.last_step + 2, 16))
            values = {"loss": chance.random()} if chance.random() < 0.97 else {"acc": 0.1}
            epoch = lab.epoch(task) - chance.choice((0, 0, 0, 1))
            self.say(w.Validated(task, epoch, step, values))
        elif kind < 0.75:
            lab.checkpoint(number, self.step)
        elif kind < 0.8:
            lab.breaks(task)
        elif kind < 0.85:
            self.say(w.Matched(task, lab.epoch(task), "n0", chance.choice(("final", "away"))))
        elif kind < 0.88:
            self.say(w.EarlyExit(task, lab.epoch(task), chance.choice(("invalid_hp", "done"))))
        else:
            lab.up(task)
            self.say(w.OperationDone(task, lab.epoch(task), chance.choice((4, 8, 16)), chance.random()))

    def search(self) -> None:
        state = self.lab.own.search
        self.answers += 1
        names = [f"r{number}" for number in range(1, self.answers + 1)]
        operations: tuple[w.Operation, ...] = self.chance.choice(
            (
                (w.MakeTrial(names[-1]), w.TrainTo(names[-1], self.chance.choice((4, 8)))),
                (w.MakeTrial(names[-1]),),
                (w.TrainTo(self.chance.choice(names), 16),),
                (w.CloseTrial(self.chance.choice(names), now=self.chance.random() < 0.5),),
                (w.Shutdown(failed=self.chance.random() < 0.3),),
            )
        )
        self.say(w.SearchAnswered(state.next_event - 1, operations))

    def people(self) -> None:
        lab, chance = self.lab, self.chance
        names = list(lab.exp.checkpoints)
        some = tuple(chance.sample(names, min(len(names), 2)))
        said: tuple[w.Said, ...] = (
            w.PauseExperiment(), w.PauseExperiment(), w.ResumeExperiment(), w.ResumeExperiment(),
            w.StopTrial(chance.randint(1, 6), chance.random() < 0.5),
            w.EditExperiment(priority=chance.choice((1, 99)), save_trial_best=chance.choice((0, 2))),
            w.EditExperiment(max_slots=chance.choice((0, 1, 2))),
            w.PinCheckpoints(some, "model:m/1", chance.random() < 0.7),
            w.DeleteCheckpoints(some, chance.choice(((), ("a*",)))),
            w.SetMetadata(f"{EXP}.1", {"a": chance.choice((1, None))}),
            *(w.DescribeCheckpoint(checkpoint=name, set={"a": "1"}, remove=("b",)) for name in some),
        )  # fmt: skip
        self.say(chance.choice(said))
        if chance.random() < 0.06:
            self.say(chance.choice((w.CancelExperiment(), w.KillExperiment())))

    def afterwards(self) -> None:
        """It is over; somebody wants it again."""
        lab, chance = self.lab, self.chance
        if ("experiment_archives", EXP) not in lab.table:
            return
        lab.reopen()
        trials = tuple(lab.exp.trials)[:1]
        names = tuple(lab.exp.checkpoints)[:1]
        self.say(
            chance.choice(
                (
                    w.ContinueExperiment(), w.ContinueExperiment(trials=trials), w.ContinueExperiment(max_time=32),
                    w.ContinueExperiment(max_trials=8), w.EditExperiment(save_trial_latest=0), w.DeleteExperiment(),
                    w.PinCheckpoints(names, "model:m/2"), w.DeleteCheckpoints(names), w.KillExperiment(),
                )
            )
        )  # fmt: skip

    def check(self) -> None:
        self.lab.check()
        if self.lab.closed:
            return
        most = AT_ONCE.get(self.kind)
        live = [trial for trial in self.lab.exp.trials.values() if trial.live]
        if most is not None and not any(trial.attempt > 1 for trial in live):
            assert len(live) <= most, f"{len(live)} trials live, at most {most} may"

    def finish(self) -> None:
        """Nobody interferes any more and every program does what it is asked: the search must come to its end."""
        lab = self.lab
        for _ in range(120):
            if lab.closed or lab.exp.state == "deleting" or lab.exp.cancelled:
                return
            lab.pass_time(1.0)
            self.say(w.ResumeExperiment())
            if self.kind == "custom":
                self.say(w.SearchAnswered(lab.own.search.next_event - 1, (w.Shutdown(),)))
            for task in [task for task in lab.state.tasks if lab.placed(task)]:
                if lab.closed or not lab.placed(task):
                    continue
                self.obey(task)
        raise AssertionError(f"the search does not end: {lab.exp.state}, {lab.exp.live}, {lab.exp.deferred}")

    def obey(self, task: TaskId) -> None:
        lab = self.lab
        self.step += 1
        trial = next((trial for trial in lab.exp.trials.values() if trial.task == task), None)
        if lab.state.allocations[task].state in (AllocationState.FLUSHING, AllocationState.ENDING):
            return
        if lab.asked_to_leave(task):
            lab.leaves(task)
        elif trial is None:
            if self.kind != "custom" or task in lab.exp.cleanups:
                lab.ends(task)
        elif trial.asked:
            self.say(w.OperationDone(lab.up(task), lab.epoch(task), trial.asked[0].length, self.chance.random()))
        elif trial.state == "running" or trial.state == "queued":
            lab.ends(task)

    def end(self) -> None:
        """Everything is let go: it must come to its end by itself."""
        lab = self.lab
        for _ in range(400):
            if lab.closed:
                return
            lab.pass_time(61.0)
            if lab.closed:
                return
            if lab.exp.state == "deleting":
                self.say(w.Forgotten())
            else:
                self.say(w.CancelExperiment())
            for task in [task for task in lab.state.tasks if lab.placed(task)]:
                if lab.closed or not lab.placed(task):
                    continue
                if lab.state.allocations[task].state in (AllocationState.FLUSHING, AllocationState.ENDING):
                    continue
                lab.leaves(task) if lab.asked_to_leave(task) else lab.ends(task)
        raise AssertionError(f"it does not end: {lab.exp.state}, {lab.exp.live}, {lab.exp.cleanups}, {lab.exp.detail}")


def fed_once(history: list[Recorded]) -> None:
    """A trial's step reaches the search at most once, ever."""
    seen: dict[tuple[int, int], None] = {}
    for recorded in history:
        if isinstance(recorded.fact, f.ControllerNoted):
            fact = n.noted(recorded.fact.note)
            if isinstance(fact, n.ValidationHeard):
                assert (fact.trial, fact.step) not in seen
                seen[fact.trial, fact.step] = None


@pytest.mark.parametrize("kind", METHODS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_life_keeps_the_promises(kind: str, seed: int) -> None:
    walk = Walk(kind, Random(seed))
    for number in range(60):
        walk.one()
        walk.check()
        if number % 20 == 19:
            walk.lab.check_refold()
    walk.finish()
    walk.end()
    walk.lab.check_refold()
    walk.lab.check_rows()
    fed_once(walk.lab.history)
    assert walk.lab.held_slots() == 0
    assert NodeId("n0") in walk.lab.state.nodes
