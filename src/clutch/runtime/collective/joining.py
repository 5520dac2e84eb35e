"""How the processes of a run find each other: by their launcher's variables, by ``torch.distributed``, or as given."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, TypedDict

from clutch.runtime.collective.parting import END, WAYS, Parting, words_about
from clutch.runtime.collective.together import MODES, Together
from clutch.runtime.last_words import found, keep
from clutch.wire.errors import BadRequest, ClutchError, Conflict, PeerLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from clutch.runtime.distributed import Group
    from clutch.runtime.info import Info

TORCH, ENVIRONMENT = "torch", "environment"
AGAIN_WITHIN_S, AGAIN_S = 60.0, 0.2
_made: list[int] = []
"""Sizes of the groups that this process has been in."""


class Ranks(TypedDict, total=False):
    """What ``clutch.init`` is told about several processes."""

    distributed: Group | Literal["torch", "environment", False] | None
    preempt_mode: Literal["workers-ask-chief", "chief-only", "workers-ask-master"]
    on_peer_lost: Literal["end", "raise"]


def join(distributed: object, preempt_mode: str, on_peer_lost: str, info: Info) -> Together | None:
    """The ranks of this run; None: rank 0 does everything, and the others nothing. Waits until all have come."""
    if preempt_mode not in MODES:
        raise BadRequest(
            f"there is no way {preempt_mode!r:.60}", object="preempt_mode", next_step=f"Use one of {', '.join(MODES)}."
        )
    if on_peer_lost not in WAYS:
        raise BadRequest(
            f"there is no way {on_peer_lost!r:.60}", object="on_peer_lost", next_step=f"Use one of {', '.join(WAYS)}."
        )
    if distributed is False:
        return None
    if distributed is None and not (info.on_cluster and info.process_size > 1):
        return None
    from clutch.runtime.distributed import Group

    words = info.last_words if info.on_cluster else ""
    if found(words):  # of an earlier run of this process, which has outlived it
        keep(words, "")
    if isinstance(distributed, Group):
        return Together(distributed, mode=preempt_mode, own=False, words=words)
    if distributed not in (None, TORCH, ENVIRONMENT):
        raise BadRequest(
            f"a {type(distributed).__name__} is no group",
            object="distributed",
            next_step="Give a Group, 'torch', 'environment', or False for none.",
        )
    try:
        group = Group.from_torch() if distributed == TORCH else _by_environment()
    except ClutchError as error:
        if isinstance(error, PeerLost) and info.on_cluster and info.process_rank not in error.ranks:
            keep(info.last_words, words_about(error))
        raise _alone(info, str(error)) from error
    if distributed is None and group.size != info.process_size:
        group.close()
        raise _alone(info, "RANK and WORLD_SIZE are not set")
    return Together(group, mode=preempt_mode, words=words)


def parting(together: Together, info: Info, on_peer_lost: str, say: Callable[[str], None]) -> Parting | None:
    """For ranks that the cluster has started; a program that brought its own group decides about it by itself."""
    if not info.on_cluster:
        return None
    return Parting(together, info.last_words, say, ends=on_peer_lost == END and together.own).start()


def _by_environment() -> Group:
    """A rank that makes one run after the other may come while rank 0 has not closed the last one: it comes again."""
    from clutch.runtime.distributed import Group

    until = time.monotonic() + (AGAIN_WITHIN_S if _made else 0.0)
    while True:
        try:
            group = Group.from_environment()
            _made.append(group.size)
            return group
        except (Conflict, PeerLost):
            if time.monotonic() >= until:
                raise
            time.sleep(AGAIN_S)


def _alone(info: Info, why: str) -> Conflict:
    return Conflict(
        f"rank {info.process_rank} of {info.process_size} processes has no group with the others: {why.rstrip('.')}",
        object="run",
        next_step="Call clutch.init() on every rank, give it distributed=..., or distributed=False where only rank 0 "
        "reports.",
    )
