"""When a task's ports were last used, and which tasks nobody uses any more. Soft: a new master counts anew.

Pure but for being told the time.
"""

from __future__ import annotations

from clutch.core.state import State
from clutch.wire.ids import TaskId
from clutch.wire.outcomes import TaskState
from clutch.wire.programs import program_in


class IdleWatch:
    def __init__(self) -> None:
        self._used: dict[TaskId, float] = {}
        self._open: dict[TaskId, int] = {}
        self._timeouts: dict[TaskId, float] = {}

    def opened(self, task: TaskId, now: float) -> None:
        """Somebody has begun to use it."""
        self._used[task] = now
        self._open[task] = self._open.get(task, 0) + 1

    def closed(self, task: TaskId, now: float) -> None:
        self._used[task] = now
        self._open[task] = self._open.get(task, 1) - 1

    def unused(self, state: State, now: float) -> list[TaskId]:
        """Running tasks that asked to be ended when unused, and have been for that long."""
        found = []
        for task, live in state.tasks.items():
            if task not in self._timeouts:
                program = program_in(live.spec.payload)
                self._timeouts[task] = program.idle_timeout_s if program is not None else 0.0
            timeout_s = self._timeouts[task]
            if not timeout_s or live.state is not TaskState.RUNNING or self._open.get(task, 0):
                continue
            if now - self._used.setdefault(task, now) >= timeout_s:
                found.append(task)
        for gone in [task for task in self._timeouts if task not in state.tasks]:
            for book in (self._timeouts, self._used, self._open):
                book.pop(gone, None)
        return found
