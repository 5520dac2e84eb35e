"""A cell's lease: asked, granted, lingering, used again, reclaimed, withdrawn, timed out, lost."""

from __future__ import annotations

import msgspec
import pytest
from house import House, names, session_spec, trial_spec, workers_spec

from clutch.core.wanted import wanted
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest, Conflict, NotFound, Stale
from clutch.wire.ids import LeaseId, MemberId, NodeId, TaskId
from clutch.wire.messages import Exit, Phase
from clutch.wire.outcomes import LeaseEnd, LeaseState, MemberState, TaskState
from clutch.wire.specs import OnNodeLost

N0 = NodeId("n0")


def ended(house: House, lease: LeaseId) -> LeaseEnd:
    found = [r.fact.how for r in house.history if isinstance(r.fact, f.LeaseEnded) and r.fact.lease == lease]
    assert len(found) == 1
    return found[0]


def idle(house: House, lease: LeaseId, use: int = 1) -> list[f.Fact]:
    number = house.state.leases[lease].number
    return house.do(e.IdleLease(cause="gateway", lease=lease, number=number, use=use))


def one_session(slots: int = 2, nodes: tuple[int, ...] = (2,), count: int = 1) -> tuple[House, TaskId]:
    house = House().nodes(*nodes)
    return house, house.running(session_spec("s", count, slots=slots))


def test_a_grant_goes_to_the_member_on_that_node() -> None:
    house = House().nodes(2, 2, 2)
    house.running(trial_spec("t", slots=2, excluded_nodes=(NodeId("n1"), NodeId("n2"))))
    session = house.running(session_spec("s", 3))
    lease = house.ask_lease(session, 1, 2, ranks=(0, 1, 2))
    held = house.state.leases[lease]
    assert held.state is LeaseState.HELD and held.uses == 1
    assert held.placement is not None and held.placement.node != "n0"
    (holder,) = held.members
    assert house.state.members[holder].placement.node == held.placement.node
    (said,) = wanted(house.state, held.placement.node).leases
    assert (said.member, said.number, said.phase, said.slots) == (holder, held.number, Phase.RUN, (0, 1))
    house.sound()


def test_asked_twice_it_is_one_lease() -> None:
    house, session = one_session()
    lease = house.ask_lease(session, 1)
    before = house.state.index
    house.ask_lease(session, 1)
    assert house.state.index == before and list(house.state.leases) == [lease]


def test_it_lingers_and_is_used_again() -> None:
    house, session = one_session()
    lease = house.ask_lease(session, 1)
    number = house.state.leases[lease].number
    assert names(idle(house, lease)) == ["LeaseLingered"]
    assert idle(house, lease) == [], "said again it is the same"
    assert house.state.leases[lease].deadline == house.now + 60.0
    reuse = e.ReuseLease(lease=lease, number=number, use=2)
    assert names(house.do(reuse)) == ["LeaseReused"]
    assert house.do(reuse) == [], "said again it is the same cell"
    assert idle(house, lease, use=1) == [], "the first cell's end, late"
    assert house.state.leases[lease].state is LeaseState.HELD
    assert house.pass_time(120.0) == [], "it is in use: nothing falls due"
    assert names(idle(house, lease, use=2)) == ["LeaseLingered"]
    facts = house.pass_time(60.0)
    assert names(facts) == ["LeaseReclaimed", "LeaseEnded"]
    assert ended(house, lease) is LeaseEnd.RELEASED
    house.refused(e.ReuseLease(lease=lease, number=number, use=3), NotFound)
    house.sound()


