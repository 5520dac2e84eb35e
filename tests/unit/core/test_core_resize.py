"""Roles that change their size, nodes that are drained, members that are spread."""

from __future__ import annotations

from house import House, names, program_spec, session_spec, trial_spec, workers_spec

from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest, Conflict
from clutch.wire.ids import MemberId, NodeId, TaskId
from clutch.wire.messages import Exit
from clutch.wire.outcomes import AllocationState, MemberState, NodeState, TaskState, Verdict
from clutch.wire.resources import Resources
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import OnDeath, RoleSpec, Split, Spread, TaskSpec


def ranks(house: House, task: TaskId, role: str) -> list[int]:
    return sorted(m.member.rank for m in house.state.members_of(task) if m.member.role == role)


def resize(house: House, task: TaskId, role: str, count: int) -> list[f.Fact]:
    return house.do(e.Resize(cause="api", task=task, role=role, count=count))


# -- roles whose members live one by one --------------------------------------------------------------------------


def test_a_respawn_role_grows_member_by_member() -> None:
    house = House().nodes(4)
    task = house.running(program_spec("p", actors=2))
    facts = resize(house, task, "actor", 4)
    assert names(facts)[:3] == ["RoleResized", "MemberWanted", "MemberWanted"]
    assert names(facts).count("MemberGranted") == 2 and "LeaveAsked" not in names(facts)
    assert ranks(house, task, "actor") == [0, 1, 2, 3]
    assert house.state.tasks[task].epoch == 1
    assert resize(house, task, "actor", 4) == []
    house.up(task)
    house.sound()


def test_a_respawn_role_shrinks_from_the_highest_rank() -> None:
    house = House().nodes(4)
    task = house.running(program_spec("p", actors=3))
    facts = resize(house, task, "actor", 1)
    asked = [x for x in facts if isinstance(x, f.MemberLeaveAsked)]
    assert [(x.member.rank, x.reason) for x in asked] == [(2, PreemptReason.RESIZED), (1, PreemptReason.RESIZED)]
    assert asked[0].deadline == house.now + 600.0
    assert "MemberRemoved" in names(house.leaves(task, "actor", 2))
    facts = house.pass_time(600.0)
    assert {"MemberEnding", "MemberExited", "MemberRemoved"} <= set(names(facts)), "the other is ended"
    assert ranks(house, task, "actor") == [0]
    assert house.state.tasks[task].epoch == 1
    house.sound()


def test_shrinking_removes_a_waiting_member_at_once() -> None:
    house = House().nodes(2)
    task = house.running(workers_spec("w", workers=2))
    resize(house, task, "worker", 3)
    assert house.member(task, "worker", 2).state is MemberState.WANTED
    assert names(resize(house, task, "worker", 2)) == ["RoleResized", "MemberRemoved"]
    assert not house.state.waiting_members and not house.state.ledgers["pool"].waiting
    house.sound()


def test_shrinking_removes_a_member_that_was_done() -> None:
    house = House().nodes(4)
    task = house.running(workers_spec("w", workers=3))
    house.leaves(task, "worker", 2)
    assert "MemberRemoved" in names(resize(house, task, "worker", 2))
    assert ranks(house, task, "worker") == [0, 1]
    house.sound()


def test_a_rank_that_comes_back_is_a_later_incarnation() -> None:
    """P2: the removed one may still run behind a broken link, and must not have the same right to write."""
    house = House().nodes(1, 1)
    task = house.running(workers_spec("w", workers=2))
    first = house.fence(task, "worker", 1)
    far = house.node_of(task, "worker", 1)
    house.cut(far)
    resize(house, task, "worker", 1)
    house.pass_time(600.0)
    assert ranks(house, task, "worker") == [0]
    house.add_node("n9", 1)
    resize(house, task, "worker", 2)
    house.up(task)
    assert house.fence(task, "worker", 1) > first
    house.mend(far)
    assert house.state.nodes[far].state is NodeState.READY, "the old one was a stray, and is gone"
    assert house.member(task, "worker", 1).state is MemberState.RUNNING
    house.sound()


