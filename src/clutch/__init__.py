"""Clutch: experiments, notebooks and reinforcement learning on one cluster, under one scheduler."""

from __future__ import annotations

from clutch.wire.version import VERSION

TYPE_CHECKING = False  # typing itself would be most of what this costs
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Any, Unpack

    from clutch.runtime.callbacks.huggingface import HuggingFaceCallback
    from clutch.runtime.callbacks.lightning import LightningCallback
    from clutch.runtime.collective.joining import Ranks
    from clutch.runtime.context import Run
    from clutch.runtime.detached import Place
    from clutch.runtime.searching import InvalidHparams
    from clutch.sdk.async_client import AsyncClient
    from clutch.sdk.client import Client

__version__ = VERSION
__all__ = [
    "AsyncClient",
    "Client",
    "HuggingFaceCallback",
    "InvalidHparams",
    "LightningCallback",
    "Run",
    "__version__",
    "init",
]

_PLACES = {
    "Client": "clutch.sdk.client",
    "AsyncClient": "clutch.sdk.async_client",
    "Run": "clutch.runtime.context",
    "InvalidHparams": "clutch.runtime.searching",
    "LightningCallback": "clutch.runtime.callbacks.lightning",
    "HuggingFaceCallback": "clutch.runtime.callbacks.huggingface",
}


def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    name: str = "",
    project: str = "",
    resume: str | os.PathLike[str] | bool | None = None,
    max_length: int = 0,
    detached: bool | None = None,
    **ranks: Unpack[Ranks],
) -> Run:
    """The run of this script: ``with clutch.init() as run``.

    In a task of a cluster it speaks to that cluster. Elsewhere it keeps what it is told in ``./clutch-runs/``, or with
    ``detached`` reports to the cluster that ``clutch.Client()`` would find.

    ``hparams``: what holds where the search, ``CLUTCH_HPARAMS`` or ``--hparams JSON`` say nothing. ``name``,
    ``project``: of a run that is no trial. ``resume``: the folder of an earlier run (``True``: the newest one of this
    name), or the key of an earlier detached run. ``max_length``: of the one operation of a run that nobody searches.

    On several ranks every one of them calls this, and it waits for all. ``distributed``: a ``Group``, ``"torch"`` (the
    ranks of ``torch.distributed``), ``"environment"``; without it as the cluster has started them; ``False``: only
    rank 0 is a run. ``preempt_mode``: ``"workers-ask-chief"`` (all stop at the same call), ``"chief-only"`` (only rank
    0 may ask), ``"workers-ask-master"`` (each hears for itself). ``on_peer_lost``: on a cluster a rank that does not
    leave within a second of a peer's loss is ended, because it may wait for that peer inside of other code;
    ``"raise"``: it only hears of it, as ``PeerLost``, in its calls.
    """
    _import_msgspec()
    from clutch.runtime.opening import Given, open_run

    given = Given(
        hparams=hparams, name=name, project=project, resume=resume, max_length=max_length, detached=detached, **ranks
    )
    return open_run(given, _find_cluster)


def _import_msgspec() -> None:
    """Without typing_extensions, which it asks for names that ``typing`` has since Python 3.11: 10 ms of 40."""
    import sys

    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


def _find_cluster() -> Place:
    """Here, because what runs in a task may not know how a client finds its cluster."""
    from clutch.runtime.detached import Place
    from clutch.sdk.where import find, surroundings

    found = find(surroundings())
    return Place(masters=found.masters, token=found.token, ca_file=found.ca_file)


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