def test_a_lingering_lease_is_reclaimed_when_someone_waits() -> None:
    house, session = one_session(slots=2)
    lease = house.ask_lease(session, 1, 2)
    house.machines[N0].obedient = False
    trial = house.submit(trial_spec("t", slots=2))
    assert house.state.leases[lease].state is LeaseState.HELD, "a running cell is not preempted"
    facts = idle(house, lease)
    assert names(facts)[:2] == ["LeaseLingered", "LeaseReclaimed"]
    number = house.state.leases[lease].number
    error = house.refused(e.ReuseLease(lease=lease, number=number, use=2), Stale)
    assert "reclaiming" in error.cause
    assert house.state_of(trial) is TaskState.QUEUED, "free only when the agent says so"
    house.free("n0", lease)
    assert ended(house, lease) is LeaseEnd.RELEASED
    assert house.state_of(trial) is TaskState.RUNNING
    house.sound()


def test_a_second_cell_waits_and_times_out() -> None:
    house, session = one_session(slots=2)
    house.ask_lease(session, 1, 2)
    second = house.ask_lease(session, 2, 1, wait_limit_s=10.0)
    assert house.state.leases[second].state is LeaseState.WANTED
    assert "LeaseEnded" not in names(house.pass_time(9.0))
    house.pass_time(1.0)
    assert ended(house, second) is LeaseEnd.TIMED_OUT
    house.sound()


def test_withdrawn_before_and_after_its_grant() -> None:
    house, session = one_session(slots=2)
    first = house.ask_lease(session, 1, 2)
    second = house.ask_lease(session, 2, 1)
    assert names(house.do(e.WithdrawLease(lease=second))) == ["LeaseEnded"]
    assert ended(house, second) is LeaseEnd.WITHDRAWN
    house.do(e.WithdrawLease(lease=first))
    assert ended(house, first) is LeaseEnd.RELEASED
    house.refused(e.WithdrawLease(lease=first), NotFound)


def test_lost_with_its_node() -> None:
    house, session = one_session(nodes=(2, 2))
    lease = house.ask_lease(session, 1)
    number = house.state.leases[lease].number
    node = house.node_of(session, "replica")
    house.machines[node].obedient = False
    house.cut(node)
    house.pass_time(5.0)
    assert ended(house, lease) is LeaseEnd.LOST
    assert house.node_of(session, "replica") != node
    facts = house.mend(node)
    assert isinstance(facts[0], f.NodeReported)
    assert set(facts[0].strays) == {f"lease {lease} #{number}", "s/replica.0 g1e1i1"}
    house.machines[node].obedient = True
    house.beat(node)
    assert house.state.nodes[node].state == "ready"
    house.sound()


def test_lost_with_its_member() -> None:
    house, session = one_session()
    lease = house.ask_lease(session, 1)
    facts = house.leaves(session, "replica", code=1)
    assert names(facts)[:2] == ["MemberExited", "LeaseReclaimed"]
    assert ended(house, lease) is LeaseEnd.RELEASED, "the agent saw the slots free"
    assert house.member(session, "replica").state is not MemberState.EXITED


def test_lost_with_a_session_that_waited_for_its_node() -> None:
    house = House().nodes(2)
    session = house.running(session_spec("s", 1, on_node_lost=OnNodeLost.WAIT))
    lease = house.ask_lease(session, 1)
    house.cut("n0")
    house.pass_time(200.0)
    assert house.state.leases[lease].state is LeaseState.HELD, "it waits with its session"
    house.do(e.Kill(task=session))
    assert ended(house, lease) is LeaseEnd.LOST
    assert house.ended_as(session) == "killed"
    house.sound()


def test_slots_of_a_vanished_member_are_free_only_when_the_agent_has_seen_it() -> None:
    house, session = one_session(slots=2)
    lease = house.ask_lease(session, 1, 2)
    machine = house.machines[N0]
    machine.linked = False  # from here on this test says what the agent says
    said = machine.brain.report().report
    gone = msgspec.structs.replace(said, members=())
    assert "LeaseReclaimed" in names(house.tell(e.Reported(report=gone)))
    assert house.state.leases[lease].state is LeaseState.RECLAIMING
    trial = house.submit(trial_spec("t", slots=1))
    late = msgspec.structs.replace(gone, leases=(), wanted_sequence=house.state.leases[lease].ending_index - 1)
    assert "LeaseEnded" not in names(house.tell(e.Reported(report=late))), "it may have been said before it was asked"
    assert house.state_of(trial) is TaskState.QUEUED
    done = msgspec.structs.replace(late, wanted_sequence=house.state.index)
    house.do(e.Reported(cause="agent", report=done))
    assert ended(house, lease) is LeaseEnd.RELEASED
    assert house.state_of(trial) is TaskState.RUNNING


