"""Tasks that are used through a port: waiting until one runs, and where its port is."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer

from clutch.wire.errors import Conflict, TimedOut
from clutch.wire.outcomes import TaskState

if TYPE_CHECKING:
    from clutch.sdk.task import Task
    from clutch.wire.api import TaskDetail

LOOK_S = 0.2
SAID_AFTER_S = 2.0


def wait_port(task: Task, wait_s: float) -> int:
    """The first port of a task once it runs. Says on the terminal what it waits for when that takes long."""
    began, said = time.monotonic(), ""
    while True:
        detail = task.detail()
        port = _port(task, detail)
        if port:
            return port
        waited = time.monotonic() - began
        reason = _reason(detail)
        if waited > wait_s:
            step = f"It goes on: 'clutch why {task.id}', or 'clutch kill {task.id}'."
            raise TimedOut(f"it does not run yet: {reason}", object=f"task {task.id}", next_step=step)
        if waited > SAID_AFTER_S and reason != said and sys.stderr.isatty():
            typer.echo(f"clutch: {task.id} waits: {reason}", err=True)
            said = reason
        time.sleep(LOOK_S)


def _port(task: Task, detail: TaskDetail) -> int:
    if detail.task.state == TaskState.ENDED:
        why = detail.task.detail or detail.task.reason
        raise Conflict(f"it has ended: {why}", object=f"task {task.id}", next_step=f"See 'clutch logs {task.id}'.")
    running = [member for member in detail.members if member.state == "running"]
    if running and detail.program is not None and not detail.program.ports:
        step = "Start it with --expose PORT, or a new one with 'clutch shell'."
        raise Conflict("it exposes no port", object=f"task {task.id}", next_step=step)
    return next((port for member in running for port in member.ports), 0)


def _reason(detail: TaskDetail) -> str:
    if detail.waiting is not None:
        return f"{detail.waiting.code}: {detail.waiting.detail}"
    return next((member.doing for member in detail.members if member.doing), detail.task.state)
