"""Heartbeats: when somebody is alive, suspect and lost, and when to look next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.liveness import Patience, Pulse, earliest, next_deadline, pulse

PATIENCE = Patience(suspect_after_s=3.0, lost_after_s=90.0)


@pytest.mark.parametrize(
    ("silence", "verdict", "look_at"),
    [
        (-5.0, Pulse.ALIVE, 3.0),  # a clock that was set back is not silence
        (0.0, Pulse.ALIVE, 3.0),
        (2.999, Pulse.ALIVE, 3.0),
        (3.0, Pulse.SUSPECT, 90.0),
        (89.0, Pulse.SUSPECT, 90.0),
        (90.0, Pulse.LOST, None),
    ],
)
def test_silence_grows_from_alive_to_suspect_to_lost(silence: float, verdict: Pulse, look_at: float | None) -> None:
    assert pulse(1000.0, 1000.0 + silence, PATIENCE) is verdict
    deadline = next_deadline(1000.0, 1000.0 + silence, PATIENCE)
    assert deadline == (None if look_at is None else 1000.0 + look_at)


@given(heard=st.integers(0, 10**6), silence=st.integers(0, 200), suspect=st.integers(0, 100), lost=st.integers(0, 100))
def test_looking_at_each_deadline_sees_every_change(heard: int, silence: int, suspect: int, lost: int) -> None:
    patience = Patience(float(suspect), float(lost))
    now = float(heard + silence)
    before = pulse(heard, now, patience)
    deadline = next_deadline(heard, now, patience)
    if deadline is None:
        assert before is Pulse.LOST
        return
    assert deadline > now
    assert pulse(heard, deadline, patience) is not before, "at the deadline the verdict has changed"
    assert pulse(heard, (now + deadline) / 2, patience) is before or (now + deadline) / 2 == deadline, "and not earlier"


def test_lost_is_never_before_suspect() -> None:
    impatient = Patience(suspect_after_s=10.0, lost_after_s=5.0)
    assert pulse(0.0, 7.0, impatient) is Pulse.ALIVE
    assert pulse(0.0, 10.0, impatient) is Pulse.LOST


def test_the_earliest_of_many() -> None:
    assert earliest([None, 7.0, 3.0]) == 3.0
    assert earliest([None]) is None