def test_a_waiting_lease_follows_its_members() -> None:
    """The replica that may hold it has moved: the request must name the new node."""
    house = House().nodes(1, 1)
    session = house.running(session_spec("s", 1, slots=1))
    here = house.node_of(session, "replica")
    other = next(n for n in house.machines if n != here)
    house.running(trial_spec("t", preemptible=False, excluded_nodes=(other,)))
    lease = house.ask_lease(session, 1, wait_limit_s=1000.0)
    assert house.state.leases[lease].state is LeaseState.WANTED
    house.do(e.DrainNode(node=here))
    house.leaves(session, "replica")
    house.up(session)
    assert house.node_of(session, "replica") == other
    assert house.state.leases[lease].placement.node == other
    house.sound()


def test_a_lease_whose_replica_has_no_place_waits() -> None:
    house = House().nodes(2)
    session = house.running(session_spec("s", 1))
    house.do(e.DrainNode(node=N0))
    house.leaves(session, "replica")
    assert house.member(session, "replica").state is MemberState.WANTED
    lease = house.ask_lease(session, 1, wait_limit_s=1000.0)
    assert house.state.leases[lease].state is LeaseState.WANTED
    house.do(e.OpenNode(node=N0))
    assert house.state.leases[lease].state is LeaseState.HELD


def test_the_end_of_a_session_takes_its_leases_along() -> None:
    house, session = one_session(slots=2)
    held = house.ask_lease(session, 1, 2)
    waiting = house.ask_lease(session, 2, 1)
    house.do(e.Kill(task=session))
    assert ended(house, held) is LeaseEnd.RELEASED and ended(house, waiting) is LeaseEnd.WITHDRAWN
    assert house.ended_as(session) == "killed"
    assert not house.state.leases and not house.state.leases_of.get(session)
    house.sound()


def test_a_session_ends_only_when_its_slots_are_back() -> None:
    house, session = one_session()
    lease = house.ask_lease(session, 1)
    house.machines[N0].obedient = False
    house.do(e.Kill(task=session))
    house.machines[N0].obedient = True
    house.exit(house.m(session, "replica"), Exit(-9))
    assert house.state_of(session) in (TaskState.RUNNING, TaskState.ENDED)
    if lease in house.state.leases:
        house.free("n0", lease)
    assert house.ended_as(session) == "killed"


def test_the_number_grows_per_slot() -> None:
    house, session = one_session(slots=1, nodes=(1,))
    numbers = []
    for cell in (1, 2):
        lease = house.ask_lease(session, cell)
        numbers.append(house.state.leases[lease].number)
        house.do(e.WithdrawLease(lease=lease))
    trial = house.running(trial_spec("t"))
    numbers.append(house.member(trial).lease_number)
    house.leaves(trial)
    house.new_master()
    third = house.ask_lease(session, 3)
    numbers.append(house.state.leases[third].number)
    assert numbers == sorted(set(numbers)), "each is above the one before, across masters and kinds of lease"


def test_a_number_is_the_index_of_its_grant() -> None:
    """So it is above every earlier one on any of its slots, even when its node was removed and came back."""
    house = House().nodes(2)
    task = house.running(trial_spec("a", slots=2))
    granted = next(r for r in house.history if isinstance(r.fact, f.AllocationGranted))
    assert house.member(task).lease_number == granted.index


