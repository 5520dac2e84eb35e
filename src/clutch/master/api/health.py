"""Whether this master leads. The one thing it says to anybody."""

from __future__ import annotations

from typing import Any

from litestar import get

from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import Health
from clutch.wire.version import VERSION


@get("/health", operation_id="get_health", tags=["master"], opt={"needs": Needs.PUBLIC})
async def get_health(services: Services) -> Health:
    """Whether this master leads, waits to, or ends."""
    if services.stopping.is_set():
        return Health(status="stopping", version=VERSION)
    return Health(status="serving" if services.loop.serving.is_set() else "standby", version=VERSION)


ROUTES: list[Any] = [get_health]
