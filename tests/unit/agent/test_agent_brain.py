"""An agent's brain: whom it obeys, what it starts and ends, what it keeps, and what it says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clutch.agent.brain import AskLeave, Brain, Effect, End, Forget, HandOver, Record, Say, Start, TakeBack
from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, PoolName, TaskId
from clutch.wire.messages import (
    Exit,
    ExitCause,
    Hello,
    MemberStatus,
    ObservedLease,
    Phase,
    Report,
    Wanted,
    WantedLease,
    WantedMember,
)
from clutch.wire.resources import Capacity, Slot
from clutch.wire.schedule import PreemptReason

M = MemberId(TaskId("t"), "main", 0)
F1, F2 = Fence(1, 1, 1), Fence(1, 2, 1)
CAPACITY = Capacity((Slot(0, "cuda"),), 1000, 0)


def brain(**more: Any) -> Brain:
    made = Brain(NodeId("n"), PoolName("pool"), "s1", CAPACITY, **more)
    made.greeted(Hello(1, 3, 1))
    return made


def member(phase: Phase = Phase.RUN, fence: Fence = F1, identity: MemberId = M, **more: Any) -> WantedMember:
    return WantedMember(identity, fence, phase, **more)


def lease(number: int = 5, phase: Phase = Phase.RUN, name: str = "l", **more: Any) -> WantedLease:
    return WantedLease(LeaseId(name), number, M, F1, phase, (0,), **more)


def wants(sequence: int, *members: WantedMember, leases: tuple[WantedLease, ...] = (), **more: Any) -> Wanted:
    plain = {"node": NodeId("n"), "session": "s1", "generation": 1, "term": 3}
    return Wanted(**{**plain, **more}, sequence=sequence, members=members, leases=leases)


def acts(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Say)]


def said(effects: list[Effect]) -> Report:
    (say,) = [effect for effect in effects if isinstance(effect, Say)]
    return say.report


# -- whom it obeys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"session": "s0"}, {"node": NodeId("other")}, {"term": 2}, {"term": 4}, {"generation": 0}, {"generation": 2}],
)
def test_it_ignores_what_is_not_addressed_to_it(wrong: dict[str, Any]) -> None:
    one = brain()
    assert one.ordered(wants(10, member(), **wrong)) == []
    assert not one.records and one.wanted is None


def test_it_refuses_an_older_sequence_and_takes_a_repetition() -> None:
    one = brain()
    assert acts(one.ordered(wants(10, member()))) == [Start(member())]
    assert one.ordered(wants(9)) == [], "or it would end what was just started"
    assert acts(one.ordered(wants(10, member()))) == [], "it is started once"
    assert said(one.ordered(wants(11, member()))).wanted_sequence == 11


def test_a_higher_term_takes_over_and_what_the_lower_wanted_is_forgotten() -> None:
    one = brain()
    one.ordered(wants(10, member()))
    report = said(one.greeted(Hello(1, 4, 1)))
    assert (report.term, report.wanted_sequence) == (4, 0)
    assert one.ordered(wants(99)) == [], "the old master's words no longer count"
    assert acts(one.beat()) == [], "nothing is ended before the new master has said what it wants"
    assert acts(one.ordered(wants(5, member(), term=4))) == [], "its sequence may be lower"


@pytest.mark.parametrize(("generation", "term"), [(1, 2), (0, 9), (1, 1)])
def test_a_lower_hello_changes_nothing(generation: int, term: int) -> None:
    one = brain()
    one.ordered(wants(10, member()))
    one.greeted(Hello(generation, term, 9))
    assert (one.generation, one.term) == (1, 3)
    assert one.wanted is not None
    assert acts(one.ordered(wants(11, generation=generation, term=term))) == []
    assert (M, F1) in one.records


def test_a_higher_generation_takes_over_with_any_term() -> None:
    one = brain()
    report = said(one.greeted(Hello(2, 1, 1)))
    assert (report.generation, report.term) == (2, 1)


def test_reports_are_numbered_and_echo_the_greeting() -> None:
    one = brain()
    first, second = said(one.greeted(Hello(1, 3, 4))), said(one.greeted(Hello(1, 3, 2)))
    assert first.sequence < second.sequence
    assert (first.greeting, second.greeting) == (4, 4), "a late hello takes nothing back"
    assert said(one.greeted(Hello(1, 4, 1))).greeting == 1, "each master counts its own"
    assert (first.node, first.pool, first.session, first.capacity) == ("n", "pool", "s1", CAPACITY)


def test_before_any_master_spoke_it_does_nothing() -> None:
    one = Brain(NodeId("n"), PoolName("pool"), "s1", CAPACITY, [(M, F1, Record(MemberStatus.RUNNING))])
    assert acts(one.beat()) == []
    report = said(one.beat())
    assert (report.term, report.members[0].status) == (0, MemberStatus.RUNNING)


# -- members ------------------------------------------------------------------------------------------------------


def test_a_member_lives() -> None:
    one = brain()
    effects = one.ordered(wants(1, member()))
    assert said(effects).members[0].status is MemberStatus.STARTING
    assert said(one.started(M, F1)).members[0].status is MemberStatus.RUNNING
    assert one.started(M, F1) == [], "once is enough"
    assert one.started(M, F2) == [], "nobody knows that one"
    exit = Exit(0, output_offset=80)
    assert said(one.exited(M, F1, exit)).members[0].exit == exit
    for sequence in (1, 2):
        assert said(one.ordered(wants(sequence, member()))).members[0].exit == exit, "kept while it is wanted"
    assert acts(one.ordered(wants(3))) == [Forget(M, F1)]
    assert said(one.beat()).members == ()


def test_only_the_highest_fence_is_ever_started() -> None:
    one = brain()
    one.ordered(wants(1, member(fence=F2)))
    assert acts(one.ordered(wants(2, member(fence=F1)))) == [End(M, F2, stray=True)], "and the lower one is not started"
    one.exited(M, F2, Exit(-9, ExitCause.ENDED))
    assert acts(one.ordered(wants(3, member(fence=F1)))) == []
    assert (M, F1) not in one.records


def test_a_later_life_starts_beside_the_end_of_the_earlier() -> None:
    one = brain()
    one.ordered(wants(1, member()))
    one.started(M, F1)
    assert acts(one.ordered(wants(2, member(fence=F2)))) == [End(M, F1, stray=True), Start(member(fence=F2))]


def test_a_found_fence_counts_too() -> None:
    one = brain(found=[(M, F2, Record(MemberStatus.EXITED, Exit(0)))])
    assert acts(one.ordered(wants(1, member(fence=F1)))) == [Forget(M, F2)]


def test_leaving_is_asked_once_when_it_runs() -> None:
    one = brain()
    one.ordered(wants(1, member()))
    leave = member(Phase.LEAVE, deadline=60.0, reason=PreemptReason.PREEMPTED)
    assert acts(one.ordered(wants(2, leave))) == [], "it is not up yet: it could not hear"
    assert acts(one.started(M, F1)) == [AskLeave(leave)]
    assert acts(one.beat()) == []
    assert acts(one.ordered(wants(3, leave))) == []


def test_leave_for_a_process_that_is_not_there() -> None:
    """It cannot leave and must not be started: its end is reported as never started."""
    one = brain()
    effects = one.ordered(wants(1, member(Phase.LEAVE)))
    assert acts(effects) == []
    (seen,) = said(effects).members
    assert (seen.status, seen.exit) == (MemberStatus.EXITED, Exit(1, ExitCause.NEVER_STARTED))


def test_end_for_a_process_that_is_not_there_is_nothing() -> None:
    effects = brain().ordered(wants(1, member(Phase.END)))
    assert acts(effects) == [] and said(effects).members == ()


def test_an_end_is_repeated_until_it_has_happened() -> None:
    one = brain()
    one.ordered(wants(1, member()))
    end = End(M, F1, stray=False)
    assert acts(one.ordered(wants(2, member(Phase.END)))) == [end]
    assert acts(one.beat()) == [end]
    one.exited(M, F1, Exit(-9, ExitCause.ENDED))
    assert acts(one.beat()) == []


@pytest.mark.parametrize("status", [MemberStatus.STARTING, MemberStatus.RUNNING])
def test_strays_are_ended(status: MemberStatus) -> None:
    one = brain(found=[(M, F1, Record(status))])
    assert acts(one.ordered(wants(1))) == [End(M, F1, stray=True)]
    assert acts(one.exited(M, F1, Exit(-9, ExitCause.ENDED))) == [Forget(M, F1)]


# -- leases -------------------------------------------------------------------------------------------------------


def running() -> Brain:
    one = brain()
    one.ordered(wants(1, member()))
    one.started(M, F1)
    return one


def test_a_lease_is_handed_over_once_and_taken_back_until_it_is_free() -> None:
    one = running()
    effects = one.ordered(wants(2, member(), leases=(lease(),)))
    assert acts(effects) == [HandOver(lease())]
    assert said(effects).leases == (ObservedLease(LeaseId("l"), 5),)
    assert acts(one.ordered(wants(3, member(), leases=(lease(),)))) == []
    back = TakeBack(LeaseId("l"), 5, 90.0)
    assert acts(one.ordered(wants(4, member(), leases=(lease(phase=Phase.LEAVE, deadline=90.0),)))) == [back]
    assert acts(one.beat()) == [back], "again until it is done"
    assert said(one.freed(LeaseId("l"), 5)).leases == ()
    assert acts(one.beat()) == []


def test_a_lease_that_is_not_listed_must_not_be_used() -> None:
    one = running()
    one.ordered(wants(2, member(), leases=(lease(),)))
    assert acts(one.ordered(wants(3, member()))) == [TakeBack(LeaseId("l"), 5, 0.0)]


def test_a_lease_waits_for_its_member_to_be_up() -> None:
    one = brain()
    assert acts(one.ordered(wants(1, member(), leases=(lease(),)))) == [Start(member())]
    assert acts(one.started(M, F1)) == [HandOver(lease())]


def test_a_lease_of_another_life_is_not_handed_over() -> None:
    one = brain()
    one.ordered(wants(1, member(fence=F2)))
    one.started(M, F2)
    assert acts(one.ordered(wants(2, member(fence=F2), leases=(lease(),)))) == []


def test_a_new_number_is_handed_over_only_when_the_old_one_is_free() -> None:
    one = running()
    one.ordered(wants(2, member(), leases=(lease(5),)))
    assert acts(one.ordered(wants(3, member(), leases=(lease(6),)))) == [TakeBack(LeaseId("l"), 5, 0.0)]
    one.freed(LeaseId("l"), 4)
    assert one.leases == {LeaseId("l"): 5}, "the freeing of an older number says nothing about this one"
    assert acts(one.freed(LeaseId("l"), 5)) == [HandOver(lease(6))]


# -- starting again -----------------------------------------------------------------------------------------------


def test_a_restarted_agent_goes_on_from_what_it_finds() -> None:
    gone = MemberId(TaskId("gone"), "main", 0)
    exit = Exit(0, output_offset=7)
    one = Brain(
        NodeId("n"),
        PoolName("pool"),
        "s2",
        CAPACITY,
        [(M, F1, Record(MemberStatus.RUNNING)), (gone, F1, Record(MemberStatus.EXITED, exit))],
        [ObservedLease(LeaseId("l"), 5)],
    )
    report = said(one.greeted(Hello(1, 3, 1)))
    assert [(m.member, m.status, m.exit) for m in report.members] == [
        (M, MemberStatus.RUNNING, None),
        (gone, MemberStatus.EXITED, exit),
    ]
    assert report.leases == (ObservedLease(LeaseId("l"), 5),) and report.session == "s2"
    assert one.ordered(wants(50, member())) == [], "said to the agent's earlier start"
    now = wants(51, member(), member(identity=gone), leases=(lease(),), session="s2")
    assert acts(one.ordered(now)) == [], "everything is as it should be: nothing is started twice"
    assert acts(one.ordered(msgspec.structs.replace(now, sequence=52, members=(member(),)))) == [Forget(gone, F1)]