def test_the_number_grows_with_each_respawn() -> None:
    house = House().nodes(1)
    task = house.running(workers_spec("w", workers=1))
    numbers = [house.member(task, "worker").lease_number]
    for _ in range(2):
        house.breaks(task, "worker")
        house.pass_time(120.0)
        house.up(task)
        numbers.append(house.member(task, "worker").lease_number)
    assert numbers == sorted(set(numbers))


def test_stale_numbers_uses_and_cells_are_refused() -> None:
    house, session = one_session(slots=2)
    lease = house.ask_lease(session, 5)
    number = house.state.leases[lease].number
    for kind in (e.IdleLease, e.ReuseLease):
        error = house.refused(kind(lease=lease, number=number + 1, use=1), Stale)
        assert f"its number is {number}" in error.cause
    house.refused(e.ReuseLease(lease=lease, number=number, use=2), Stale)
    idle(house, lease)
    house.refused(e.ReuseLease(lease=lease, number=number, use=1), Stale)
    house.refused(e.ReuseLease(lease=lease, number=number, use=3), Stale)
    ask = {"task": session, "members": (house.m(session, "replica"),), "slots": 1, "kind": "cuda"}
    for cell in (5, 4):
        house.refused(e.AskLease(lease=LeaseId(f"late{cell}"), cell=cell, **ask), Stale)


def test_a_waiting_lease_has_no_number_to_speak_with() -> None:
    house, session = one_session(slots=2)
    house.ask_lease(session, 1, 2)
    waiting = house.ask_lease(session, 2)
    house.refused(e.IdleLease(lease=waiting, number=0, use=0), Stale)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"slots": 3}, BadRequest),
        ({"slots": 0}, BadRequest),
        ({"slots": -1}, BadRequest),
        ({"kind": "rocm"}, BadRequest),
        ({"members": ()}, BadRequest),
        ({"members": (MemberId(TaskId("s"), "replica", 9),)}, BadRequest),
        ({"members": (MemberId(TaskId("t"), "main", 0),)}, BadRequest),
        ({"lease": LeaseId("")}, BadRequest),
        ({"wait_limit_s": float("nan")}, BadRequest),
        ({"wait_limit_s": -1.0}, BadRequest),
        ({"linger_s": float("inf")}, BadRequest),
        ({"linger_s": -5.0}, BadRequest),
        ({"task": TaskId("nobody")}, NotFound),
    ],
)
def test_bad_asks(wrong: dict[str, object], kind: type) -> None:
    house, session = one_session(slots=2)
    house.running(trial_spec("t"))
    ask = {
        "lease": LeaseId("l"),
        "task": session,
        "cell": 1,
        "members": (house.m(session, "replica"),),
        "slots": 1,
        "kind": "cuda",
    }
    house.refused(e.AskLease(**{**ask, **wrong}), kind)


def test_a_trial_has_nothing_to_lease_and_a_leaving_session_gets_nothing() -> None:
    house, session = one_session(slots=2)
    trial = house.running(trial_spec("t"))
    ask = {"lease": LeaseId("l"), "cell": 1, "slots": 1, "kind": "cuda"}
    error = house.refused(e.AskLease(task=trial, members=(house.m(trial),), **ask), BadRequest)
    assert "no slots" in error.cause
    house.do(e.Pause(task=session))
    house.refused(e.AskLease(task=session, members=(house.m(session, "replica"),), **ask), Conflict)


def test_a_name_belongs_to_one_task() -> None:
    house = House().nodes(4)
    one, two = house.running(session_spec("one", 1, slots=1)), house.running(session_spec("two", 1, slots=1))
    ask = {"lease": LeaseId("l"), "cell": 1, "slots": 1, "kind": "cuda"}
    house.do(e.AskLease(task=one, members=(house.m(one, "replica"),), **ask))
    house.refused(e.AskLease(task=two, members=(house.m(two, "replica"),), **ask), Conflict)
