"""An experiment and its search: early stops give slots back, rests hold none, and more can be asked afterwards."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from laboratory import EXP, ExperimentState, Laboratory, TrialState, make_spec

from clutch.core import controller as c
from clutch.wire import experiment_words as w
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.experiment_open import new_experiment
from clutch.wire.experiments import Asha, Custom, Pbt, RandomSearch, Retention, Tpe, TrialInfo
from clutch.wire.ids import NodeId, TaskId
from clutch.wire.outcomes import EndReason, TaskState
from clutch.wire.programs import program_in
from clutch.workloads.experiment.controller.controller import ExperimentController
from clutch.workloads.experiment.controller.reading import operation_of
from clutch.workloads.experiment.controller.sources import awaited, foreign, sources

SEARCH = TaskId("e-1.search")


@pytest.fixture
def lab() -> Laboratory:
    return Laboratory()


def test_a_stopped_trial_gives_its_slots_back(lab: Laboratory) -> None:
    """Four trials on four slots; the fifth begins as soon as the search has stopped one."""
    lab = Laboratory(nodes=1, slots=4)
    lab.open(make_spec(Asha(max_trials=8, num_rungs=2, divisor=4.0, max_concurrent_trials=4), max_time=16))
    for number in (1, 2, 3, 4):
        lab.validate(number, 4, loss=0.1 * number)
    stopped = [trial for trial in lab.exp.trials.values() if trial.state is TrialState.STOPPING]
    assert stopped, "the worst at the first rung are stopped"
    held = lab.held_slots()
    for trial in stopped:
        assert lab.asked_to_leave(TaskId(trial.task))
        lab.leaves(TaskId(trial.task))
        assert trial.state is TrialState.STOPPED and TaskId(trial.task) not in lab.state.tasks
        assert "stop" in lab.steps(trial.number) and lab.steps(trial.number)[-1] == "end"
    assert lab.held_slots() == held  # others have them now
    assert len(lab.exp.trials) == 4 + len(stopped)
    lab.check()
    lab.check_refold()
    lab.check_rows()


def test_a_promotion_wakes_a_trial_that_rests(lab: Laboratory) -> None:
    method = Asha(max_trials=4, num_rungs=2, divisor=2.0, max_concurrent_trials=2, promotion=True)
    lab.open(make_spec(method, max_time=16))
    lengths = {number: trial.length for number, trial in lab.exp.trials.items()}
    rested = False
    for _ in range(60):
        if lab.closed:
            break
        lab.check()
        for number in list(lab.exp.live):
            if lab.closed:
                break
            trial = lab.exp.trials[number]
            task = TaskId(trial.task)
            if lab.asked_to_leave(task):
                lab.checkpoint(number, trial.done)
                lab.leaves(task)
                if trial.state is TrialState.IDLE:
                    rested = True
                    assert lab.state.tasks[task].state is TaskState.PAUSED
                    assert operation_of(lab.own, task).state == "wait"
            elif lab.placed(task) and trial.asked:
                lab.validate(number, trial.asked[0].length, loss=0.1 * number)
    assert rested and lengths
    assert lab.closed and lab.view.state == "completed" and lab.view.best_trial == 1
    woken = [row.trial for row in lab.rows("workloads") if row.kind == "start" and row.epoch == 2]
    assert woken, [lab.steps(number) for number in (1, 2, 3, 4)]
    lab.check_refold()
    lab.check_rows()


def test_what_trials_begin_from_is_known_from_the_answer_to_the_end(lab: Laboratory) -> None:
    """Whether they are made, wait for others, or for their experiment to be resumed."""
    lab.open(make_spec(Custom(max_concurrent_trials=1)), paused=True)
    lab.say(w.SearchAnswered(1, (w.MakeTrial("a", checkpoint="x"), w.MakeTrial("b", checkpoint="y"))))
    assert (sources(lab.own), awaited(lab.own)) == (("x", "y"), ("x", "y")), "one is deferred, one waits its turn"
    lab.say(w.ResumeExperiment())
    assert lab.trial(1).warm_start == "x" and (sources(lab.own), awaited(lab.own)) == (("x", "y"), ("y",))
    lab.checkpoint(1, 1, "c1")
    more = (w.MakeTrial("c", checkpoint="c1"), w.MakeTrial("d", checkpoint="request:a"), w.Shutdown())
    lab.say(w.SearchAnswered(2, more))
    lab.checkpoint(1, 2, "c2")
    assert (sources(lab.own), foreign(lab.own)) == (("x", "y", "c1"), ("x", "y"))
    with pytest.raises(Conflict, match="a trial that its search wants would go on from it"):
        lab.say(w.DeleteCheckpoints(("c1",)))
    for number in (1, 2, 3, 4):
        assert not lab.released
        lab.ends(lab.task(number))
    assert [lab.table["trials", f"{EXP}.{number}"].state for number in (2, 3, 4)] == ["completed"] * 3
    if not lab.closed:
        lab.ends(TaskId(f"{EXP}.cleanup-1"))
    assert lab.released == [w.Release("x", f"experiment:{EXP}"), w.Release("y", f"experiment:{EXP}")]


def test_a_rest_that_is_over_before_it_began(lab: Laboratory) -> None:
    """The next length comes while the trial is still leaving: it leaves, and comes back by itself."""
    lab.open(make_spec(Custom()))
    lab.say(w.SearchAnswered(1, (w.MakeTrial("a"), w.TrainTo("a", 10))))
    task = lab.task(1)
    lab.validate(1, 10, 0.5)
    assert lab.trial(1).state is TrialState.IDLE and lab.asked_to_leave(task)
    lab.say(w.SearchAnswered(3, (w.TrainTo("a", 20),)))
    assert lab.trial(1).state is TrialState.RUNNING
    lab.leaves(task)
    assert lab.placed(task) and operation_of(lab.own, task).length == 20
    lab.say(w.SearchAnswered(3, (w.TrainTo("a", 30),)))  # answered before
    assert lab.trial(1).length == 20
    lab.validate(1, 35, 0.4)
    lab.say(w.SearchAnswered(4, (w.TrainTo("a", 30),)))  # it is beyond that already
    assert lab.trial(1).done == 30 and lab.trial(1).state is TrialState.IDLE
    assert [row.length for row in lab.rows("workloads") if row.kind == "train"] == [10, 20, 30]
    lab.say(w.SearchAnswered(5, (w.CloseTrial("a"), w.Shutdown())))
    if lab.asked_to_leave(task):
        lab.leaves(task)
    assert lab.closed and lab.view.state == "completed" and lab.trial_row(1).state == "completed"
    lab.check_refold()
    lab.check_rows()


def test_population_based_training_begins_from_the_best(lab: Laboratory) -> None:
    lab.open(make_spec(Pbt(population_size=4, num_rounds=2, length_per_round=5, truncate_fraction=0.25)))
    for number in (1, 2, 3, 4):
        lab.validate(number, 5, loss=0.1 * number)
        if lab.asked_to_leave(lab.task(number)):
            lab.checkpoint(number, 5)
            lab.leaves(lab.task(number))
    for number in range(1, 12):
        if number in lab.exp.trials and number in lab.exp.live and lab.asked_to_leave(lab.task(number)):
            lab.leaves(lab.task(number))
    child = max(lab.exp.trials)
    assert child > 4, "the worst has a successor"
    assert lab.trial(child).warm_start == "c1-1-5"
    payload = program_in(lab.state.tasks[lab.task(child)].spec.payload)
    assert payload is not None
    assert msgspec.json.decode(payload.environment["CLUTCH_TRIAL"], type=TrialInfo).warm_start == "c1-1-5"
    lab.check_refold()


# -- processes ----------------------------------------------------------------------------------------------------


def test_a_custom_method_runs_as_a_task_without_slots(lab: Laboratory) -> None:
    lab.open(make_spec(Custom(argv=("python", "search.py"))))
    spec = lab.state.tasks[SEARCH].spec
    program = program_in(spec.payload)
    assert program is not None and program.argv == ("python", "search.py")
    assert (spec.kind, spec.max_restarts) == ("searcher", 5) and lab.held_slots() == 0
    lab.ends(SEARCH, 1)
    assert lab.exp.searcher == SEARCH  # its restarts are the core's
    lab.up(SEARCH)
    lab.say(w.SearchAnswered(1, (w.MakeTrial("a"), w.TrainTo("a", 5))))
    lab.say(w.SearchAnswered(2, (w.CloseTrial("a"), w.Shutdown())))
    lab.validate(1, 5, 0.1)
    lab.leaves(lab.task(1))
    assert lab.exp.state is ExperimentState.STOPPING and lab.asked_to_leave(SEARCH)
    lab.leaves(SEARCH)
    assert lab.closed and lab.view.state == "completed"
    lab.check_refold()


def test_a_search_process_that_fails_for_good_fails_the_experiment(lab: Laboratory) -> None:
    lab.open(make_spec(Tpe(max_trials=3)))
    program = program_in(lab.state.tasks[SEARCH].spec.payload)
    assert program is not None and program.argv[-1] == "clutch.workloads.experiment.search_process.tpe"
    lab.say(w.SearchAnswered(1, (w.MakeTrial("a"),)))
    lab.up(lab.task(1))
    for _ in range(6):
        lab.ends(SEARCH, 1)
    assert lab.exp.state is ExperimentState.STOPPING
    lab.leaves(lab.task(1))
    assert lab.closed and lab.view.state == "failed" and "its search process ended" in lab.view.detail
    assert lab.trial_row(1).state == "stopped"


def test_a_search_process_that_goes_without_a_word_asks_for_nothing_more(lab: Laboratory) -> None:
    lab.open(make_spec(Custom(argv=("python", "search.py"))))
    lab.say(w.SearchAnswered(1, (w.MakeTrial("a"),)))
    lab.up(lab.task(1))
    lab.ends(SEARCH)
    assert lab.exp.state is ExperimentState.STOPPING and lab.trial(1).live
    lab.ends(lab.task(1))
    assert lab.closed and lab.view.state == "completed"


def test_nonsense_of_a_search_process_is_refused_whole(lab: Laboratory) -> None:
    lab.open(make_spec(Custom()))
    before = ExperimentController().dump(lab.own)
    with pytest.raises(BadRequest):
        lab.say(w.SearchAnswered(1, (w.MakeTrial("a"), w.TrainTo("unknown", 5))))
    assert ExperimentController().dump(lab.own) == before


# -- continuing ---------------------------------------------------------------------------------------------------


def test_a_failed_trial_goes_on_from_its_last_checkpoint(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=2), max_restarts=0, max_time=10))
    lab.validate(1, 5, 0.5)
    lab.checkpoint(1, 5, "half")
    lab.ends(lab.task(1), 1)
    lab.validate(2, 10, 0.6)
    lab.leaves(lab.task(2))
    assert lab.closed and lab.view.state == "completed"
    lab.reopen()
    lab.say(w.ContinueExperiment(max_restarts=3))
    assert lab.exp.state is ExperimentState.ACTIVE and list(lab.exp.live) == [1]
    assert lab.task(1) == "e-1.1-2" and lab.trial(1).warm_start == "half"
    assert lab.state.tasks[lab.task(1)].spec.max_restarts == 3
    assert operation_of(lab.own, lab.task(1)).length == 10
    lab.validate(1, 5, 0.0)  # that step counted already
    lab.validate(1, 10, 0.2)
    lab.leaves(lab.task(1))
    assert lab.closed and (lab.view.state, lab.view.best) == ("completed", 0.2)
    assert [told.state for told in lab.owed] == ["active", "completed", "active", "completed"]
    lab.check_refold()
    lab.check_rows()


def test_a_single_trial_is_given_a_greater_length_and_other_hyperparameters(lab: Laboratory) -> None:
    lab.open(make_spec(max_time=10))
    lab.validate(1, 10, 0.5)
    lab.checkpoint(1, 10, "end")
    lab.leaves(lab.task(1))
    lab.reopen()
    lab.say(w.ContinueExperiment(max_time=20, hparams={"lr": 0.01}))
    assert lab.trial(1).hparams == {"lr": 0.01} and lab.trial(1).length == 20
    payload = program_in(lab.state.tasks[lab.task(1)].spec.payload)
    assert payload is not None
    info = msgspec.json.decode(payload.environment["CLUTCH_TRIAL"], type=TrialInfo)
    assert (info.max_time, info.warm_start, info.hparams) == (20, "end", {"lr": 0.01})
    lab.validate(1, 20, 0.4)
    lab.leaves(lab.task(1))
    assert lab.closed and lab.view.state == "completed"
    lab.check_refold()


def test_a_search_goes_on_until_it_has_made_more(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=1)))
    lab.ends(lab.task(1))
    lab.reopen()
    with pytest.raises(NotFound, match="trial 9"):
        lab.say(w.ContinueExperiment(trials=(9,)))
    with pytest.raises(Conflict, match="none of its trials"):
        lab.say(w.ContinueExperiment())
    lab.say(w.ContinueExperiment(max_trials=3))
    assert list(lab.exp.live) == [2, 3]
    with pytest.raises(Conflict, match="Only one that is over"):
        lab.say(w.ContinueExperiment())
    lab.ends(lab.task(2))
    lab.ends(lab.task(3))
    assert lab.closed and lab.view.trials == 3
    lab.check_refold()
    lab.check_rows()


# -- detached -----------------------------------------------------------------------------------------------------


def test_a_detached_run_has_a_trial_and_no_task(lab: Laboratory) -> None:
    lab.open(make_spec(detached=True, retention=Retention(save_trial_latest=9)))
    assert not lab.state.tasks and lab.trial(1).state is TrialState.QUEUED
    lab.say(w.DetachedBegan())
    assert lab.trial(1).state is TrialState.RUNNING and lab.trial(1).epoch == 1
    lab.say(w.Validated("e-1.1", 1, 5, {"loss": 0.5}))
    lab.say(w.DetachedSaved(1, "d1", 5))
    lab.say(w.DetachedSaved(1, "d1", 5))
    lab.say(w.DetachedBegan())
    lab.say(w.Validated("e-1.1", 1, 6, {"loss": 0.1}))  # of the earlier epoch
    lab.say(w.Validated("e-1.1", 9, 7, {"loss": 0.1}))  # of none
    lab.say(w.DetachedEnded(1, failed=True))
    assert lab.trial(1).steps == [5] and lab.trial(1).live
    with pytest.raises(Conflict):
        lab.say(w.PauseExperiment())
    lab.say(w.DetachedEnded(2, failed=False))
    assert lab.closed and lab.view.state == "completed"
    lab.reopen()
    lab.say(w.DetachedBegan())
    assert lab.trial(1).epoch == 3 and lab.trial(1).task == "e-1.1"
    lab.say(w.CancelExperiment())
    assert lab.closed and lab.view.state == "cancelled"
    lab.check_refold()
    lab.check_rows()


def test_others_are_not_detached(lab: Laboratory) -> None:
    lab.open(make_spec())
    for said in (w.DetachedBegan(), w.DetachedSaved(1, "c", 1), w.DetachedEnded(1, False)):
        with pytest.raises(BadRequest, match="not detached"):
            lab.say(said)


# -- the controller alone -----------------------------------------------------------------------------------------


def test_what_the_core_tells_of_allocations() -> None:
    """Begun, and said twice; whatever is not a trial's is not its business."""
    controller = ExperimentController()
    own = controller.open(EXP, new_experiment(make_spec()))

    def told(happening: c.Happening) -> list[c.Wish]:
        wishes = []
        for wish in controller.decide(own, happening, 5.0, Random(0)):
            wishes.append(wish)
            if isinstance(wish, c.Note):
                controller.apply(own, wish.payload)
        return wishes

    told(c.Opened())
    task = TaskId("e-1.1")
    began = c.RunBegan(task, 1, (NodeId("n0"), NodeId("n1")))
    notes = [wish.payload for wish in told(began) if isinstance(wish, c.Note)]
    assert own.exp.trials[1].state is TrialState.RUNNING
    row = next(row for row in controller.rows(own, notes) if getattr(row, "kind", "") == "start")
    assert getattr(row, "value", "") == "n0,n1"
    assert told(began) == []
    for other in (
        c.RunBegan(TaskId("e-1.7"), 1),
        c.TaskEnded(TaskId("e-1.1-2"), EndReason.DONE),
        c.Refused(TaskId("else"), "no"),
        c.Woken(),
    ):
        assert told(other) == []
    ended = told(c.TaskEnded(task, EndReason.DONE))
    assert isinstance(ended[-1], c.Close)


