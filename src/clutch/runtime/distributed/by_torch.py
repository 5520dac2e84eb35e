"""Seat and meeting by ``torch.distributed``: its store carries the chief's port and everybody's public key.

Whoever can write to that store can join, which is as far as PyTorch itself trusts it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from clutch.backends.transports.keys import new_keys
from clutch.runtime.distributed.meeting import Meeting
from clutch.runtime.distributed.session import machine_place
from clutch.runtime.distributed.shape import Seat
from clutch.runtime.info import Info
from clutch.runtime.rendezvous import LOOPBACK, own_addresses
from clutch.wire.errors import BadRequest, TimedOut


class _Card(msgspec.Struct, frozen=True):
    """What each rank lays into the store."""

    public_key: str
    place: str
    address: str


def seat_and_meeting(timeout_s: float) -> tuple[Seat, Meeting | None]:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise BadRequest(
            "torch.distributed is not initialized", object="group", next_step="Call init_process_group before."
        )
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return Seat(0, 1), None
    store = _store(dist, rank)
    keys = new_keys()
    own = _Card(keys.public, machine_place() or f"rank {rank}", own_addresses(Info(), "")[0])
    store.set(f"card/{rank}", msgspec.json.encode(own))
    cards = [msgspec.json.decode(_get(store, f"card/{n}", timeout_s), type=_Card) for n in range(size)]
    together = [n for n in range(size) if cards[n].place == own.place]
    seat = Seat(rank, size, together.index(rank), len(together), own.place)
    ports: tuple[int, ...] = ()
    if rank != 0:
        ports = (int(_get(store, "port", timeout_s)),)
    address = LOOPBACK if len(together) == size else cards[0].address
    meeting = Meeting(
        address=address,
        ports=ports,
        keys=keys,
        chief_key=cards[0].public_key,
        allowed=frozenset(card.public_key for card in cards),
        within_s=timeout_s,
        publish=(lambda port: store.set("port", str(port).encode())) if rank == 0 else None,
    )
    return seat, meeting


def _store(dist: Any, rank: int) -> Any:
    """A corner of the store for the n-th group of these processes; each rank counts its own."""
    base = dist.distributed_c10d._get_default_store()
    number = base.add(f"clutch/group/{rank}", 1)
    return dist.PrefixStore(f"clutch/group/n{number}", base)


def _get(store: Any, key: str, timeout_s: float) -> bytes:
    try:
        store.wait([key], timedelta(seconds=timeout_s))
        return bytes(store.get(key))
    except Exception as error:  # its errors are of many kinds
        who = "rank 0" if key == "port" else f"rank {key.removeprefix('card/')}"
        raise TimedOut(f"{who} did not come within {timeout_s:g} s", object="meeting of a group") from error
