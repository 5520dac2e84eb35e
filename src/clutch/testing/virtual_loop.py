"""An asyncio event loop on a world's agenda: one per simulated process, so that a process can be killed or stopped.

Production coroutines run on it unchanged. Time is the world's. ``kill`` is kill -9: nothing of the process runs again,
not even its ``finally`` blocks. ``stop`` is SIGSTOP: what becomes due meanwhile waits, and happens after ``resume``.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from clutch.testing.world import World

TASKS_KEPT = 64
"""Beyond so many, finished ones are dropped from the list of what may have to be unwound."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs when the world says so. Never call ``run_forever``: the world is the one that runs."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.dead = False
        self.stopped = False
        self.failures: list[BaseException] = []
        self._held: list[asyncio.Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._grave: deque[asyncio.Handle] | None = None
        self._closed = True  # it owns nothing that would have to be closed; the world runs it

    # -- the process's life --------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.dead = True
        self._held.clear()

    def stop(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False
        held, self._held = self._held, []
        for handle in held:
            self.world.at(self.world.now, lambda handle=handle: self._happen(handle))  # type: ignore[misc]

    def bury(self) -> None:
        """After the simulation: unwind what still hangs in coroutines, so that nothing is left to the collector."""
        self.dead, self.stopped, self._grave = False, False, deque()
        for task in self._tasks:
            task.cancel()
        while self._grave:
            self._run(self._grave.popleft())
        for task in self._tasks:
            if not task.done():  # killed before its first step
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                assert coroutine is not None
                coroutine.close()
        self._tasks.clear()
        self.dead = True

    def start(self, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a coroutine as this process's own."""
        return self.create_task(main)

    # -- what asyncio needs of a loop ----------------------------------------------------------------------------

    def time(self) -> float:
        return self.world.now

    def call_soon(  # type: ignore[override]  # typeshed's variadic generics say no more
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._grave is not None:
            self._grave.append(handle)
        elif not self.dead:
            self.world.at(self.world.now, lambda: self._happen(handle))
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads here

    def call_later(  # type: ignore[override]  # typeshed's variadic generics say no more
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.world.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # typeshed's variadic generics say no more
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead and self._grave is None:
            self.world.at(when, lambda: self._happen(handle))
        return handle

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        if len(self._tasks) > TASKS_KEPT:
            self._tasks = [kept for kept in self._tasks if not kept.done()]
        self._tasks.append(task)
        return task

    def _check_closed(self) -> None:
        """There is nothing to close."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The agenda drops it when it comes up."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self.failures.append(error)

    def _happen(self, handle: asyncio.Handle) -> None:
        if self.dead or handle.cancelled():
            return
        if self.stopped:
            self._held.append(handle)
            return
        self._run(handle)

    def _run(self, handle: asyncio.Handle) -> None:
        around = events._get_running_loop()  # a simulation may be run from a coroutine
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(around)