def test_an_exit_record_of_a_removed_member_is_not_taken_for_its_successor_s() -> None:
    house = House().nodes(2)
    task = house.running(workers_spec("w", workers=2))
    resize(house, task, "worker", 1)
    machine = house.machines[NodeId("n0")]
    machine.linked = False
    house.exit(house.m(task, "worker", 1), Exit(0))
    machine.linked = True
    house.beat("n0")
    resize(house, task, "worker", 2)
    house.up(task)
    assert house.member(task, "worker", 1).state is MemberState.RUNNING
    assert house.member(task, "worker", 1).incarnation == 2


def test_grown_again_while_a_member_leaves_it_comes_back() -> None:
    house = House().nodes(4)
    task = house.running(workers_spec("w", workers=3))
    resize(house, task, "worker", 2)
    assert house.member(task, "worker", 2).state is MemberState.LEAVING
    resize(house, task, "worker", 3)
    house.leaves(task, "worker", 2)
    house.up(task)
    assert ranks(house, task, "worker") == [0, 1, 2]
    assert house.member(task, "worker", 2).state is MemberState.RUNNING
    house.sound()


def test_shrunk_while_a_member_moves_away_it_does_not_come_back() -> None:
    house = House().nodes(1, 1, 1)
    task = house.running(workers_spec("w", workers=2))
    house.do(e.DrainNode(node=house.node_of(task, "worker", 1)))
    assert house.member(task, "worker", 1).leave_reason is PreemptReason.DRAINED
    resize(house, task, "worker", 1)
    house.leaves(task, "worker", 1)
    assert ranks(house, task, "worker") == [0]
    house.sound()


def test_when_the_last_working_member_is_shrunk_away_the_work_is_done() -> None:
    house = House().nodes(4)
    task = house.running(workers_spec("w", workers=2))
    house.leaves(task, "worker", 0)
    assert house.state_of(task) is TaskState.RUNNING
    resize(house, task, "worker", 1)
    house.leaves(task, "worker", 1)
    assert house.ended_as(task) == "done"


def test_an_allocation_runs_though_a_starting_member_was_shrunk_away() -> None:
    """Else its preemption would give it no window."""
    house = House().nodes(4)
    task = house.submit(workers_spec("w", workers=2))
    house.run(house.m(task, "worker", 0))
    assert house.state.allocations[task].state is AllocationState.PLACED
    resize(house, task, "worker", 1)
    house.leaves(task, "worker", 1)
    assert house.state.allocations[task].state is AllocationState.RUNNING


def test_an_allocation_runs_though_a_starting_member_was_lost() -> None:
    house = House().nodes(1, 1)
    task = house.submit(workers_spec("w", workers=2))
    far = house.node_of(task, "worker", 1)
    house.run(house.m(task, "worker", 0))
    house.cut(far)
    house.pass_time(90.0)
    assert house.member(task, "worker", 1).state is MemberState.WANTED
    assert house.state.allocations[task].state is AllocationState.RUNNING


def test_a_role_may_shrink_to_nothing_and_grow_again() -> None:
    house = House().nodes(4)
    task = house.running(program_spec("p", actors=1, count_min=0))
    resize(house, task, "actor", 0)
    house.leaves(task, "actor", 0)
    assert ranks(house, task, "actor") == []
    resize(house, task, "actor", 2)
    house.up(task)
    assert ranks(house, task, "actor") == [0, 1]
    house.sound()


def test_something_must_be_left_of_a_task() -> None:
    house = House().nodes(1)
    house.running(trial_spec("first"))
    task = house.submit(trial_spec("t", count_max=4))
    assert "Pause or cancel" in house.refused(e.Resize(task=task, role="main", count=0), BadRequest).next_step


# -- roles that end together --------------------------------------------------------------------------------------


