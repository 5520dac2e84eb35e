"""Bars of time in tests.

A quick test shares its machine with others: it sees that nobody waits for a timeout, and so allows a bar four times
over. Whether the bar itself is met is asked where that can be told: ``CLUTCH_BARS=strict``, which ``make soak`` sets.
"""

from __future__ import annotations

import os

_SHARED = 4.0


def within(bar_s: float) -> float:
    """How long a test lets it take."""
    return bar_s if os.environ.get("CLUTCH_BARS") == "strict" else bar_s * _SHARED
