"""Checkpoints of an experiment: kept, pinned, removed; and what is left when it is deleted."""

from __future__ import annotations

import msgspec
import pytest
from laboratory import EXP, ExperimentState, Laboratory, make_spec

from clutch.wire import experiment_words as w
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.experiments import CleanupOrder, RandomSearch, Retention, Storage
from clutch.wire.ids import TaskId
from clutch.wire.programs import Program, program_in
from clutch.workloads.experiment.controller import ending, tasks

CLEANUP = TaskId("e-1.cleanup-1")


@pytest.fixture
def lab() -> Laboratory:
    return Laboratory()


def ran(lab: Laboratory, **more: object) -> Laboratory:
    """A single trial with three checkpoints, its second the best, whose program has ended."""
    lab.open(make_spec(**{"retention": Retention(), **more}))
    for step, loss in ((1, 0.5), (2, 0.1), (3, 0.4)):
        lab.validate(1, step, loss)
        lab.checkpoint(1, step, f"c{step}")
    lab.ends(lab.task(1))
    return lab


def states(lab: Laboratory) -> dict[str, str]:
    return {row.key: row.state for row in lab.rows("checkpoints")}


def test_superfluous_files_go_before_it_is_over(lab: Laboratory) -> None:
    program = Program(argv=("python", "train.py"), code="sha256:1", ports=(80,))
    ran(lab, storage=Storage(address="file:///x", secret="s"), program=program)
    assert lab.exp.state is ExperimentState.STOPPING and "1 checkpoints" in lab.view.detail
    assert states(lab) == {"c1": "deleting", "c2": "committed", "c3": "committed"}
    spec = lab.state.tasks[CLEANUP].spec
    cleaner = program_in(spec.payload)
    assert cleaner is not None and spec.kind == "cleanup"
    assert cleaner.argv == ("python", "-m", "clutch.runtime.cleanup")
    assert cleaner.code == "sha256:1" and not cleaner.ports and cleaner.secrets[0].name == "s"
    order = msgspec.json.decode(cleaner.environment["CLUTCH_CLEANUP"], type=CleanupOrder)
    assert [(item.checkpoint, item.task) for item in order.checkpoints] == [("c1", "e-1.1")]
    assert lab.held_slots() == 0
    lab.ends(CLEANUP)
    assert lab.closed and lab.view.state == "completed" and states(lab)["c1"] == "deleted"
    lab.check_refold()
    lab.check_rows()


def test_files_that_cannot_be_removed_are_lost(lab: Laboratory) -> None:
    ran(lab, max_restarts=0)
    lab.ends(CLEANUP, 1)
    assert lab.closed and lab.view.state == "completed" and states(lab)["c1"] == "lost"


def test_values_follow_validations_that_come_later(lab: Laboratory) -> None:
    lab.open(make_spec())
    lab.checkpoint(1, 5, "before")
    assert not lab.table["checkpoints", "before"].has_value
    lab.validate(1, 3, 0.7)
    assert lab.table["checkpoints", "before"].value == 0.7
    lab.validate(1, 5, 0.2)
    lab.validate(1, 6, 0.1)
    assert lab.table["checkpoints", "before"].value == 0.2
    lab.check_rows()


def test_pins_hold_and_are_named(lab: Laboratory) -> None:
    lab.open(make_spec(retention=Retention(save_trial_best=0, save_trial_latest=0)))
    for step in (1, 2):
        lab.validate(1, step, 0.5)
        lab.checkpoint(1, step, f"c{step}")
    lab.say(w.PinCheckpoints(("c1",), "model:m/1"))
    lab.say(w.PinCheckpoints(("c1",), "experiment:e-9"))
    lab.say(w.PinCheckpoints(("c1",), "experiment:e-9"))
    assert lab.table["checkpoints", "c1"].pins == ",model:m/1,experiment:e-9,"
    with pytest.raises(Conflict, match=r"model:m/1, experiment:e-9"):
        lab.say(w.DeleteCheckpoints(("c1",)))
    with pytest.raises(NotFound, match="c7"):
        lab.say(w.PinCheckpoints(("c7",), "x"))
    lab.ends(lab.task(1))
    lab.ends(CLEANUP)
    assert states(lab) == {"c1": "committed", "c2": "deleted"} and lab.closed
    lab.reopen()
    with pytest.raises(Conflict, match="gone"):
        lab.say(w.PinCheckpoints(("c2",), "x"))
    with pytest.raises(Conflict, match="held by model:m/1"):
        lab.say(w.DeleteExperiment())
    lab.say(w.PinCheckpoints(("c1",), "model:m/1", hold=False))
    lab.check_rows()