def test_an_end_role_is_resized_by_a_new_epoch() -> None:
    house = House().nodes(4)
    task = house.running(trial_spec("t", ranks=2, count_max=4))
    facts = resize(house, task, "main", 3)
    leave = next(x for x in facts if isinstance(x, f.LeaveAsked))
    assert leave.reason is PreemptReason.RESIZED
    house.ack(task)
    house.leaves(task, rank=0)
    house.leaves(task, rank=1)
    assert house.state.tasks[task].epoch == 2
    assert ranks(house, task, "main") == [0, 1, 2]
    house.sound()


def test_a_waiting_task_asks_for_its_present_size() -> None:
    house = House().nodes(2)
    task = house.submit(trial_spec("t", ranks=3, count_max=4))
    assert house.state_of(task) is TaskState.QUEUED
    resize(house, task, "main", 2)
    assert ranks(house, task, "main") == [0, 1]
    again = house.submit(trial_spec("u", ranks=3, count_max=4))
    house.do(e.Pause(task=again))
    resize(house, again, "main", 1)
    house.do(e.Kill(task=task))
    house.do(e.Resume(task=again))
    assert ranks(house, again, "main") == [0]


def test_resized_before_it_ran_it_starts_anew_at_once() -> None:
    house = House().nodes(4)
    task = house.submit(trial_spec("t", ranks=2, count_max=4))
    facts = resize(house, task, "main", 1)
    assert next(x for x in facts if isinstance(x, f.AllocationEnding)).verdict is Verdict.EVICTED
    assert house.state.tasks[task].epoch == 2 and ranks(house, task, "main") == [0]


def test_impossible_sizes_are_refused() -> None:
    house = House().nodes(4)
    task = house.running(program_spec("p", actors=2))
    for count in (0, 9, -1):
        error = house.refused(e.Resize(task=task, role="actor", count=count), BadRequest)
        assert error.next_step == "It may have 1 to 8."
    assert "trainer, actor" in house.refused(e.Resize(task=task, role="nobody", count=1), Conflict).next_step
    split = house.running(trial_spec("s", shape=Split(2)))
    assert house.refused(e.Resize(task=split, role="main", count=3), BadRequest).next_step == "Its slots are split."


# -- drain --------------------------------------------------------------------------------------------------------


def test_drain_moves_what_can_leave() -> None:
    house = House().nodes(4, 4)
    trial = house.running(trial_spec("trial"))
    fixed = house.running(trial_spec("fixed", preemptible=False))
    workers = house.running(workers_spec("workers", workers=1))
    node = house.node_of(trial)
    assert {house.node_of(fixed), house.node_of(workers, "worker")} == {node}
    facts = house.do(e.DrainNode(cause="admin", node=node))
    assert house.do(e.DrainNode(cause="admin", node=node)) == []
    assert house.state.nodes[node].state is NodeState.DRAINING
    assert [x.task for x in facts if isinstance(x, f.LeaveAsked)] == [trial]
    assert [x.member.task for x in facts if isinstance(x, f.MemberLeaveAsked)] == [workers]
    house.ack(trial)
    house.leaves(trial)
    house.leaves(workers, "worker")
    assert house.node_of(trial) != node and house.node_of(workers, "worker") != node
    assert house.state.tasks[workers].epoch == 1, "one member moved, not the allocation"
    assert house.node_of(fixed) == node
    house.refused(e.RemoveNode(node=node), Conflict)
    house.leaves(fixed)
    assert names(house.do(e.RemoveNode(node=node))) == ["NodeRemoved"]
    assert node not in house.state.nodes
    house.sound()


def test_a_drained_node_opens_again() -> None:
    house = House().nodes(1)
    house.do(e.DrainNode(node=NodeId("n0")))
    task = house.submit(trial_spec("t"))
    assert house.state_of(task) is TaskState.QUEUED
    house.cut("n0")
    house.mend("n0")
    assert house.state.nodes["n0"].state is NodeState.DRAINING, "the wish outlives silence"
    house.do(e.OpenNode(node=NodeId("n0")))
    assert house.do(e.OpenNode(node=NodeId("n0"))) == []
    assert house.state_of(task) is TaskState.RUNNING
    house.refused(e.RemoveNode(node=NodeId("n0")), Conflict)


