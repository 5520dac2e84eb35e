"""Infrastructure failures are free, and therefore paced: the first retry comes at once, later ones wait longer."""

from __future__ import annotations

from house import House, trial_spec, workers_spec

from clutch.core.patience import FORGIVEN_AFTER_S, REST_MAX_S, rest_s, setbacks_after
from clutch.core.projection import task_view
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.ids import TaskId
from clutch.wire.messages import ExitCause
from clutch.wire.outcomes import MemberState, TaskState


def never_starts(house: House, task: TaskId, role: str = "main") -> list[f.Fact]:
    return house.leaves(task, role, code=126, cause=ExitCause.NEVER_STARTED)


def test_how_long() -> None:
    assert [rest_s(setbacks) for setbacks in range(1, 6)] == [0.0, 1.0, 2.0, 4.0, 8.0]
    assert rest_s(50) == REST_MAX_S
    assert setbacks_after(7, FORGIVEN_AFTER_S - 1) == 8
    assert setbacks_after(7, FORGIVEN_AFTER_S) == 1


def test_a_task_that_cannot_start_is_tried_at_once_and_then_ever_more_slowly() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t", max_restarts=0))
    never_starts(house, task)
    assert house.state_of(task) is TaskState.RUNNING, "the first retry comes at once"
    house.up(task)
    never_starts(house, task)
    assert house.state_of(task) is TaskState.RESTING
    house.pass_time(0.9)
    assert house.state_of(task) is TaskState.RESTING
    house.pass_time(0.2)
    assert house.state_of(task) is TaskState.RUNNING
    assert house.state.tasks[task].failures == 0, "infrastructure does not count"
    house.sound()


def test_work_that_ran_for_a_while_is_retried_at_once() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    for _ in range(3):
        house.pass_time(FORGIVEN_AFTER_S)
        never_starts(house, task)
        assert house.state_of(task) is TaskState.RUNNING
        house.up(task)


def resting(house: House) -> TaskId:
    task = house.running(trial_spec("t"))
    never_starts(house, task)
    house.up(task)
    never_starts(house, task)
    assert house.state_of(task) is TaskState.RESTING
    return task


def test_a_resting_task_can_be_paused_resumed_cancelled_and_killed() -> None:
    house = House().nodes(1)
    task = resting(house)
    house.do(e.Pause(task=task))
    assert house.state_of(task) is TaskState.PAUSED
    house.pass_time(5.0)
    assert house.state_of(task) is TaskState.PAUSED, "its rest is over with the pause"
    house.do(e.Resume(task=task))
    assert house.state_of(task) is TaskState.RUNNING
    for end, reason in ((e.Cancel, "cancelled"), (e.Kill, "killed")):
        house = House().nodes(1)
        task = resting(house)
        house.do(end(task=task))
        assert house.ended_as(task) == reason
        house.pass_time(5.0)
        house.sound()


def test_a_member_that_cannot_start_rests_alone() -> None:
    house = House().nodes(2)
    task = house.running(workers_spec("w", workers=1))
    never_starts(house, task, "worker")
    assert house.member(task, "worker").state is MemberState.STARTING
    house.up(task)
    never_starts(house, task, "worker")
    assert house.member(task, "worker").state is MemberState.RESTING
    house.pass_time(1.1)
    assert house.member(task, "worker").state is MemberState.STARTING
    house.up(task)
    house.sound()


def test_a_resting_member_goes_with_its_allocation() -> None:
    house = House().nodes(2)
    task = house.running(workers_spec("w", workers=1))
    never_starts(house, task, "worker")
    house.up(task)
    never_starts(house, task, "worker")
    house.do(e.Kill(task=task))
    house.pass_time(5.0)
    assert house.ended_as(task) == "killed"
    house.sound()


WHY = "its image r/x:1 could not be pulled: connection refused"


def fails_to_pull(house: House, task: TaskId, role: str = "main") -> list[f.Fact]:
    return house.leaves(task, role, code=127, cause=ExitCause.NEVER_STARTED, reason=WHY)


def test_a_task_that_rests_or_waits_again_tells_what_hindered_it_and_where() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t", max_restarts=0))
    assert house.state.tasks[task].trouble == ""
    fails_to_pull(house, task)
    assert house.state.tasks[task].setback == f"t/main.0 was not started on node n0 (never_started): {WHY}"
    assert house.state.tasks[task].trouble == "", "it has its next run already"
    house.up(task)
    fails_to_pull(house, task)
    assert house.state_of(task) is TaskState.RESTING
    known = house.state.tasks[task]
    assert known.trouble == known.setback and WHY in task_view(known, 0).detail
    house.pass_time(1.1)
    assert task_view(house.state.tasks[task], 0).detail == ""
    house.sound()


def test_what_hindered_a_task_is_forgotten_when_a_run_of_it_ends_otherwise() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    fails_to_pull(house, task)
    house.up(task)
    house.leaves(task, code=1, cause=ExitCause.OWN, reason="ValueError")
    assert house.state.tasks[task].setback == ""


def test_a_resting_member_tells_what_hindered_it_and_where() -> None:
    house = House().nodes(2)
    task = house.running(workers_spec("w", workers=1))
    for _ in range(2):
        house.up(task)
        fails_to_pull(house, task, "worker")
    member = house.member(task, "worker")
    assert member.state is MemberState.RESTING
    assert member.setback.startswith("w/worker.0 was not started on node n") and member.setback.endswith(WHY)
    house.pass_time(1.1)
    assert house.member(task, "worker").setback == member.setback, "it is still what hindered it"
    house.sound()
