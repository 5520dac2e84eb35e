"""Running a long-lived coroutine from the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop

from clutch.wire.errors import ClutchError


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end on uvloop. Of several errors at once the first one of ours is raised."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
    except* ClutchError as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[ClutchError]) -> ClutchError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, ClutchError)
    return found
