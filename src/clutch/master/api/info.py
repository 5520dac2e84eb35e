"""What this master is, and which promises hold here."""

from __future__ import annotations

from typing import Any

from litestar import get

from clutch.backends.blobs.agents import AgentBlobs
from clutch.master.promises import promises
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import API, MasterInfo
from clutch.wire.version import VERSION


@get(f"{API}/master", operation_id="get_master", tags=["master"], opt={"needs": Needs.USER})
async def get_master(services: Services) -> MasterInfo:
    """This master: its term, its store, and what it promises."""
    state = await services.loop.settled()
    settings, blobs = services.settings, services.blobs
    return MasterInfo(
        cluster=settings.cluster,
        version=VERSION,
        term=state.term,
        generation=state.generation,
        index=state.index,
        holder=services.loop.settings.holder,
        store="postgresql" if settings.db.startswith("postgres") else "sqlite",
        started_at=services.loop.led_at,
        nodes=len(state.nodes),
        tasks=len(state.tasks),
        promises=promises(settings, blobs.copies.fewest if isinstance(blobs, AgentBlobs) else 0),
    )


ROUTES: list[Any] = [get_master]
