"""What a search asks for, on every rank: rank 0 asks, and all hear the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from clutch.runtime.searching import OVER, PAUSE_S, TRAIN, Best, Operation, Search, Surroundings, complete_by_validation

if TYPE_CHECKING:
    from clutch.runtime.collective.together import Together

LEAVE = "leave"


class ChiefOnly:
    """A run as operations see it on a rank that follows."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def complete(self, length: int, value: float | None) -> None:
        return  # rank 0 does

    def progress(self, fraction: float) -> None:
        return


def operations_together(
    search: Callable[[], Search], around: Surroundings, together: Together, asked: Callable[[], bool]
) -> Iterator[Operation]:
    """A sync point before each operation. ``search`` is opened on rank 0 alone."""
    told = around if together.is_chief else ChiefOnly(around)
    last: Operation | None = None
    while True:
        before = last
        state, length = together.from_chief(lambda: _next(search(), around, before, together.stops or asked()))  # noqa: B023
        if state == LEAVE:
            together.stop()
            around.should_stop()  # which takes note that the work knows
            return
        if state == OVER:
            return
        if state == TRAIN:
            last = Operation(length, told.complete, told.progress)
            yield last


def _next(search: Search, around: Surroundings, last: Operation | None, leaves: bool) -> tuple[str, int]:
    if leaves:
        return LEAVE, 0
    if last is not None and not last.completed:
        complete_by_validation(last, around)
    asked_at = time.monotonic()
    state, length = search.operation(around.poll_s())
    if state not in (TRAIN, OVER) and time.monotonic() - asked_at < PAUSE_S:
        time.sleep(PAUSE_S)
    return state, length


def best_together(together: Together, search: Callable[[], Search]) -> Best | None:
    """As rank 0 hears it."""

    def ask() -> list[float | int]:
        found = search().best()
        return [found.value, found.trial, found.step] if found is not None else []

    said = together.from_chief(ask)
    return Best(value=float(said[0]), trial=int(said[1]), step=int(said[2])) if said else None
