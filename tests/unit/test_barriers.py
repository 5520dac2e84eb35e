"""Meetings: everybody comes, somebody is restarted, somebody never comes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.core.barriers import (
    Barrier,
    Kind,
    Peer,
    Verdict,
    convene,
    expire,
    join,
    join_rendezvous,
    leave,
    rank_of,
    roster,
)
from clutch.wire.errors import BadRequest, Stale, TimedOut
from clutch.wire.ids import Fence

SEATS = (("worker", 0), ("worker", 1), ("evaluator", 0))


def fence(incarnation: int = 1, epoch: int = 1) -> Fence:
    return Fence(0, epoch, incarnation)


def meeting(kind: Kind = Kind.RENDEZVOUS) -> Barrier:
    return convene("t1/1", kind, SEATS, 0.0, 60.0)


def peer(name: str) -> Peer:
    return Peer(f"{name}:1234", f"key-{name}")


def test_everybody_gets_all_addresses_by_rank_once_all_are_there() -> None:
    barrier = meeting()
    barrier, told = join_rendezvous(barrier, SEATS[2], fence(), peer("c"), "w2")
    assert not told and barrier.missing == SEATS[:2]
    barrier, told = join_rendezvous(barrier, SEATS[0], fence(), peer("a"), "w0")
    assert not told
    barrier, told = join_rendezvous(barrier, SEATS[1], fence(), peer("b"), "w1")
    assert sorted(answer.waiter for answer in told) == ["w0", "w1", "w2"]
    for answer in told:
        assert answer.verdict is Verdict.OPEN and answer.error() is None
        assert roster(answer) == (peer("a"), peer("b"), peer("c"))
    assert rank_of(barrier, ("evaluator", 0)) == 2


def test_asking_again_gets_the_same_answer() -> None:
    barrier = meeting()
    for number, seat in enumerate(SEATS):
        barrier, told = join(barrier, seat, fence(), b"%d" % number, f"w{number}")
    again, told = join(barrier, SEATS[1], fence(), b"1", "w9")
    assert [answer.waiter for answer in told] == ["w9"] and told[0].data == (b"0", b"1", b"2")
    assert again.version == barrier.version


def test_a_restarted_member_replaces_its_old_self_and_the_old_waiter_is_stale() -> None:
    barrier, _ = join(meeting(), SEATS[0], fence(1), b"old", "w0")
    barrier, told = join(barrier, SEATS[0], fence(2), b"new", "w0-again")
    (answer,) = told
    assert answer.waiter == "w0" and answer.verdict is Verdict.STALE and isinstance(answer.error(), Stale)
    with pytest.raises(Stale):
        join(barrier, SEATS[0], fence(1), b"old", "w0")
    barrier, _ = join(barrier, SEATS[1], fence(), b"1", "w1")
    barrier, told = join(barrier, SEATS[2], fence(), b"2", "w2")
    assert {answer.data for answer in told} == {(b"new", b"1", b"2")}
    assert "w0" not in {answer.waiter for answer in told}


def opened(kind: Kind) -> Barrier:
    barrier = meeting(kind)
    for number, seat in enumerate(SEATS):
        barrier, _ = join(barrier, seat, fence(), b"%d" % number, f"w{number}")
    return barrier


def test_at_an_open_rendezvous_a_new_address_takes_the_place_of_the_old() -> None:
    barrier, told = join(opened(Kind.RENDEZVOUS), SEATS[1], fence(2), b"moved", "w1b")
    assert [(answer.waiter, answer.data) for answer in told] == [("w1b", (b"0", b"moved", b"2"))]
    assert barrier.version == 2
    _, told = join(barrier, SEATS[0], fence(), b"0", "w0b")
    assert told[0].data == (b"0", b"moved", b"2")


def test_an_open_round_is_history_for_a_restarted_member() -> None:
    barrier, told = join(opened(Kind.ALL_GATHER), SEATS[1], fence(2), b"other", "w1b")
    assert told[0].data == (b"0", b"1", b"2") and barrier.version == 1
    with pytest.raises(Stale):
        join(barrier, SEATS[1], fence(1), b"1", "w1")


def test_past_the_deadline_those_who_wait_learn_who_is_missing() -> None:
    barrier, _ = join(meeting(), SEATS[1], fence(), b"1", "w1")
    same, told = expire(barrier, 59.9, 60.0)
    assert same is barrier and not told
    barrier, told = expire(barrier, 60.0, 60.0)
    (answer,) = told
    assert answer.waiter == "w1" and answer.verdict is Verdict.TIMED_OUT and isinstance(answer.error(), TimedOut)
    assert "2 of 3" in answer.detail and "worker.0" in answer.detail and "evaluator.0" in answer.detail
    assert "worker.1" not in answer.detail
    assert barrier.deadline == 120.0 and barrier.missing == SEATS
    still_open, told = expire(opened(Kind.RENDEZVOUS), 1e9, 60.0)
    assert still_open.is_open and not told


def test_a_waiter_that_went_away_is_not_counted() -> None:
    barrier, _ = join(meeting(), SEATS[0], fence(), b"0", "w0")
    assert leave(barrier, "w0").missing == SEATS
    assert leave(barrier, "w9").missing == SEATS[1:]
    assert leave(opened(Kind.RENDEZVOUS), "w0").is_open


def test_strangers_and_impossible_meetings_are_refused() -> None:
    with pytest.raises(BadRequest):
        join(meeting(), ("worker", 9), fence(), b"", "w")
    with pytest.raises(BadRequest):
        convene("t", Kind.ALL_GATHER, (), 0.0, 1.0)
    with pytest.raises(BadRequest):
        convene("t", Kind.ALL_GATHER, (SEATS[0], SEATS[0]), 0.0, 1.0)


@settings(max_examples=200, deadline=None)
@given(
    moves=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), max_size=20),
    kind=st.sampled_from(list(Kind)),
)
def test_any_order_of_joins_and_restarts(moves: list[tuple[int, int, bool]], kind: Kind) -> None:
    """Never a lower fence than seen, one answer per waiter, OPEN exactly when all came, one round for all."""
    barrier = meeting(kind)
    highest: dict[int, int] = {}
    pending: dict[str, int] = {}
    first_round: tuple[bytes, ...] | None = None
    for number, (seat, incarnation, goes) in enumerate(moves):
        waiter = f"w{number}"
        if incarnation < highest.get(seat, 0):
            with pytest.raises(Stale):
                join(barrier, SEATS[seat], fence(incarnation), b"x", waiter)
            continue
        barrier, told = join(barrier, SEATS[seat], fence(incarnation), f"{seat}.{incarnation}".encode(), waiter)
        highest[seat] = incarnation
        pending[waiter] = seat
        for answer in told:
            assert answer.waiter in pending, "answered once, and only who waits"
            del pending[answer.waiter]
            if answer.verdict is Verdict.OPEN:
                assert len(highest) == 3 and len(answer.data) == 3
                first_round = first_round or answer.data
                if kind is Kind.ALL_GATHER:
                    assert answer.data == first_round
        if barrier.is_open:
            assert not pending
        elif goes:
            barrier = leave(barrier, waiter)
            if pending.pop(waiter, None) is not None:
                highest.pop(seat)