def test_what_is_said_of_a_checkpoint_changes(lab: Laboratory) -> None:
    lab.open(make_spec())
    with pytest.raises(NotFound, match="c1"):  # its run still writes it
        lab.say(w.DescribeCheckpoint(checkpoint="c1", set={"a": "1"}))
    lab.checkpoint(1, 1, "c1")
    base = {"epoch": "3", "by": "ada"}
    assert lab.exp.checkpoints["c1"].metadata is None
    lab.say(w.DescribeCheckpoint(checkpoint="c1", base=base, remove=("unknown",)))
    assert lab.exp.checkpoints["c1"].metadata is None, "nothing has changed"
    lab.say(w.DescribeCheckpoint(checkpoint="c1", base=base, set={"a": "1", "by": "eve"}, remove=("epoch",)))
    assert lab.exp.checkpoints["c1"].metadata == {"a": "1", "by": "eve"}
    lab.say(w.DescribeCheckpoint(checkpoint="c1", base=base, remove=("a",)))
    assert lab.exp.checkpoints["c1"].metadata == {"by": "eve"}, "what its manifest says counts no more"
    with pytest.raises(BadRequest, match="at most 100"):
        lab.say(w.DescribeCheckpoint(checkpoint="c1", base=base, set={str(number): "" for number in range(100)}))
    lab.ends(lab.task(1))
    lab.reopen()
    lab.say(w.DescribeCheckpoint(checkpoint="c1", base=base, set={"later": "yes"}))
    lab.reopen()
    assert lab.exp.checkpoints["c1"].metadata == {"by": "eve", "later": "yes"}, "it is kept when it is over"
    lab.say(w.DeleteExperiment())
    with pytest.raises(Conflict, match="being deleted"):
        lab.say(w.DescribeCheckpoint(checkpoint="c1", base=base, set={"later": "no"}))
    lab.check_rows()


def test_a_users_deletions(lab: Laboratory) -> None:
    lab.open(make_spec())
    lab.checkpoint(1, 1, "c1")
    lab.checkpoint(1, 2, "c2")
    with pytest.raises(Conflict, match="trial 1 would go on from it"):
        lab.say(w.DeleteCheckpoints(("c2",)))
    lab.say(w.DeleteCheckpoints(("c1",), globs=("optimizer*",)))
    assert states(lab) == {"c1": "deleting", "c2": "committed"}
    lab.ends(CLEANUP)
    assert states(lab)["c1"] == "partial"
    lab.say(w.DeleteCheckpoints(("c1", "c1")))
    lab.ends(TaskId("e-1.cleanup-2"))
    lab.say(w.DeleteCheckpoints(("c1",)))  # it is gone already
    assert states(lab)["c1"] == "deleted" and not lab.exp.cleanups
    lab.check_rows()


def test_retention_edited_after_the_end(lab: Laboratory) -> None:
    ran(lab)
    lab.ends(CLEANUP)
    lab.reopen()
    lab.say(w.EditExperiment(save_trial_latest=0, name="renamed"))
    assert not lab.closed and lab.view.name == "renamed" and lab.exp.state is ExperimentState.COMPLETED
    with pytest.raises(Conflict, match="tidied"):
        lab.say(w.DeleteExperiment())
    lab.ends(TaskId("e-1.cleanup-2"))
    assert lab.closed and states(lab) == {"c1": "deleted", "c2": "committed", "c3": "deleted"}
    lab.check_refold()
    lab.check_rows()


