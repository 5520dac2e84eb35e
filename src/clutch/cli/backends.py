"""Which ways of running members this machine has besides plain processes."""

from __future__ import annotations

import os
from pathlib import Path

from clutch.wire.errors import BadRequest, ClutchError

ENGINE = "DOCKER_HOST"
DEFAULT_ENGINE = "unix:///var/run/docker.sock"
NO_ENGINE = "none"


def engine_socket(said: str = "") -> Path | None:
    """The socket of the engine that is meant: by what was said, else by DOCKER_HOST, else Docker's own; None: none."""
    meant = said or os.environ.get(ENGINE) or DEFAULT_ENGINE
    if meant == NO_ENGINE:
        return None
    path = Path(meant.removeprefix("unix://"))
    if not path.is_absolute():
        raise BadRequest(
            f"'{meant}' is not the unix socket of a container engine",
            object="--docker" if said else ENGINE,
            next_step="Say unix:///PATH; or none, and this node runs no images.",
        )
    return path


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
