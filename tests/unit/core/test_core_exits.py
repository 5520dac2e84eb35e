"""How allocations end and what follows: the exit rules as stories, restart budgets, flushing, checkpoints."""

from __future__ import annotations

import pytest
from house import House, names, program_spec, trial_spec, workers_spec

from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import Stale
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.messages import Exit, ExitCause
from clutch.wire.outcomes import AllocationState, MemberState, TaskState, Verdict
from clutch.wire.schedule import PreemptReason


def ask_to_leave(house: House, task: TaskId, reason: PreemptReason) -> None:
    """Bring about each reason the way it comes about."""
    match reason:
        case PreemptReason.PREEMPTED:
            house.submit(trial_spec("boss", slots=4, priority=1))
        case PreemptReason.DRAINED:
            house.do(e.DrainNode(node=house.node_of(task)))
        case PreemptReason.RESIZED:
            house.do(e.Resize(task=task, role="main", count=2))
        case PreemptReason.STOPPED | PreemptReason.CANCELLED:
            house.do(e.Cancel(task=task, reason=reason))
        case PreemptReason.PAUSED:
            house.do(e.Pause(task=task))
    leave = house.state.allocations[task].leave
    assert leave is not None and leave.reason is reason
    assert leave.deadline == house.now + 600.0
    assert not leave.acked


AFTER_LEAVING = {
    PreemptReason.PREEMPTED: TaskState.QUEUED,
    PreemptReason.DRAINED: TaskState.QUEUED,
    PreemptReason.RESIZED: TaskState.QUEUED,
    PreemptReason.STOPPED: "stopped",
    PreemptReason.CANCELLED: "cancelled",
    PreemptReason.PAUSED: TaskState.PAUSED,
}


def one_running_trial() -> tuple[House, TaskId]:
    house = House().nodes(4)
    task = house.running(trial_spec("t", slots=1, count_max=4))
    house.pass_time(61.0)  # old enough to be a victim
    return house, task


def settled_as(house: House, task: TaskId, expected: object) -> None:
    if isinstance(expected, TaskState):
        # With the node full or drained a queued task stays queued; else it is placed again at once.
        state = house.state_of(task)
        assert state is expected or (expected is TaskState.QUEUED and house.state.tasks[task].epoch == 2), state
    else:
        assert house.ended_as(task) == expected
    house.sound()


@pytest.mark.parametrize("reason", PreemptReason)
def test_exit_0_after_an_acknowledged_leave(reason: PreemptReason) -> None:
    house, task = one_running_trial()
    ask_to_leave(house, task, reason)
    assert names(house.ack(task)) == ["LeaveAcked"]
    assert house.ack(task) == [], "said twice it is the same"
    facts = house.leaves(task)
    ending = next(fact for fact in facts if isinstance(fact, f.AllocationEnding))
    assert ending.verdict is Verdict.LEFT
    settled_as(house, task, AFTER_LEAVING[reason])


@pytest.mark.parametrize("reason", PreemptReason)
def test_exit_0_of_work_that_declared_itself_finished_is_done(reason: PreemptReason) -> None:
    house, task = one_running_trial()
    ask_to_leave(house, task, reason)
    house.ack(task)
    assert names(house.word(e.DeclareFinished, task)) == ["FinishDeclared"]
    assert house.word(e.DeclareFinished, task) == []
    house.leaves(task)
    settled_as(house, task, "done")


@pytest.mark.parametrize("reason", PreemptReason)
def test_exit_0_without_an_ack_is_done(reason: PreemptReason) -> None:
    house, task = one_running_trial()
    ask_to_leave(house, task, reason)
    house.leaves(task)
    settled_as(house, task, "done")


@pytest.mark.parametrize("reason", PreemptReason)
def test_a_failure_on_the_way_out_counts_and_the_wish_holds(reason: PreemptReason) -> None:
    house, task = one_running_trial()
    ask_to_leave(house, task, reason)
    house.ack(task)
    facts = house.leaves(task, code=3)
    ended = next(fact for fact in facts if isinstance(fact, f.AllocationEnded))
    assert ended.failures == 1
    settled_as(house, task, AFTER_LEAVING[reason])


