"""A client of the cluster that runs from a folder of this machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from clutch.sdk.client import Client
from clutch.sdk.where import ENDPOINT, Endpoint
from clutch.wire.errors import NotFound


def local_client(data: Path) -> Client:
    """``NotFound`` when nothing says where it is."""
    try:
        endpoint = msgspec.json.decode((data / ENDPOINT).read_bytes(), type=Endpoint)
        token = Path(endpoint.token_file).read_text().strip()
    except (OSError, msgspec.MsgspecError):
        raise NotFound(
            "nothing there says how to reach its cluster", object=str(data), next_step="Start it with 'clutch up'."
        ) from None
    return Client((endpoint.url,), token, ca_file=endpoint.ca_file)