def test_a_continued_trial_of_a_custom_search_ends_with_the_search(lab: Laboratory) -> None:
    """It was asked for a length before its end, finishes it afterwards, and rests: nobody asks it for more."""
    for shut_down_first in (False, True):
        lab = Laboratory()
        lab.open(make_spec(Custom(argv=())))
        lab.say(w.SearchAnswered(1, (w.MakeTrial("r1"), w.TrainTo("r1", 8))))
        lab.up(lab.task(1))
        lab.say(w.StopTrial(1, kill=True))
        lab.say(w.SearchAnswered(lab.own.search.next_event - 1, (w.Shutdown(),)))
        assert lab.closed
        lab.reopen()
        lab.say(w.ContinueExperiment(trials=(1,)))
        words = [
            lambda lab: lab.say(w.OperationDone(lab.up(lab.task(1)), lab.epoch(lab.task(1)), 8, 0.5)),
            lambda lab: lab.say(w.SearchAnswered(lab.own.search.next_event - 1, (w.Shutdown(),))),
        ]
        for word in reversed(words) if shut_down_first else words:
            word(lab)
        if not lab.closed and lab.asked_to_leave(lab.task(1)):
            lab.leaves(lab.task(1))
        assert lab.closed and lab.view.state == "completed", lab.exp.trials[1]


