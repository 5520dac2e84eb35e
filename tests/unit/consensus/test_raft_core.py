"""The pure core: limits, refusals, flow control, and the order a Ready asks for."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.consensus import configuration as configurations
from clutch.consensus.log import Log
from clutch.consensus.progress import Flow, Progress
from clutch.consensus.raft import Raft, Recovered
from clutch.consensus.requests import Requests
from clutch.consensus.state import MOVES, Limits, Role
from clutch.wire.errors import (
    BadRequest,
    BrokenInvariant,
    Conflict,
    Corrupt,
    NotAllowed,
    NotFound,
    NotLeader,
    Stale,
    TooLarge,
    Unavailable,
)
from clutch.wire.raft import (
    Address,
    Append,
    AppendReply,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    RaftId,
    SnapshotMeta,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

A, B, C = (RaftId(1, name, 1) for name in "abc")
THREE = configurations.first(Address(i) for i in (A, B, C))
ONE = configurations.first([Address(A)])
LIMITS = Limits(
    heartbeat_ticks=1, election_ticks=5, max_entry_bytes=1000, max_inflight_messages=3, max_append_bytes=100
)


def make(configuration: object = THREE, limits: Limits = LIMITS, hard: HardState | None = None) -> Raft:
    first = SnapshotMeta(0, 0, configuration)  # type: ignore[arg-type]
    return Raft("g", A, Recovered(hard or HardState(), first, first, []), Random(1), limits)


def settle(raft: Raft) -> list[object]:
    sent: list[object] = []
    while (ready := raft.ready()) is not None:
        sent += [*ready.early, *ready.late]
        raft.advance(ready)
    return sent


def lead(raft: Raft) -> None:
    raft.state.elapsed = raft.state.timeout
    raft.tick()
    settle(raft)
    raft.step(VoteReply("g", B, A, raft.state.term + 1, True, pre=True))
    settle(raft)
    raft.step(VoteReply("g", B, A, raft.state.term, True))
    settle(raft)
    for follower in (B, C):
        raft.step(AppendReply("g", follower, A, raft.state.term, raft.state.log.last_index))
        settle(raft)
    assert raft.state.role is Role.LEADER


def test_a_vote_leaves_only_after_it_is_to_be_persisted() -> None:
    raft = make()
    raft.step(VoteRequest("g", B, A, 1, 0, 0))
    ready = raft.ready()
    assert ready is not None
    assert ready.early == []
    assert ready.hard_state == HardState(1, B, 0)
    assert [type(m) for m in ready.late] == [VoteReply]
    assert ready.must_sync


def test_one_vote_a_term_survives_a_restart() -> None:
    raft = make(hard=HardState(3, B, 0))
    raft.step(VoteRequest("g", C, A, 3, 9, 2))
    (reply,) = settle(raft)
    assert isinstance(reply, VoteReply)
    assert not reply.granted


def test_a_candidate_does_not_count_its_own_vote_before_it_is_durable() -> None:
    raft = make(ONE)
    raft.state.elapsed = raft.state.timeout
    raft.tick()
    ready = raft.ready()
    assert ready is not None
    assert raft.state.role is Role.CANDIDATE
    raft.advance(ready)
    assert raft.state.role is Role.LEADER


def test_a_leader_sends_appends_before_its_own_disk_but_counts_itself_after() -> None:
    raft = make()
    lead(raft)
    index = raft.propose(b"x")
    ready = raft.ready()
    assert ready is not None
    assert [type(m) for m in ready.early] == [Append, Append]
    raft.step(AppendReply("g", B, A, raft.state.term, index))
    assert raft.state.log.commit == index - 1  # b and c hold nothing yet that a majority of disks holds
    raft.advance(ready)
    assert raft.state.log.commit == index


def test_a_ready_must_be_advanced_before_the_next() -> None:
    raft = make()
    raft.step(VoteRequest("g", B, A, 1, 0, 0))
    ready = raft.ready()
    assert ready is not None
    with pytest.raises(BrokenInvariant):
        raft.ready()
    raft.advance(ready)
    with pytest.raises(BrokenInvariant):
        raft.advance(ready)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Heartbeat("other", B, A, 1, 0), NotAllowed),
        (Heartbeat("g", RaftId(0, "b", 1), A, 1, 0), Stale),
        (Heartbeat("g", RaftId(2, "b", 1), A, 1, 0), Stale),
        (Heartbeat("g", B, RaftId(1, "a", 2), 1, 0), Stale),
        (Heartbeat("g", B, C, 1, 0), Stale),
        (Heartbeat("g", A, A, 1, 0), Stale),
    ],
)
def test_what_is_not_meant_for_this_life_is_refused_and_changes_nothing(message: Heartbeat, error: type) -> None:
    raft = make()
    with pytest.raises(error):
        raft.step(message)
    assert raft.ready() is None
    assert raft.state.term == 0


def test_proposals_have_limits() -> None:
    raft = make(limits=msgspec.structs.replace(LIMITS, max_uncommitted_bytes=2_000, max_log_bytes=5_500))
    with pytest.raises(NotLeader):
        raft.propose(b"x")
    with pytest.raises(TooLarge):
        raft.propose(b"x" * 1001)
    lead(raft)
    with pytest.raises(TooLarge):
        raft.propose(b"x" * 1001)
    with pytest.raises(TooLarge):
        raft.propose(b"x", key="k" * 300)
    raft.propose(b"x" * 900)
    raft.propose(b"x" * 900)
    with pytest.raises(Unavailable, match="wait to be committed"):
        raft.propose(b"x" * 900)
    settle(raft)
    raft.step(AppendReply("g", B, A, raft.state.term, raft.state.log.last_index))
    settle(raft)
    for _ in range(3):
        raft.propose(b"x" * 900)
        settle(raft)
        raft.step(AppendReply("g", B, A, raft.state.term, raft.state.log.last_index))
        settle(raft)
    with pytest.raises(Unavailable, match="log is full"):
        raft.propose(b"x" * 900)


def test_inflight_is_bounded_for_each_follower() -> None:
    raft = make()
    lead(raft)
    for _ in range(10):
        raft.propose(b"x" * 80)
    sent = [m for m in settle(raft) if isinstance(m, Append) and m.receiver == B and m.entries]
    assert len(sent) == LIMITS.max_inflight_messages
    raft.step(AppendReply("g", B, A, raft.state.term, sent[0].entries[-1].index))
    more = [m for m in settle(raft) if isinstance(m, Append) and m.receiver == B and m.entries]
    assert len(more) == 1


def test_a_log_shorter_than_what_was_committed_is_refused() -> None:
    first = SnapshotMeta(0, 0, THREE)
    with pytest.raises(Corrupt):
        Raft("g", A, Recovered(HardState(1, None, 5), first, first, []), Random(1))
    raft = make()
    with pytest.raises(Corrupt):
        raft.step(Heartbeat("g", B, A, 1, 3))


def test_a_role_moves_only_along_its_table() -> None:
    assert MOVES[Role.LEADER] == (Role.FOLLOWER,)
    raft = make()
    with pytest.raises(Conflict):
        raft.state.move(Role.LEADER, "because")


def test_membership_has_one_path() -> None:
    d = Address(RaftId(1, "d", 1))
    grown = configurations.add_learner(THREE, d)
    assert d.id in grown.learners
    assert configurations.promote(grown, d.id).voters == (A, B, C, d.id)
    with pytest.raises(NotFound):
        configurations.promote(THREE, d.id)
    with pytest.raises(Conflict):
        configurations.promote(THREE, B)
    gone = configurations.remove(configurations.promote(grown, d.id), d.id)
    with pytest.raises(Stale):
        configurations.add_learner(gone, d)
    assert configurations.add_learner(gone, Address(RaftId(1, "d", 2))).learners == (RaftId(1, "d", 2),)
    with pytest.raises(Stale):
        configurations.add_learner(THREE, Address(RaftId(2, "d", 1)))
    with pytest.raises(Conflict):
        configurations.remove(ONE, A)
    with pytest.raises(BadRequest):
        configurations.first([])
    with pytest.raises(BadRequest):
        configurations.first([Address(A), Address(RaftId(1, "a", 2))])


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=9))
def test_a_quorum_holds_what_is_committed(matches: list[int]) -> None:
    quorum = len(matches) // 2 + 1
    index = configurations.committed_index(matches, quorum)
    assert sum(m >= index for m in matches) >= quorum
    assert sum(m >= index + 1 for m in matches) < quorum


def test_progress_goes_from_probe_to_replicate_and_back() -> None:
    progress = Progress(10, max_messages=2, max_bytes=1000)
    assert progress.flow is Flow.PROBE
    progress.sent(10, 50)
    assert progress.paused
    assert progress.rejected(9, 4)
    assert progress.next == 5
    assert not progress.rejected(9, 4)  # an old answer
    assert progress.accepted(4)
    assert progress.flow is Flow.REPLICATE
    progress.sent(5, 400)
    progress.sent(6, 700)
    assert progress.paused
    progress.accepted(5)
    assert not progress.paused
    progress.unreachable()
    assert progress.flow is Flow.PROBE
    assert progress.next == 6
    progress.needs_snapshot(20)
    assert progress.paused
    progress.snapshot_over(False)
    assert (progress.flow, progress.next) == (Flow.PROBE, 6)


def entry(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.DATA, b"d%d" % term)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(1, 5)), max_size=12))
def test_a_log_takes_any_leaders_entries_and_stays_whole(steps: list[tuple[int, int, int]]) -> None:
    log = Log(SnapshotMeta(0, 0, THREE), SnapshotMeta(0, 0, THREE), [], 0)
    for after, term, count in steps:
        after = max(log.commit, min(after, log.last_index))
        entries = tuple(entry(after + 1 + i, term) for i in range(count))
        stable = log.stable
        log.merge(entries)
        assert [e.index for e in log.entries] == list(range(1, log.last_index + 1))
        assert all(log.term(e.index) == e.term for e in entries)
        assert log.stable <= stable
        assert log.size_bytes == sum(len(e.data) + len(e.key) + 64 for e in log.entries)
        log.stable_to(log.last_index, log.last_term)
        log.commit_to(log.last_index // 2)


def test_a_committed_entry_is_never_replaced() -> None:
    log = Log(SnapshotMeta(0, 0, THREE), SnapshotMeta(0, 0, THREE), [entry(1, 1), entry(2, 1)], 2)
    log.commit_to(2)
    with pytest.raises(BrokenInvariant):
        log.merge((entry(2, 2),))
    with pytest.raises(BrokenInvariant):
        log.commit_to(3)
    with pytest.raises(BrokenInvariant):
        log.append([entry(5, 2)])


def test_a_configuration_rules_from_its_entry_on_and_goes_with_it() -> None:
    log = Log(SnapshotMeta(0, 0, ONE), SnapshotMeta(0, 0, ONE), [], 0)
    log.append([entry(1, 1), Entry(2, 1, EntryKind.CONFIGURATION, configurations.encode(THREE))])
    assert log.configuration == THREE
    assert log.configuration_at(1) == ONE
    log.merge((entry(2, 2),))
    assert log.configuration == ONE


def test_a_broken_connection_to_the_leader_is_a_hint_only() -> None:
    raft = make()
    raft.step(Heartbeat("g", B, A, 1, 0))
    settle(raft)
    raft.report_gone(C)
    assert raft.state.hears_leader
    raft.report_gone(B)
    assert not raft.state.hears_leader  # it would vote for another now, and soon stands itself
    for _ in range(LIMITS.election_ticks):
        raft.tick()
    assert raft.state.role is Role.PRE_CANDIDATE
    assert raft.state.term == 1
    raft.step(Heartbeat("g", B, A, 1, 0))
    assert (raft.state.role, raft.state.leader) == (Role.FOLLOWER, B)


def test_a_lost_hand_over_is_tried_again_until_its_time_is_over() -> None:
    """One attempt lasts an election timeout; on a busy machine it passes before the target has its votes."""
    raft = make()
    lead(raft)
    requests = Requests(raft, LIMITS, first_context=0)
    outcomes: list[object] = []
    requests.transfer(B, 4 * LIMITS.election_ticks, outcomes.append)
    settle(raft)  # the first attempt is lost on the way
    asked_at = []
    for now in range(1, 3 * LIMITS.election_ticks):
        raft.tick()
        for follower in (B, C):
            raft.step(AppendReply("g", follower, A, raft.state.term, raft.state.log.last_index))
        requests.tick(now)
        asked_at += [now for m in settle(raft) if isinstance(m, TimeoutNow)]
    assert max(asked_at) > 2 * LIMITS.election_ticks
    assert outcomes == []
    requests.tick(4 * LIMITS.election_ticks)
    assert isinstance(outcomes[0], Conflict)
