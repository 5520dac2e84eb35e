"""Which ways of running members this machine has besides plain processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clutch.agent import shim
from clutch.agent.directory import MemberDirectories
from clutch.agent.main import Backends
from clutch.backends.containers.base import Containers
from clutch.wire.errors import ClutchError


async def docker_version() -> str:
    """Of the engine that answers here; empty when there is none, or no client for it is installed."""
    try:
        from clutch.backends.containers.docker import answers
    except ImportError:
        return ""
    try:
        return await answers() or ""
    except ClutchError:
        return ""


async def found_backends() -> Backends | None:
    """A maker of those ways, for the agent's root; None when there are none."""
    if not await docker_version():
        return None

    def make(data: Path, directories: MemberDirectories) -> Mapping[str, Containers]:
        from clutch.backends.containers.docker import DockerContainers

        return {"docker": DockerContainers(MemberDirectories(data / "containers"), Path(shim.__file__))}

    return make
