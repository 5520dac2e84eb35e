"""Clutch: experiments, notebooks and reinforcement learning on one cluster, under one scheduler."""

from __future__ import annotations

from clutch.wire.version import VERSION

TYPE_CHECKING = False  # typing itself would be most of what this costs
if TYPE_CHECKING:
    from typing import Any

    from clutch.sdk.async_client import AsyncClient
    from clutch.sdk.client import Client

__version__ = VERSION
__all__ = ["AsyncClient", "Client", "__version__"]

_PLACES = {"Client": "clutch.sdk.client", "AsyncClient": "clutch.sdk.async_client"}


def __getattr__(name: str) -> Any:
    """The public names are fetched when they are first used: importing clutch costs a training script nothing."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