@pytest.mark.parametrize("code", [-15, 143])
@pytest.mark.parametrize("reason", PreemptReason)
def test_a_plain_command_that_dies_of_being_asked_has_not_failed(reason: PreemptReason, code: int) -> None:
    house, task = one_running_trial()
    ask_to_leave(house, task, reason)
    facts = house.leaves(task, code=code)
    ended = next(fact for fact in facts if isinstance(fact, f.AllocationEnded))
    assert ended.failures == 0
    settled_as(house, task, AFTER_LEAVING[reason])


def test_dying_of_that_signal_unasked_is_a_failure() -> None:
    house, task = one_running_trial()
    ended = next(fact for fact in house.leaves(task, code=-15) if isinstance(fact, f.AllocationEnded))
    assert ended.failures == 1


@pytest.mark.parametrize("reason", PreemptReason)
def test_what_does_not_leave_is_ended_at_its_deadline(reason: PreemptReason) -> None:
    house, task = one_running_trial()
    ask_to_leave(house, task, reason)
    assert "AllocationEnding" not in names(house.pass_time(599.0))
    facts = house.pass_time(1.0)
    ending = next(fact for fact in facts if isinstance(fact, f.AllocationEnding) and fact.task == task)
    assert ending.verdict is Verdict.EVICTED
    ended = next(fact for fact in facts if isinstance(fact, f.AllocationEnded))
    assert ended.failures == 0, "being evicted is not a failure of the program"
    settled_as(house, task, AFTER_LEAVING[reason])


def test_leaving_is_asked_once_and_acked_only_when_asked() -> None:
    house, task = one_running_trial()
    assert house.ack(task) == [], "nobody asked"
    ask_to_leave(house, task, PreemptReason.PREEMPTED)
    house.do(e.Pause(task=task))
    leave = house.state.allocations[task].leave
    assert leave is not None and leave.reason is PreemptReason.PREEMPTED
    house.ack(task)
    house.leaves(task)
    assert house.state_of(task) is TaskState.PAUSED, "the later wish decides what follows"


def test_what_has_not_run_yet_goes_at_once() -> None:
    house = House().nodes(1)
    task = house.submit(trial_spec("t"))
    facts = house.do(e.Pause(task=task))
    assert "LeaveAsked" not in names(facts)
    assert next(x for x in facts if isinstance(x, f.AllocationEnding)).verdict is Verdict.EVICTED
    assert house.state_of(task) is TaskState.PAUSED


# -- budgets ------------------------------------------------------------------------------------------------------


def test_failures_use_up_restarts() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t", max_restarts=2))
    for failure in (1, 2):
        house.leaves(task, code=1)
        assert house.state.tasks[task].failures == failure
        assert house.state.tasks[task].epoch == failure + 1
        house.up(task)
    house.leaves(task, code=1)
    assert house.ended_as(task) == "failed"


@pytest.mark.parametrize("cause", [ExitCause.NEVER_STARTED, ExitCause.MACHINE, ExitCause.ENDED])
def test_infrastructure_is_free(cause: ExitCause) -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t", max_restarts=0))
    for _ in range(4):
        house.leaves(task, code=1, cause=cause)
        assert house.state.tasks[task].failures == 0
        house.pass_time(120.0)  # however long it rests before it is tried again
        house.up(task)
    assert house.state.tasks[task].epoch == 5


@pytest.mark.parametrize(("code", "cause"), [(1, ExitCause.OWN), (-11, ExitCause.OWN), (0, ExitCause.OUT_OF_MEMORY)])
def test_the_program_s_own_failures_count(code: int, cause: ExitCause) -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t", max_restarts=0))
    house.leaves(task, code=code, cause=cause)
    assert house.ended_as(task) == "failed"


