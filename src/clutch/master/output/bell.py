"""Waking those who follow a task's output when more of it is durable, or when the task has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from clutch.wire.ids import TaskId


class Bell:
    """One event for each follower; ringing costs nothing where nobody follows. Whoever follows ``x`` hears of every
    task ``x.NAME`` too."""

    def __init__(self) -> None:
        self._followers: dict[TaskId, list[asyncio.Event]] = {}

    @contextmanager
    def heard(self, task: TaskId) -> Iterator[asyncio.Event]:
        """An event that is set by each ring from here on; whoever waits clears it."""
        event = asyncio.Event()
        self._followers.setdefault(task, []).append(event)
        try:
            yield event
        finally:
            events = self._followers[task]
            events.remove(event)
            if not events:
                del self._followers[task]

    def ring(self, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            family = TaskId(task.rpartition(".")[0])  # of a trial: its experiment
            for event in (*self._followers.get(task, ()), *self._followers.get(family, ())):
                event.set()
