"""What keeps a master's event loop from standing still: how Python is told to behave in a process that serves."""

from __future__ import annotations

import gc
import sys

_COLLECT = (50_000, 50, 100)
"""Objects made and not yet gone before the youngest are looked at; how often that before those before them are."""
_SWITCH_S = 0.001
"""How long a thread that packs or unpacks may go on while the loop waits for its turn; Python's own is 5 ms."""


def steady() -> None:
    """Call it once, when everything that stays has been made.

    A full collection looks at every object there is: with the API's routes and the fold of the journal that takes
    100 ms, in which nothing is granted, and a hundred thousand points a second cause one each second. What is there now
    is never looked at again; what comes later mostly goes without the collector's help.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT)
    sys.setswitchinterval(_SWITCH_S)