def test_respawned_members_have_their_own_budget() -> None:
    house = House().nodes(4)
    task = house.running(program_spec("p", actors=2, max_restarts=1))
    for rank in (0, 1):
        facts = house.leaves(task, "actor", rank, code=1)
        assert "MemberWanted" in names(facts) and "AllocationEnding" not in names(facts)
        house.up(task)
        assert house.member(task, "actor", rank).incarnation == 2
        assert house.member(task, "actor", rank).failures == 1
    house.breaks(task, "actor", 0)
    house.up(task)
    assert (house.member(task, "actor", 0).incarnation, house.member(task, "actor", 0).failures) == (3, 1)
    assert house.state.tasks[task].failures == 0
    facts = house.leaves(task, "actor", 0, code=1)
    assert next(x for x in facts if isinstance(x, f.AllocationEnding)).verdict is Verdict.FAILED
    assert house.state.tasks[task].failures == 1 and house.state.tasks[task].epoch == 2


def test_the_leaders_decide_when_it_is_done() -> None:
    house = House().nodes(4)
    task = house.running(program_spec("p", actors=2))
    assert "AllocationEnding" not in names(house.leaves(task, "actor", 0)), "an actor that exits 0 ends nothing"
    facts = house.leaves(task, "trainer")
    assert next(x for x in facts if isinstance(x, f.AllocationEnding)).verdict is Verdict.DONE
    assert house.ended_as(task) == "done"
    house.sound()


def test_a_gang_is_done_when_its_last_rank_is() -> None:
    house = House().nodes(4)
    task = house.running(trial_spec("t", ranks=3))
    assert names(house.leaves(task, rank=1)) == ["MemberExited"]
    assert names(house.leaves(task, rank=0)) == ["MemberExited"]
    house.leaves(task, rank=2)
    assert house.ended_as(task) == "done"


def test_one_failing_rank_ends_the_epoch() -> None:
    house = House().nodes(4)
    task = house.running(trial_spec("t", ranks=3))
    house.leaves(task, rank=1, code=1)
    assert house.state.tasks[task].epoch == 2
    assert [m.epoch for m in house.state.members_of(task)] == [2, 2, 2]
    house.sound()


# -- flushing -----------------------------------------------------------------------------------------------------


def lanes(house: House, member: MemberId, fence: Fence, metrics: int, output: int) -> list[f.Fact]:
    return house.do(
        e.ReachLanes(cause="lanes", member=member, fence=fence, metrics_sequence=metrics, output_offset=output)
    )


def test_an_allocation_ends_when_the_store_has_everything() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    member, fence = house.m(task), house.fence(task)
    assert lanes(house, member, fence, 99, 999) == [], "nobody waits for it yet"
    assert "FlushBegan" in names(house.leaves(task, metrics_sequence=7, output_offset=100))
    assert house.state.allocations[task].state is AllocationState.FLUSHING
    assert names(lanes(house, member, fence, 7, 50)) == ["LanesReached"]
    assert lanes(house, member, fence, 3, 20) == [], "late words take nothing back"
    facts = lanes(house, member, fence, 7, 100)
    assert next(x for x in facts if isinstance(x, f.AllocationEnded)).flushed
    assert house.ended_as(task) == "done"


def test_the_flush_deadline_is_recorded() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t", flush_deadline_s=30.0))
    house.leaves(task, metrics_sequence=7)
    assert "AllocationEnded" not in names(house.pass_time(29.0))
    facts = house.pass_time(1.0)
    assert not next(x for x in facts if isinstance(x, f.AllocationEnded)).flushed
    assert house.ended_as(task) == "done"


def test_lanes_of_another_life_are_not_counted() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    house.leaves(task, metrics_sequence=7)
    assert lanes(house, house.m(task), Fence(1, 9, 1), 7, 0) == []
    assert lanes(house, MemberId(TaskId("x"), "main", 0), Fence(1, 1, 1), 7, 0) == []


# -- checkpoints and fences ---------------------------------------------------------------------------------------


