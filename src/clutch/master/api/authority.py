"""The certificate of the cluster's own authority, for machines that join: public, and pinned by who asks for it."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import MediaType, get

from clutch.master.services import Services
from clutch.master.tls import AUTHORITY_FILE, TLS_FOLDER
from clutch.wire.access import Needs
from clutch.wire.errors import NotFound
from clutch.wire.link import AUTHORITY_PATH


@get(
    AUTHORITY_PATH,
    media_type=MediaType.TEXT,
    operation_id="get_authority",
    tags=["cluster"],
    opt={"needs": Needs.PUBLIC},
)
async def get_authority(services: Services) -> str:
    """The certificate (PEM) of the authority that this cluster made for itself."""
    try:
        return await asyncio.to_thread((services.settings.data / TLS_FOLDER / AUTHORITY_FILE).read_text)
    except FileNotFoundError:
        raise NotFound(
            "this cluster has no authority of its own", object="authority", next_step="Start 'clutch up --join' there."
        ) from None


ROUTES: list[Any] = [get_authority]
