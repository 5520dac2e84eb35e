"""An event loop in a thread of its own, for the length of one call: whoever calls may have a loop already, or none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

THREADS_MAX = 16
"""Files wait for disks and stores, not for cores: there are as many threads as files that may travel at once."""


def run_apart(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The coroutine's result. An interrupt of the caller (Ctrl-C) cancels it, and comes when it has ended."""
    outcome: Future[T] = Future()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="clutch-checkpoint"))
        running.append((loop, task))
        return await make()

    def body() -> None:
        try:
            outcome.set_result(asyncio.run(main()))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=body, name="clutch-checkpoint")
    thread.start()
    try:
        return outcome.result()
    finally:
        if not outcome.done():
            for loop, task in running:
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
