"""Silence and return: suspect, lost, waiting, strays, vanished members, and a new master's term."""

from __future__ import annotations

import msgspec
import pytest
from house import House, names, session_spec, trial_spec, workers_spec

from clutch.core.wanted import may_be_ordered, wanted
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import BadRequest, Conflict, NotFound, Stale
from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, PoolName, TaskId
from clutch.wire.messages import Hello, MemberStatus, ObservedLease, ObservedMember, Phase, Report
from clutch.wire.outcomes import MemberState, NodeState, TaskState
from clutch.wire.resources import Capacity, Slot
from clutch.wire.specs import OnNodeLost, PoolSpec

N0 = NodeId("n0")


def report(house: House, node: str = "n0", **more: object) -> Report:
    """The node's own next report, with some of it changed."""
    say = house.machines[NodeId(node)].brain.report()
    return msgspec.structs.replace(say.report, **more)  # type: ignore[arg-type]


def heard(house: House, said: Report) -> list[f.Fact]:
    return house.tell(e.Reported(cause="agent", report=said))


def ghost(task: str = "ghost", epoch: int = 1, status: MemberStatus = MemberStatus.RUNNING) -> ObservedMember:
    return ObservedMember(MemberId(TaskId(task), "main", 0), Fence(1, epoch, 1), status)


# -- suspect, then lost -------------------------------------------------------------------------------------------


def test_a_silent_node_is_suspect_at_once_and_lost_in_time() -> None:
    house = House().nodes(2)
    task = house.running(trial_spec("t"))
    assert names(house.cut("n0")) == ["NodeSuspected"]
    assert house.do(e.Silent(node=N0)) == [], "it is suspect already"
    waiting = house.submit(trial_spec("u"))
    assert house.state_of(waiting) is TaskState.QUEUED, "no new grants"
    assert names(house.pass_time(89.0)) == ["ResidentsLost"]
    assert house.member(task).state is MemberState.RUNNING
    facts = house.pass_time(1.0)
    assert names(facts)[:2] == ["NodeLost", "MemberLost"]
    assert house.state.tasks[task].failures == 0
    assert house.state_of(task) is TaskState.QUEUED
    house.add_node("n1", 2)
    assert house.node_of(task) == "n1" and house.node_of(waiting) == "n1"
    house.sound()


def test_a_node_that_speaks_again_in_time_keeps_everything() -> None:
    house = House().nodes(2)
    task = house.running(trial_spec("t"))
    house.cut("n0")
    house.pass_time(80.0)
    assert names(house.mend("n0")) == ["NodeReported"]
    house.pass_time(200.0)
    assert house.member(task).state is MemberState.RUNNING and house.state.tasks[task].epoch == 1


def test_work_that_waits_for_its_node() -> None:
    house = House().nodes(2, 2)
    task = house.running(trial_spec("t", on_node_lost=OnNodeLost.WAIT))
    node = house.node_of(task)
    house.cut(node)
    facts = house.pass_time(3600.0)
    assert names(facts) == ["ResidentsLost", "NodeLost"]
    assert house.member(task).state is MemberState.RUNNING
    house.refused(e.RemoveNode(node=node), Conflict)
    house.mend(node)
    assert house.state.nodes[node].state is NodeState.READY
    assert (house.member(task).state, house.state.tasks[task].epoch) == (MemberState.RUNNING, 1)


def test_work_that_waits_can_still_be_killed_or_cancelled() -> None:
    house = House().nodes(2)
    killed = house.running(trial_spec("killed", on_node_lost=OnNodeLost.WAIT))
    cancelled = house.running(trial_spec("cancelled", on_node_lost=OnNodeLost.WAIT))
    house.cut("n0")
    house.pass_time(90.0)
    house.do(e.Kill(task=killed))
    assert house.ended_as(killed) == "killed", "nobody waits for an answer from a lost node"
    house.do(e.Cancel(task=cancelled))
    house.pass_time(600.0)
    assert house.ended_as(cancelled) == "cancelled"
    assert names(house.do(e.RemoveNode(node=N0))) == ["NodeRemoved"]


def test_a_waiting_member_asked_to_leave_is_given_up_at_its_deadline() -> None:
    house = House().nodes(1, 1)
    task = house.running(workers_spec("w", workers=2, on_node_lost=OnNodeLost.WAIT))
    house.cut(house.node_of(task, "worker", 1))
    house.pass_time(90.0)
    house.do(e.Resize(task=task, role="worker", count=1))
    house.pass_time(600.0)
    assert [m.member.rank for m in house.state.members_of(task)] == [0]
    house.sound()


