"""Which ways of running members this machine has besides plain processes."""

from __future__ import annotations

import os
from pathlib import Path

from clutch.wire.errors import BadRequest, ClutchError

ENGINE = "DOCKER_HOST"
DEFAULT_ENGINE = "unix:///var/run/docker.sock"
NO_ENGINE = "none"


def engine_socket(said: str = "") -> Path | None:
    """The socket of the engine that is meant: as was said, else as DOCKER_HOST says, else Docker's own. None: no engine
    of this machine, so no images here."""
    meant = said or os.environ.get(ENGINE) or DEFAULT_ENGINE
    path = Path(meant.removeprefix("unix://"))
    if path.is_absolute():
        return path
    if said and said != NO_ENGINE:
        raise BadRequest(
            f"'{said}' is not the unix socket of a container engine",
            object="--docker",
            next_step="Say unix:///PATH; or none, and this node runs no images.",
        )
    return None


async def docker_version() -> str:
    """Of the engine that answers here; empty when there is none, or no client for it is installed."""
    try:
        from clutch.backends.containers.docker import answers
    except ImportError:
        return ""
    try:
        socket = engine_socket()
        return (await answers(socket) or "") if socket is not None else ""
    except ClutchError:
        return ""
