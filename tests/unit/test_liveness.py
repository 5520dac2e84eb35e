"""Who is still there, and when that changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.liveness import Patience, Pulse, pulse, suspect_at

PATIENCE = Patience(suspect_after_s=3.0)


@pytest.mark.parametrize(
    ("silence", "verdict"),
    [
        (-5.0, Pulse.ALIVE),  # a clock that was set back is not silence
        (0.0, Pulse.ALIVE),
        (2.999, Pulse.ALIVE),
        (3.0, Pulse.SILENT),
        (90.0, Pulse.SILENT),
    ],
)
def test_a_verdict(silence: float, verdict: Pulse) -> None:
    assert pulse(1000.0, 1000.0 + silence, PATIENCE) is verdict


@given(heard=st.integers(0, 10**6), suspect=st.integers(1, 100))
def test_looking_at_the_deadline_sees_the_change_and_not_earlier(heard: int, suspect: int) -> None:
    patience = Patience(float(suspect))
    due = suspect_at(float(heard), patience)
    assert pulse(heard, due, patience) is Pulse.SILENT
    assert pulse(heard, due - 0.5, patience) is Pulse.ALIVE