def test_many_files_take_many_tasks(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CLEANUP_ITEMS_MAX", 1)
    ran(lab, retention=Retention(save_trial_best=0, save_trial_latest=0))
    assert list(lab.exp.cleanups) == ["e-1.cleanup-1", "e-1.cleanup-2", "e-1.cleanup-3"]
    for task in list(lab.exp.cleanups):
        lab.ends(TaskId(task))
    assert lab.closed


def test_a_reopened_one_closes_itself_when_it_has_done_what_it_was_told(lab: Laboratory) -> None:
    ran(lab, retention=Retention(save_trial_latest=3))
    assert lab.closed
    lab.reopen()
    assert not lab.closed
    with pytest.raises(Conflict):
        lab.say(w.PauseExperiment())
    assert not lab.closed
    lab.say(w.EditExperiment(labels=("a", "b"), notes="n", archived=True, project="p"))
    assert lab.closed and (lab.view.labels, lab.view.archived, lab.view.project) == (",a,b,", True, "p")
    lab.reopen()
    assert lab.exp.labels == ("a", "b")
    lab.pass_time(ending.PATIENCE_S + 1)
    assert lab.closed
    lab.check_refold()
    lab.check_rows()


def test_a_deleted_experiment_leaves_nothing(lab: Laboratory) -> None:
    ran(lab, retention=Retention(save_trial_latest=3))
    lab.reopen()
    with pytest.raises(Conflict, match="Only what is being deleted"):
        lab.say(w.Forgotten())
    lab.say(w.DeleteExperiment())
    assert lab.view.state == "deleting" and set(states(lab).values()) == {"deleting"}
    lab.say(w.DeleteExperiment())
    with pytest.raises(Conflict, match="being deleted"):
        lab.say(w.EditExperiment(name="x"))
    lab.say(w.Forgotten())
    assert not lab.closed
    lab.ends(CLEANUP)
    assert lab.closed and lab.table == {}
    lab.check_refold()


def test_only_what_is_over_is_deleted(lab: Laboratory) -> None:
    lab.open(make_spec(RandomSearch(max_trials=2)))
    with pytest.raises(Conflict, match="Cancel it first"):
        lab.say(w.DeleteExperiment())
    with pytest.raises(Conflict, match="Archive it when it is over"):
        lab.say(w.EditExperiment(archived=True))


def test_edits_that_cannot_be(lab: Laboratory) -> None:
    lab.open(make_spec(resources={"slots": 2}))
    for edit, path in (
        (w.EditExperiment(priority=0), "priority"),
        (w.EditExperiment(max_slots=1), "max_slots"),
        (w.EditExperiment(save_trial_best=-1), "save_trial_best"),
        (w.EditExperiment(name=" "), "name"),
        (w.EditExperiment(name="two\nlines"), "name"),
        (w.EditExperiment(name="x" * 201), "name"),
        (w.EditExperiment(labels=("good", "a,b")), "labels"),
        (w.EditExperiment(labels=("",)), "labels"),
        (w.EditExperiment(labels=tuple(f"l{n}" for n in range(101))), "labels"),
        (w.EditExperiment(notes="x" * 100_001), "notes"),
    ):
        with pytest.raises(BadRequest) as caught:
            lab.say(edit)
        assert caught.value.path == path
    lab.say(w.EditExperiment(priority=7, max_slots=2))
    assert lab.state.tasks[lab.task(1)].priority == 7 and lab.view.max_slots == 2


def test_an_archive_is_opened_under_its_own_name(lab: Laboratory) -> None:
    ran(lab, retention=Retention(save_trial_latest=3))
    controller = lab.controllers["experiment"]
    from clutch.wire.experiment_open import reopen

    payload = lab.table["experiment_archives", EXP].payload
    with pytest.raises(BadRequest, match="archive of e-1"):
        controller.open("e-2", reopen(payload))
    with pytest.raises(BadRequest, match="no archive"):
        controller.open(EXP, reopen(payload[:-3]))
    with pytest.raises(BadRequest):
        controller.open(EXP, b"nonsense")
