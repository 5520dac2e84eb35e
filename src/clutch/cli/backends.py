"""Which ways of running members this machine has besides plain processes."""

from __future__ import annotations

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