def test_a_member_that_moves_does_not_start_again_when_all_must_leave() -> None:
    """It was asked to leave alone, then its allocation was asked to leave: it must not wait for a new place."""
    house = House().nodes(2, 2)
    task = house.running(workers_spec("w", workers=2))
    house.do(e.DrainNode(node=house.node_of(task, "worker", 1)))
    house.do(e.Pause(task=task))
    house.word(e.AckLeave, task, "worker", 0)
    facts = [*house.leaves(task, "worker", 0), *house.leaves(task, "worker", 1)]
    assert "MemberWanted" not in names(facts)
    assert house.state_of(task) is TaskState.PAUSED
    house.sound()


def test_a_member_that_moves_and_dies_does_not_start_again_when_all_must_leave() -> None:
    house = House().nodes(2, 2)
    task = house.running(workers_spec("w", workers=2))
    house.do(e.DrainNode(node=house.node_of(task, "worker", 1)))
    house.do(e.Pause(task=task))
    house.word(e.AckLeave, task, "worker", 0)
    facts = [*house.leaves(task, "worker", 1, code=1), *house.leaves(task, "worker", 0)]
    assert "MemberWanted" not in names(facts)
    assert house.state_of(task) is TaskState.PAUSED


def test_nobody_there_nothing_to_wait_for() -> None:
    """Every member of it waits for a place: asked to leave, it has left."""
    house = House().nodes(1)
    task = house.running(workers_spec("w", workers=1))
    house.do(e.DrainNode(node=NodeId("n0")))
    house.leaves(task, "worker", 0)
    assert house.member(task, "worker", 0).state is MemberState.WANTED
    house.do(e.Pause(task=task))
    assert house.state_of(task) is TaskState.PAUSED
    house.sound()


# -- spread -------------------------------------------------------------------------------------------------------


def test_a_hard_spread_waits_for_enough_nodes() -> None:
    house = House().nodes(1, 1)
    task = house.submit(session_spec("s", 3, slots=1))
    assert house.state_of(task) is TaskState.QUEUED
    assert house.plans["pool"].why(task).code in ("spread", "too_big")
    house.add_node("n2", 1)
    assert sorted(house.node_of(task, "replica", r) for r in range(3)) == ["n0", "n1", "n2"]


def test_a_soft_spread_takes_what_there_is() -> None:
    house = House().nodes(4, 4)
    task = house.submit(session_spec("s", 3, slots=1, spread=Spread.SOFT))
    assert {house.node_of(task, "replica", r) for r in range(3)} == {"n0", "n1"}


def test_a_replacement_keeps_away_from_its_peers() -> None:
    house = House().nodes(4, 4, 4, 4)
    task = house.running(session_spec("s", 3))
    used = {house.node_of(task, "replica", r) for r in range(3)}
    house.breaks(task, "replica", 1)
    assert house.node_of(task, "replica", 1) not in {house.node_of(task, "replica", r) for r in (0, 2)}
    gone = house.node_of(task, "replica", 2)
    house.cut(gone)
    house.pass_time(5.0)
    assert {house.node_of(task, "replica", r) for r in range(3)} == ({"n0", "n1", "n2", "n3"} - {gone})
    assert len(used) == 3
    house.sound()


def test_roles_are_checked_together() -> None:
    roles = (
        RoleSpec("a", Split(2), on_death=OnDeath.RESPAWN),
        RoleSpec("a", Split(2, max_nodes=-1), spread=Spread.HARD),
    )
    spec = TaskSpec(kind="x", name="x", pool="pool", roles=roles)
    error = House().refused(e.Submit(task=TaskId("x"), spec=spec), BadRequest)
    for part in ("two roles share a name", "roles[0].on_death", "roles[1].shape.max_nodes", "roles[1]"):
        assert part in str(error), part
    assert MemberId(TaskId("x"), "a", 0) < MemberId(TaskId("x"), "a", 1) and Resources().slots == 0
