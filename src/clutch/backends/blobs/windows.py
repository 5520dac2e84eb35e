"""Work that overlaps, a bounded amount at a time, with its results in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def windowed(work: AsyncIterable[Coroutine[Any, Any, Result]], width: int) -> AsyncGenerator[Result, None]:
    """The result of each coroutine, in order, with at most ``width`` of them under way. Close it when leaving early."""
    running: deque[asyncio.Task[Result]] = deque()
    try:
        async for coroutine in work:
            running.append(asyncio.ensure_future(coroutine))
            if len(running) >= width:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
