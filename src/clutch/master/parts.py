"""A workload's part of a master: its routes, what they stand on, and what it does while this master leads.

The composition root opens the parts and hands them to the app; nothing else in the master knows that there are any.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The parameter by which its routes ask for ``value``."""
    value: Any
    routes: Sequence[Any]
    lead: Callable[[], Awaitable[None]] | None = None
    """Runs while this master leads, until it is cancelled."""