def test_residents_are_replaced_long_before_the_node_is_given_up() -> None:
    house = House().nodes(4, 4, 4, 4)
    session = house.running(session_spec("s"))
    node = house.node_of(session, "replica", 1)
    trial = house.running(trial_spec("t", excluded_nodes=tuple(n for n in house.machines if n != node)))
    house.cut(node)
    assert house.pass_time(4.0) == []
    facts = house.pass_time(1.0)
    assert names(facts)[:3] == ["ResidentsLost", "MemberLost", "MemberWanted"]
    assert house.node_of(session, "replica", 1) != node
    assert house.member(session, "replica", 1).incarnation == 2
    assert house.member(trial).state is MemberState.RUNNING, "the trial is still waited for"
    house.mend(node)
    assert house.state.nodes[node].state is NodeState.READY
    assert house.member(trial).state is MemberState.RUNNING
    house.sound()


def test_residents_that_would_rather_wait_are_waited_for() -> None:
    house = House().nodes(4, 4)
    session = house.running(session_spec("s", 1, on_node_lost=OnNodeLost.WAIT))
    node = house.node_of(session, "replica")
    house.cut(node)
    house.pass_time(200.0)
    assert house.node_of(session, "replica") == node
    house.mend(node)
    assert house.member(session, "replica").incarnation == 1


def test_patience_is_the_pool_s() -> None:
    house = House(pool=PoolSpec(PoolName("pool"), node_lost_after_s=10.0)).nodes(1)
    house.cut("n0")
    assert names(house.pass_time(10.0)) == ["ResidentsLost", "NodeLost"]


# -- strays -------------------------------------------------------------------------------------------------------


def test_a_returning_node_is_closed_until_its_strays_are_gone() -> None:
    house = House().nodes(1, 1)
    task = house.running(trial_spec("t"))
    node = house.node_of(task)
    house.machines[node].obedient = False
    house.cut(node)
    house.pass_time(90.0)
    house.up(task)
    other = house.node_of(task)
    assert other != node
    facts = house.mend(node)
    assert isinstance(facts[0], f.NodeReported) and facts[0].strays == ("t/main.0 g1e1i1",)
    assert house.state.nodes[node].state is NodeState.UNREPORTED
    waiting = house.submit(trial_spec("u"))
    assert house.state_of(waiting) is TaskState.QUEUED, "its slot is not free though nobody holds it"
    assert f"    {node}: end t/main.0 g1e1i1 (stray)" in house.take()
    house.machines[node].obedient = True
    house.beat(node)
    assert house.state.nodes[node].state is NodeState.READY
    assert house.node_of(waiting) == node
    assert house.node_of(task) == other, "the stray's end is not the task's"
    house.sound()


@pytest.mark.parametrize("stray", ["unknown", "elsewhere", "older", "lease"])
def test_what_is_a_stray(stray: str) -> None:
    house = House().nodes(1, 1)
    task = house.running(trial_spec("t"))
    here = house.node_of(task)
    other = next(n for n in house.machines if n != here)
    if stray == "lease":
        said = report(house, other, leases=(ObservedLease(LeaseId("x"), 3),))
        expected = "lease x #3"
    else:
        seen = ghost("ghost" if stray == "unknown" else "t", 0 if stray == "older" else 1)
        node = here if stray == "older" else other
        said = report(house, node, members=(*report(house, node).members, seen))
        expected = f"{seen.member} {seen.fence}"
    facts = heard(house, said)
    assert isinstance(facts[0], f.NodeReported) and facts[0].strays == (expected,)
    assert may_be_ordered(house.state, said.node), "or nobody could tell it to end them"
    listed = wanted(house.state, said.node)
    assert all(w.fence != ghost("t", 0).fence or w.member.task != "ghost" for w in listed.members)


def test_an_exit_record_is_no_stray() -> None:
    house = House().nodes(1)
    assert heard(house, report(house, members=(ghost(status=MemberStatus.EXITED),))) == []


def test_a_node_with_strays_can_fall_silent_too() -> None:
    house = House().nodes(1)
    heard(house, report(house, members=(ghost(),)))
    assert names(house.cut("n0")) == ["NodeSuspected"]
    assert "NodeLost" in names(house.pass_time(90.0))


# -- vanished and never started -----------------------------------------------------------------------------------