def test_fewer_trials_than_there_are_is_no_more_work(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=3, max_concurrent_trials=3)))
    for number in (1, 2, 3):
        lab.ends(lab.task(number))
    assert lab.closed and "call run.validate(step, loss=...)" in lab.view.detail
    lab.reopen()
    with pytest.raises(Conflict, match="it has 3 trials already"):
        lab.say(w.ContinueExperiment(max_trials=3))
    lab.say(w.ContinueExperiment(max_trials=4))
    assert list(lab.exp.live) == [4]


def test_when_no_trial_is_of_use_the_last_one_says_why(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=2, max_concurrent_trials=2), max_restarts=0))
    lab.ends(lab.task(1), 3)
    lab.ends(lab.task(2), 4)
    assert lab.view.state == "failed" and "trial 2: " in lab.view.detail and "code 4" in lab.view.detail


def test_a_longer_length_is_for_all_that_completed_and_where_rungs_stand_on_it_refused(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=2, max_concurrent_trials=2), max_time=4))
    for number in (1, 2):
        lab.validate(number, 4, 0.5)
        lab.leaves(lab.task(number)) if lab.asked_to_leave(lab.task(number)) else lab.ends(lab.task(number))
    assert lab.closed and lab.view.state == "completed"
    lab.reopen()
    lab.say(w.ContinueExperiment(max_time=8))
    assert list(lab.exp.live) == [1, 2] and [lab.trial(n).length for n in (1, 2)] == [8, 8]
    halving = Laboratory()
    halving.open(make_spec(Asha(max_trials=1, num_rungs=1, max_concurrent_trials=1), max_time=4))
    halving.validate(1, 4, 0.5)
    halving.leaves(halving.task(1))
    assert halving.closed
    halving.reopen()
    before = len(halving.history)
    with pytest.raises(BadRequest, match="rungs") as caught:
        halving.say(w.ContinueExperiment(max_time=8))
    assert "clutch experiment fork" in caught.value.next_step and "max_time=8" in caught.value.next_step
    assert len(halving.history) == before, "nothing has happened"
