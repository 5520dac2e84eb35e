"""Holding a name for as long as a block runs: added at its start, renewed while it runs, removed at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from clutch.backends.names.base import Entry, Names, Seen
from clutch.wire.errors import BadRequest, ClusterError, NotFound, Stale, TimedOut

RENEWALS_PER_TTL = 3


class Held:
    """A name that is being renewed. ``lost`` is set once it is not ours any more, or we cannot know that it is."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.lost = asyncio.Event()


@asynccontextmanager
async def hold(names: Names, name: str, value: bytes, *, ttl_s: float, replace: bool = False) -> AsyncIterator[Held]:
    """Hold a name while the block runs. The block watches ``lost`` if it must stop when another takes over."""
    if not ttl_s:
        raise BadRequest("a name is held by renewing it", object=name, next_step="Give ttl_s.")
    held = Held(await names.add(name, value, ttl_s=ttl_s, replace=replace))
    renewing = asyncio.create_task(_renew(names, held, ttl_s))
    try:
        yield held
    finally:
        renewing.cancel()
        with suppress(asyncio.CancelledError):
            await renewing
        if not held.lost.is_set():
            with suppress(NotFound, ClusterError):  # it ends with its time to live
                await names.remove(name, held.entry.token)


async def _renew(names: Names, held: Held, ttl_s: float) -> None:
    loop = asyncio.get_running_loop()
    safe_until = loop.time() + ttl_s
    while loop.time() < safe_until:
        await asyncio.sleep(ttl_s / RENEWALS_PER_TTL)
        began = loop.time()
        try:
            held.entry = await names.renew(held.entry.name, held.entry.token)
            safe_until = began + ttl_s
        except Stale:
            break
        except ClusterError:
            continue  # the store may be back before our time is over
    held.lost.set()


async def wait_for(names: Names, name: str, *, within_s: float) -> Entry:
    """The entry of this name, as soon as there is one; ``TimedOut`` if there is none within the deadline."""
    changes = names.watch(name)
    try:
        async with asyncio.timeout(within_s):
            async for change in changes:
                if change.entry.name == name and change.seen is not Seen.GONE:
                    return change.entry
    except TimeoutError:
        pass
    finally:
        await changes.aclose()
    raise TimedOut(f"nobody added it within {within_s} s", object=name, next_step="Is its holder running?")