def test_a_member_that_was_seen_and_is_not_any_more_has_vanished() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t", max_restarts=0))
    facts = heard(house, report(house, members=()))
    lost = next(x for x in facts if isinstance(x, f.MemberLost))
    assert lost.detail == "node n0 no longer knows it"
    assert house.state.tasks[task].failures == 0 and house.state_of(task) is TaskState.QUEUED


def test_a_member_that_was_never_seen_is_still_to_come() -> None:
    house = House().nodes(1)
    house.machines[N0].linked = False
    task = house.submit(trial_spec("t"))
    assert house.member(task).state is MemberState.PLACED
    house.machines[N0].linked = True
    assert heard(house, report(house, members=())) == []


def test_ended_before_it_started() -> None:
    """A report proves that it never started only if the agent had already heard that it must not."""
    house = House().nodes(1)
    house.machines[N0].linked = False
    task = house.submit(trial_spec("t"))
    house.do(e.Kill(task=task))
    assert house.member(task).state is MemberState.ENDING
    ending = house.member(task).ending_index
    assert heard(house, report(house, members=(), wanted_sequence=ending - 1)) == []
    facts = heard(house, report(house, members=(), wanted_sequence=ending))
    assert next(x for x in facts if isinstance(x, f.MemberLost)).detail == "it was ended before it started"
    assert house.ended_as(task) == "killed"


def test_ended_before_it_started_in_an_earlier_term() -> None:
    house = House().nodes(1)
    house.machines[N0].linked = False
    task = house.submit(trial_spec("t"))
    house.do(e.Kill(task=task))
    house.new_master()
    house.machines[N0].brain.greeted(Hello(1, 2, 1))
    facts = heard(house, report(house, members=(), wanted_sequence=0))
    assert names(facts)[:2] == ["NodeReported", "MemberLost"]
    assert house.ended_as(task) == "killed", "no order of the earlier term can reach it any more"


# -- terms --------------------------------------------------------------------------------------------------------


def test_a_new_term_waits_for_reports_and_adopts_what_runs() -> None:
    house = House().nodes(2)
    task = house.running(trial_spec("t"))
    house.machines[N0].linked = False
    facts = house.new_master()
    assert names(facts) == ["TermBegan"]
    assert house.state.nodes["n0"].state is NodeState.UNREPORTED
    assert not may_be_ordered(house.state, N0)
    waiting = house.submit(trial_spec("u"))
    assert house.state_of(waiting) is TaskState.QUEUED, "nothing is granted before its report"
    assert house.do(e.Silent(node=N0)) == [], "it is waited for anyway"
    house.machines[N0].linked = True
    house.hear("n0")
    assert (house.member(task).state, house.state.tasks[task].epoch) == (MemberState.RUNNING, 1)
    assert house.state_of(waiting) is TaskState.RUNNING
    house.sound()


def test_a_node_that_never_reports_to_the_new_term_is_lost() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    house.machines[N0].linked = False
    house.new_master()
    assert "NodeLost" not in names(house.pass_time(89.0))
    assert "NodeLost" in names(house.pass_time(1.0))
    assert house.state_of(task) is TaskState.QUEUED


def test_a_lost_node_is_still_lost_for_the_next_master() -> None:
    house = House().nodes(1)
    house.cut("n0")
    house.pass_time(90.0)
    house.new_master()
    assert house.state.nodes["n0"].state is NodeState.LOST
    assert house.state.deadlines.next_at() is None, "it was waited for once already"
    house.mend("n0")
    assert house.state.nodes["n0"].state is NodeState.READY


def test_what_happened_while_no_master_was_there_is_heard() -> None:
    house = House().nodes(2)
    one, two = house.running(trial_spec("one")), house.running(trial_spec("two"))
    house.machines[N0].linked = False
    house.leaves(one)
    house.leaves(two, code=1)
    house.machines[N0].linked = True
    house.new_master()
    assert house.ended_as(one) == "done"
    assert house.state.tasks[two].epoch == 2


def test_only_reports_of_this_term_count() -> None:
    house = House().nodes(1)
    before = report(house)
    house.new_master()
    error = house.refused(e.Reported(report=before), Stale)
    assert "term 1" in error.cause and "term 2" in error.cause
    house.refused(e.Reported(report=report(house, generation=2)), Stale)
    for generation, term in ((1, 2), (1, 1), (0, 9)):
        house.refused(e.BeginTerm(generation=generation, term=term), Stale)
    assert names(house.tell(e.BeginTerm(generation=2, term=1))) == ["TermBegan"], "a restored backup is later"