def commit(house: House, task: TaskId, name: str, step: int, **more: object) -> list[f.Fact]:
    return house.word(e.CommitCheckpoint, task, checkpoint=name, step=step, **more)


def test_a_late_repetition_does_not_fall_back() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    assert names(commit(house, task, "a", 10)) == ["CheckpointCommitted"]
    assert commit(house, task, "a", 10) == []
    assert names(commit(house, task, "b", 20)) == ["CheckpointCommitted"]
    assert commit(house, task, "a", 10) == []
    assert (house.state.tasks[task].checkpoint, house.state.tasks[task].step) == ("b", 20)


def test_the_next_epoch_resumes_and_the_last_one_is_refused() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    old = house.fence(task)
    commit(house, task, "a", 10)
    house.take()
    house.leaves(task, code=1)
    assert "    n0: start t/main.0 g1e2i1 on slots 0 from a" in house.take()
    member = house.m(task)
    for kind, more in (
        (e.CommitCheckpoint, {"checkpoint": "late", "step": 99}),
        (e.AckLeave, {}),
        (e.DeclareFinished, {}),
    ):
        error = house.refused(kind(task=task, member=member, fence=old, **more), Stale)
        assert "g1e1i1" in error.cause and "g1e2i1" in error.cause
    assert house.state.tasks[task].checkpoint == "a"


def test_a_member_speaks_only_for_its_own_task_and_while_it_is_there() -> None:
    house = House().nodes(2)
    one, two = house.running(trial_spec("one")), house.running(trial_spec("two", ranks=1))
    house.refused(e.DeclareFinished(task=two, member=house.m(one), fence=house.fence(one)), Stale)
    house.refused(e.DeclareFinished(task=one, member=house.m(one, rank=5), fence=house.fence(one)), Stale)
    fence = house.fence(one)
    house.leaves(one, metrics_sequence=1)
    house.refused(e.DeclareFinished(task=one, member=house.m(one), fence=fence), Stale)


def test_workers_that_leave_together_are_rescheduled_together() -> None:
    house = House().nodes(2)
    task = house.running(workers_spec("w", workers=2))
    house.do(e.Pause(task=task))
    house.word(e.AckLeave, task, "worker", 0)
    house.leaves(task, "worker", 0)
    assert house.state_of(task) is TaskState.RUNNING
    house.leaves(task, "worker", 1)
    assert house.state_of(task) is TaskState.PAUSED


@pytest.mark.parametrize("exit", [Exit(1), Exit(1, ExitCause.MACHINE)])
def test_workers_that_die_while_they_leave_are_not_done(exit: Exit) -> None:
    """Nobody acknowledged and nobody exited 0: the work is not complete."""
    house = House().nodes(2)
    task = house.running(workers_spec("w", workers=1))
    house.do(e.Pause(task=task))
    house.exit(house.m(task, "worker"), exit)
    assert house.state_of(task) is TaskState.PAUSED
    assert house.state.tasks[task].failures == (1 if exit.cause is ExitCause.OWN else 0)


def test_a_node_lost_under_leaving_workers_does_not_make_them_done() -> None:
    house = House().nodes(2)
    task = house.running(workers_spec("w", workers=1, leave_within_s=1e6))
    house.do(e.Pause(task=task))
    house.cut(house.node_of(task, "worker"))
    house.pass_time(90.0)
    assert house.state_of(task) is TaskState.PAUSED


def test_members_are_removed_with_their_allocation() -> None:
    house = House().nodes(4)
    task = house.running(program_spec("p"))
    house.do(e.Kill(task=task))
    assert house.ended_as(task) == "killed"
    assert not house.state.members and not house.state.allocations
    assert not house.state.ledgers["pool"].holdings
    assert MemberState.WANTED not in [m.state for m in house.state.members.values()]
    house.sound()


def test_what_cannot_be_started_is_not_tried_again() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t", max_restarts=5))
    house.leaves(task, code=118, cause=ExitCause.REFUSED, reason="torchrun is not installed")
    assert house.ended_as(task) == "failed"
    house.sound()
