"""Why nothing is to be seen: what a task waits for while it has not printed, and that its master is away.

Said to people, on a terminal, when it takes a while. Elsewhere only what a task waits for, when that takes long: who
looks into a log finds the reason, and a short wait leaves no trace.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer

from clutch.wire.errors import ClutchError
from clutch.wire.outcomes import TaskState

if TYPE_CHECKING:
    from clutch.sdk.task import Task

SAID_AFTER_S = 2.0
SAID_QUIETLY_AFTER_S = 15.0
LOOK_S = 3.0


class Notices:
    """Of one task. As a context it looks, beside who reads the output, until something came."""

    def __init__(self, task: Task, *, loud: bool) -> None:
        self._task = task
        self._loud = loud
        self._done = threading.Event()
        self._away = False
        self._looking = threading.Thread(target=self._look, name="clutch-notices")

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._looking.join()

    def came(self) -> None:
        """A line came: there is nothing to explain."""
        self._done.set()
        if self._away and self._loud:
            typer.echo("clutch: the master is back", err=True)
        self._away = False

    def away(self, error: ClutchError) -> None:
        """The master does not answer."""
        if self._loud and not self._away:
            typer.echo(f"clutch: {error.cause}; waiting for it (the task goes on)", err=True)
        self._away = True

    def _look(self) -> None:
        said = ""
        wait_s = SAID_AFTER_S if self._loud else SAID_QUIETLY_AFTER_S
        while not self._done.wait(wait_s):
            wait_s = LOOK_S
            try:
                detail = self._task.detail()
            except ClutchError:
                continue  # who reads the output hears of it too
            doing = [member.doing for member in detail.members if member.doing]
            if detail.waiting is not None:
                reason = f"waits: {detail.waiting.code}: {detail.waiting.detail}"
            elif not doing and detail.task.state == TaskState.RUNNING:
                return
            elif not self._loud:
                continue
            else:
                reason = doing[0] if doing else detail.task.state
            if reason != said and not self._done.is_set():
                typer.echo(f"clutch: {self._task.id} {reason}", err=True)
                said = reason
