"""Answers that go on: a source of things that shows signs of life, and ends at the latest when the master does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

T = TypeVar("T")

BEAT_S = 10.0
"""So often something is sent though nothing happens, so that both ends notice when the other is gone."""


async def until_stopped(
    source: AsyncIterator[T], stopping: asyncio.Event, beat_s: float = BEAT_S
) -> AsyncIterator[T | None]:
    """What the source gives, and None whenever it gave nothing for a while; ends with the source or when stopping."""
    stopped = asyncio.ensure_future(stopping.wait())
    following: asyncio.Future[T] | None = None
    try:
        while True:
            if following is None:
                following = asyncio.ensure_future(anext(source))
            either: list[asyncio.Future[Any]] = [following, stopped]
            await asyncio.wait(either, timeout=beat_s, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                return
            if not following.done():
                yield None
                continue
            try:
                found = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield found
    finally:
        stopped.cancel()
        if following is not None:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await following
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