def test_a_raised_generation_makes_everything_that_runs_a_stray() -> None:
    house = House().nodes(2)
    task = house.running(trial_spec("t"))
    house.do(e.BeginTerm(generation=2, term=2))
    house.take()
    house.hear("n0")
    assert "    n0: end t/main.0 g1e1i1 (stray)" in house.take()
    assert house.fence(task) == Fence(2, 2, 1)
    assert house.state.tasks[task].failures == 0


# -- nodes --------------------------------------------------------------------------------------------------------


def test_a_node_belongs_to_one_pool() -> None:
    house = House().nodes(1)
    house.do(e.PutPool(pool=PoolSpec(PoolName("other"))))
    house.refused(e.Reported(report=report(house, pool=PoolName("other"))), Conflict)
    house.refused(e.Reported(report=report(house, pool=PoolName("nowhere"))), NotFound)


def test_a_report_without_news_is_no_fact() -> None:
    house = House().nodes(2)
    house.running(trial_spec("t"))
    for _ in range(3):
        assert house.beat("n0") == []


def test_disabled_slots_get_nothing_new() -> None:
    house = House().nodes(2)
    task = house.running(trial_spec("t"))
    assert names(house.do(e.DisableSlots(node=N0, slots=(1, 0, 1)))) == ["SlotsDisabled"]
    assert house.do(e.DisableSlots(node=N0, slots=(0, 1))) == []
    waiting = house.submit(trial_spec("u"))
    assert house.state_of(task) is TaskState.RUNNING and house.state_of(waiting) is TaskState.QUEUED
    house.do(e.DisableSlots(node=N0, slots=()))
    assert house.state_of(waiting) is TaskState.RUNNING
    assert "[0, 1]" in house.refused(e.DisableSlots(node=N0, slots=(7,)), BadRequest).next_step


def shrink(house: House, *slots: int) -> None:
    machine = house.machines[N0]
    machine.capacity = machine.brain.capacity = Capacity(tuple(Slot(i, "cuda") for i in slots), 32_000, 2**36)


def test_a_slot_that_disappears_ends_what_sat_on_it_for_free() -> None:
    house = House().nodes(2)
    one, two = house.running(trial_spec("one", max_restarts=0)), house.running(trial_spec("two"))
    assert house.member(one).placement.slots == (0,)
    shrink(house, 1)
    house.beat("n0")
    assert house.state.tasks[one].failures == 0 and house.state_of(one) is TaskState.QUEUED
    assert house.member(two).state is MemberState.RUNNING
    house.beat("n0")
    assert [slot.index for slot in house.state.nodes["n0"].capacity.slots] == [1]
    shrink(house, 0, 1)
    house.beat("n0")
    assert house.state_of(one) is TaskState.RUNNING
    house.sound()


def test_a_slot_that_comes_back_while_it_is_held_is_used_again() -> None:
    house = House().nodes(2)
    one = house.running(trial_spec("one"))
    house.machines[N0].obedient = False
    shrink(house, 1)
    house.beat("n0")
    assert house.member(one).state is MemberState.ENDING
    assert len(house.state.nodes["n0"].capacity.slots) == 2, "on the books until it is given back"
    assert house.beat("n0") == [], "said again it is no news"
    shrink(house, 0, 1)
    house.machines[N0].obedient = True
    house.beat("n0")
    both = house.submit(trial_spec("both", slots=2, priority=1))
    house.do(e.Kill(task=one))
    assert house.state_of(both) is TaskState.RUNNING
    house.sound()


def test_a_cell_s_slot_disappears() -> None:
    house = House().nodes(2)
    session = house.running(session_spec("s", 1, slots=1))
    lease = house.ask_lease(session, 1)
    shrink(house, 1)
    house.beat("n0")
    assert lease not in house.state.leases, "its slot is gone: the cell must ask again"
    house.beat("n0")
    assert [slot.index for slot in house.state.nodes["n0"].capacity.slots] == [1]
    assert wanted(house.state, N0).members[0].phase is Phase.RUN
    house.sound()


def test_an_agent_that_starts_again_finds_its_members() -> None:
    house = House().nodes(2)
    task = house.running(trial_spec("t"))
    house.machines[N0].restart_agent()
    assert names(house.hear("n0")) == ["NodeReported"]
    assert house.member(task).state is MemberState.RUNNING and house.state.nodes["n0"].session == "n0/2"
    house.sound()
