"""The task a user holds: to wait for, to read, to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Unpack

from clutch.sdk import calls
from clutch.sdk.output import Filters, Follower, output_query
from clutch.sdk.reading import LOOK_FIRST_S, LOOK_MAX_S, follow_lines, read_lines
from clutch.wire.api import TaskDetail, WhyTask
from clutch.wire.errors import TimedOut, Unavailable
from clutch.wire.metrics import Series
from clutch.wire.outcomes import TaskState
from clutch.wire.output import OutputLine

if TYPE_CHECKING:
    from clutch.sdk.client import Client


class Task:
    """One task of a cluster, by its id."""

    def __init__(self, client: Client, id: str, name: str = "") -> None:
        self.client = client
        self.id = id
        self.name = name

    def __repr__(self) -> str:
        return f"Task({self.id!r}, name={self.name!r})"

    def detail(self) -> TaskDetail:
        """Everything the master says about it now."""
        return self.client.perform(calls.get_task(self.id))

    @property
    def state(self) -> str:
        return self.detail().task.state

    @property
    def exit_code(self) -> int | None:
        """Of its chief, or of its first member that failed; minus the signal that killed it; None while it runs."""
        return self.detail().exit_code

    def why(self) -> WhyTask:
        """Where it stands and how it came to that."""
        return self.client.perform(calls.why_task(self.id))

    def metrics(self, **fields: Any) -> tuple[Series, ...]:
        """What it reported, as series: ``group``, ``name``, ``points`` (0: as many as the master gives)."""
        return self.client.perform(calls.task_metrics(self.id, **fields)).items

    def wait(self, timeout_s: float | None = None) -> TaskDetail:
        """Itself, ended. ``TimedOut`` when that takes longer than ``timeout_s``."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        pause = LOOK_FIRST_S
        while True:
            detail = self.detail()
            if detail.task.state == TaskState.ENDED:
                return detail
            left = LOOK_MAX_S if until is None else until - time.monotonic()
            if left <= 0:
                step = f"Wait longer, or ask 'clutch why {self.id}'."
                raise TimedOut(f"it is still {detail.task.state}", object=f"task {self.id}", next_step=step)
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LOOK_MAX_S)

    def output(self, *, follow: bool = False, **filters: Unpack[Filters]) -> Iterator[OutputLine]:
        """Its lines, oldest first. With ``follow``, those to come too, until it has ended; a master that goes away
        meanwhile is waited for, and no line is lost or given twice."""
        query = output_query(self.id, **filters)
        if follow:
            return self.follow(Follower(query))
        return read_lines(self.client, query, calls.read_output)

    def follow(self, follower: Follower, told: Callable[[Unavailable], None] | None = None) -> Iterator[OutputLine]:
        """Lines as they come, from where a follower stands, until the task has ended and all was said; see
        ``follow_lines``."""
        return follow_lines(self.client, follower, calls.follow_output, self._has_ended, told)

    def _has_ended(self) -> bool:
        return self.state == TaskState.ENDED

    def stop(self) -> None:
        """Asks it to leave; after its window it is ended."""
        self._move("stop")

    def kill(self) -> None:
        """Ends it at once."""
        self._move("kill")

    def pause(self) -> None:
        """Asks it to leave and to wait for ``resume``."""
        self._move("pause")

    def resume(self) -> None:
        self._move("resume")

    def _move(self, move: str) -> Any:
        return self.client.perform(calls.move_task(self.id, move))
