"""Answers that go on: a source of things that shows signs of life, and ends at the latest when the master does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from litestar.response import Stream

T = TypeVar("T")

BEAT_S = 10.0
"""So often something is sent though nothing happens, so that both ends notice when the other is gone."""


class Flow(Stream):
    """A streamed answer with a media type of its own, whatever its route says of the others."""

    def to_asgi_response(self, app: Any, request: Any, **options: Any) -> Any:
        return super().to_asgi_response(app, request, **{**options, "media_type": self.media_type})


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
