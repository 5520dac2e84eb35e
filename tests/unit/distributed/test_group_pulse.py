"""Who is silent is lost in time, and nobody is lost for a pause of the one who listens."""

import itertools
import os
import select
import socket

from hypothesis import given
from hypothesis import strategies as st

from clutch.runtime.distributed.chief import lost_rank
from clutch.runtime.distributed.connections import bytes_received
from clutch.runtime.distributed.pulse import COUNTS_AT_MOST_S, LOOKS_EVERY_S, TABLE, Looks, Pulse, Sign, State

DEAD_AFTER_S = 2.2
gaps = st.floats(0.0, 60.0)


def test_the_table_says_what_follows_for_every_state_and_sign() -> None:
    assert set(TABLE) == set(itertools.product(State, Sign))
    assert {TABLE[State.LOST, sign] for sign in Sign} == {State.LOST}, "who is lost stays so"


@given(st.integers(1, 1000), st.floats(0.0, LOOKS_EVERY_S))
def test_silence_is_found_in_time(received: int, phase_s: float) -> None:
    pulse, looks, now = Pulse(DEAD_AFTER_S), Looks(0.0), phase_s
    assert pulse.look(received, looks.counts(now)) is State.HEARD
    while pulse.look(received, looks.counts(now)) is not State.LOST:
        now += LOOKS_EVERY_S
    assert DEAD_AFTER_S - 1e-6 <= now - phase_s <= DEAD_AFTER_S + LOOKS_EVERY_S + 1e-6


@given(st.lists(gaps, max_size=40))
def test_nobody_is_lost_who_is_heard_between_any_two_looks(pauses: list[float]) -> None:
    """However long the pauses of the one who looks: what came meanwhile was counted by the kernel."""
    pulse, looks, now = Pulse(DEAD_AFTER_S), Looks(0.0), 0.0
    for number, pause in enumerate(pauses):
        now += pause
        assert pulse.look(100 + number, looks.counts(now)) is State.HEARD


@given(gaps, st.integers(0, 2))
def test_a_pause_of_everybody_is_no_silence(pause_s: float, quiet_looks: int) -> None:
    """Nothing came during it, nor in the first looks after it."""
    pulse, looks, now = Pulse(DEAD_AFTER_S), Looks(0.0), 0.0
    pulse.look(7, looks.counts(now))
    now += pause_s
    for _ in range(quiet_looks + 1):
        assert pulse.look(7, looks.counts(now)) in (State.HEARD, State.QUIET)
        now += LOOKS_EVERY_S
    assert pulse.look(8, looks.counts(now)) is State.HEARD
    assert pulse.quiet_s == 0.0


@given(st.lists(gaps, min_size=1, max_size=40))
def test_no_look_counts_for_more_than_its_share(pauses: list[float]) -> None:
    looks, now = Looks(0.0), 0.0
    for pause in pauses:
        now += pause
        assert 0.0 <= looks.counts(now) <= min(pause + 1e-6, COUNTS_AT_MOST_S)
    assert looks.counts(now - 1.0) == 0.0, "a clock that goes back counts for nothing"


def test_the_kernel_counts_what_nobody_has_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sends:
        hears = server.accept()[0]
        sends.sendall(b"x" * 100)
        assert select.select([hears], [], [], 10)[0]
        assert bytes_received(hears.fileno()) == 100
        descriptor = hears.detach()
        assert bytes_received(descriptor) == 100, "it is not closed by being asked"
        os.close(descriptor)
    reading, writing = os.pipe()
    assert bytes_received(reading) is None
    os.close(reading)
    os.close(writing)
    assert bytes_received(reading) is None


def test_what_cannot_be_told_is_no_silence() -> None:
    pulse = Pulse(DEAD_AFTER_S)
    assert {pulse.look(None, 60.0) for _ in range(5)} == {State.HEARD}


def test_the_error_says_whether_it_ended_or_was_silent() -> None:
    assert "its connection has ended" in lost_rank(3).cause
    silent = lost_rank(3, 2.2)
    assert "nothing was heard of it for 2.2 s" in silent.cause
    assert (silent.object, silent.ranks) == ("rank 3", (3,))
