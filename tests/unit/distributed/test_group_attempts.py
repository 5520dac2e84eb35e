"""Attempts to reach rank 0, as ZeroMQ tells of them: in any order in which its threads may tell it."""

from hypothesis import given
from hypothesis import strategies as st

from clutch.runtime.distributed.attempts import Attempts

HERE, THERE = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
ATTEMPTS = st.lists(
    st.tuples(
        st.sampled_from([HERE, THERE]),
        st.sampled_from(["broken off", "spoken otherwise"]),
        st.integers(3, 5),
        st.booleans(),
    ),
    max_size=12,
)


@given(ATTEMPTS)
def test_only_what_nobody_tries_any_more_is_given_up(made: list[tuple[str, str, int, bool]]) -> None:
    """Whether a connection's beginning is told before its end or after it, and though descriptors come again."""
    attempts, expected = Attempts(), set[str]()
    for endpoint, how, descriptor, late in made:
        if not late:
            attempts.begun(endpoint, descriptor)
            assert attempts.descriptor(endpoint) == descriptor and endpoint not in attempts.given_up
        attempts.ended(endpoint, descriptor)
        assert endpoint in attempts.given_up
        if how == "broken off":
            attempts.retried(endpoint)
        if late:
            attempts.begun(endpoint, descriptor)
        expected = expected - {endpoint} if how == "broken off" else expected | {endpoint}
        assert attempts.given_up == expected
        assert attempts.descriptor(endpoint) is None


def test_a_connection_that_stands_is_none_that_has_ended() -> None:
    """Of two that had the same descriptor one after the other."""
    attempts = Attempts()
    attempts.ended(HERE, 7)
    attempts.begun(HERE, 7)
    assert attempts.given_up == {HERE} and attempts.descriptor(HERE) is None
    attempts.begun(HERE, 7)
    assert not attempts.given_up and attempts.descriptor(HERE) == 7
