"""Gangs whose members lose each other: whose end is the cause, what is free, what counts, and what `why` says."""

from __future__ import annotations

import itertools

import pytest
from house import House, names, trial_spec

from clutch.core.patience import PARTINGS_FREE
from clutch.master.sentences import awaited
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.ids import TaskId
from clutch.wire.messages import Exit, ExitCause
from clutch.wire.outcomes import AllocationState, NodeState, TaskState, Verdict

LOST = Exit(1, ExitCause.PEER_LOST, reason="rank 0 lost rank 1: it died, or its node cannot be reached")
FAILED = Exit(1, ExitCause.PEER_FAILED, reason="rank 0 lost rank 1: it failed: ValueError: no")
CRASH = Exit(-11, ExitCause.OWN, reason="rank 1 was killed by SIGSEGV")
ENDED = Exit(-9, ExitCause.ENDED)


def gang(house: House, ranks: int = 2, **more: object) -> TaskId:
    """A member on each node. None ends because it is told to: each has its own end."""
    house.nodes(*[1] * ranks)
    for machine in house.machines.values():
        machine.obedient = False
    return house.running(trial_spec("g", ranks=ranks, **more))


def ends(house: House, task: TaskId, rank: int, exit: Exit) -> list[f.Fact]:
    return house.exit(house.m(task, rank=rank), exit)


def why(house: House, task: TaskId) -> str:
    return next(r.fact.detail for r in house.history if isinstance(r.fact, f.TaskEnded) and r.fact.task == task)


def found(facts: list[f.Fact]) -> f.VerdictFound:
    return next(fact for fact in facts if isinstance(fact, f.VerdictFound))


def test_a_cut_node_is_free_though_its_peers_end_long_before_it_is_lost() -> None:
    house = House()
    task = gang(house, max_restarts=0)
    far = house.node_of(task, rank=1)
    house.cut(far)
    house.pass_time(3.0)
    ending = next(fact for fact in ends(house, task, 0, LOST) if isinstance(fact, f.AllocationEnding))
    assert ending.open and ending.verdict is Verdict.INFRASTRUCTURE
    allocation = house.state.allocations[task]
    assert allocation.state is AllocationState.ENDING and allocation.open
    said = awaited(house.state, task, house.now)
    assert f"{far} (given up in 87 s)" in said and "open whether this counts" in said
    facts = house.pass_time(100.0)
    verdict = found(facts)
    assert verdict.verdict is Verdict.INFRASTRUCTURE and f"node {far} is lost" in verdict.detail
    assert "rank 0 lost rank 1" in verdict.detail, "and what its peers saw"
    assert house.state.tasks[task].failures == 0 and house.state_of(task) is TaskState.QUEUED
    assert house.state.nodes[far].state is NodeState.LOST
    assert awaited(house.state, task, house.now) == ""
    house.sound()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_member_that_failed_by_itself_is_the_cause_whenever_it_is_heard_of(order: tuple[int, ...]) -> None:
    house = House()
    task = gang(house, 3, max_restarts=0)
    for rank in order:
        ends(house, task, rank, CRASH if rank == 1 else LOST)
    assert house.ended_as(task) == "failed"
    assert "SIGSEGV" in why(house, task) and "main.1" in why(house, task)
    house.sound()


def test_a_rank_that_said_that_it_failed_is_believed_though_its_member_was_ended_by_us() -> None:
    house = House()
    task = gang(house, max_restarts=0)
    ends(house, task, 0, FAILED)
    ends(house, task, 1, ENDED)
    assert house.ended_as(task) == "failed" and "ValueError" in why(house, task)


def test_its_own_record_outranks_what_others_say_of_it() -> None:
    house = House()
    task = gang(house, max_restarts=0)
    ends(house, task, 0, FAILED)
    ends(house, task, 1, Exit(1, ExitCause.OWN, reason="rank 1 exited with code 1; its last lines: ValueError: no"))
    assert "its last lines" in why(house, task)


@pytest.mark.parametrize("cause", [ExitCause.MACHINE, ExitCause.NEVER_STARTED])
def test_a_machine_that_failed_is_free(cause: ExitCause) -> None:
    house = House()
    task = gang(house, max_restarts=0)
    ends(house, task, 0, LOST)
    verdict = found(ends(house, task, 1, Exit(-9, cause)))
    assert verdict.verdict is Verdict.INFRASTRUCTURE and f"({cause})" in verdict.detail
    assert house.state.tasks[task].partings == 0, "its cause is known"


def parts(house: House, task: TaskId) -> f.VerdictFound:
    """The network between the nodes fails for a moment: each side has lost the other."""
    ends(house, task, 0, LOST)
    verdict = found(ends(house, task, 1, LOST))
    house.pass_time(61.0)
    house.up(task) if task in house.state.tasks else None
    return verdict


def test_ranks_that_only_lost_each_other_are_free_until_it_is_no_glitch_any_more() -> None:
    house = House()
    task = gang(house, max_restarts=1)
    for time in range(1, PARTINGS_FREE + 1):
        verdict = parts(house, task)
        assert (verdict.verdict, verdict.partings) == (Verdict.INFRASTRUCTURE, time)
        assert f"time {time} of {PARTINGS_FREE}" in verdict.detail
        assert house.state.tasks[task].failures == 0
    verdict = parts(house, task)
    assert verdict.verdict is Verdict.FAILED and "see whether n0, n1 reach each other" in verdict.detail
    assert house.state.tasks[task].failures == 1
    parts(house, task)
    assert house.ended_as(task) == "failed", "it does not go on for ever"
    house.sound()


def test_a_checkpoint_in_between_shows_that_it_gets_on() -> None:
    house = House()
    task = gang(house, max_restarts=0)
    for step in range(1, 2 * PARTINGS_FREE + 2):
        house.word(e.CommitCheckpoint, task, checkpoint=f"c{step}", step=step, size_bytes=1)
        assert parts(house, task).partings == 1
    assert house.state.tasks[task].failures == 0 and house.state_of(task) is TaskState.RUNNING


def test_what_was_decided_before_stays() -> None:
    """A user's kill, and the failure that was heard of first, are not judged again."""
    house = House()
    task = gang(house, max_restarts=0)
    house.do(e.Kill(cause="api:ada", task=task))
    facts = [*ends(house, task, 0, LOST), *ends(house, task, 1, LOST)]
    assert "VerdictFound" not in names(facts) and house.ended_as(task) == "killed"
    house = House()
    task = gang(house, 3, max_restarts=0)
    ends(house, task, 2, CRASH)
    facts = [*ends(house, task, 0, Exit(1, reason="Connection reset by peer")), *ends(house, task, 1, LOST)]
    assert "VerdictFound" not in names(facts) and "SIGSEGV" in why(house, task)


def test_one_that_was_ended_before_it_began_tells_nothing() -> None:
    house = House()
    house.nodes(1, 1)
    task = house.submit(trial_spec("g", ranks=2, max_restarts=0))
    house.run(house.m(task))
    assert found(ends(house, task, 0, LOST)).partings == 1
