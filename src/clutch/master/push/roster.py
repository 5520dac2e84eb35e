"""What a rendezvous answers with: ranks, addresses, ports and keys, from what members announced. Pure."""

from __future__ import annotations

import re

import msgspec

from clutch.core.barriers import Answer, Barrier
from clutch.master.push.standing import Standing
from clutch.wire.errors import BadRequest
from clutch.wire.ids import NodeId
from clutch.wire.push import ADDRESSES_MAX, PORTS_MAX, Announce, Peer, Roster

KEY_CHARACTERS = 40
_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:%_-]{0,251}[A-Za-z0-9])?|::1?|::[0-9A-Fa-f.:]{1,45}")
_Z85 = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
SLOTS_MAX = 1_024

_decoder = msgspec.msgpack.Decoder(Announce)


def check_announce(said: Announce) -> None:
    """``BadRequest`` for what no peer could use."""
    if not 1 <= len(said.addresses) <= ADDRESSES_MAX:
        raise BadRequest(
            f"{len(said.addresses)} addresses, 1 to {ADDRESSES_MAX}", object="rendezvous", path="addresses"
        )
    for number, address in enumerate(said.addresses):
        if not _ADDRESS.fullmatch(address):
            raise BadRequest(
                f"{address[:80]!a} is no host",
                object="rendezvous",
                path=f"addresses[{number}]",
                next_step="Give a host name or an IP address.",
            )
    if len(said.ports) > PORTS_MAX or not all(0 < port < 2**16 for port in said.ports):
        raise BadRequest("a port is from 1 to 65535, and there are 64 at most", object="rendezvous", path="ports")
    if said.public_key and not _Z85.fullmatch(said.public_key):
        raise BadRequest(
            "this is no public key",
            object="rendezvous",
            path="public_key",
            next_step=f"Give {KEY_CHARACTERS} characters of Z85, or none.",
        )
    if len(said.slots) > SLOTS_MAX or not all(0 <= slot < 2**31 for slot in said.slots):
        raise BadRequest("these are no slots", object="rendezvous", path="slots")


def missing_names(barrier: Barrier) -> tuple[str, ...]:
    return tuple(f"{role}.{rank}" for role, rank in barrier.missing)


def roster_of(standing: Standing, barrier: Barrier, answer: Answer | None) -> Roster:
    """The roster for one member: whole when the meeting is open, else who is missing."""
    seats = barrier.seats
    own = seats.index(standing.seat)
    nodes = [standing.node_of(seat) for seat in seats]
    local, sizes = local_ranks(nodes)
    known = Roster(
        ready=answer is not None,
        rank=own,
        size=len(seats),
        local_rank=local[own],
        local_size=sizes[nodes[own]],
        version=barrier.version,
        missing=missing_names(barrier),
        deadline=0.0 if barrier.is_open else barrier.deadline,
    )
    if answer is None:
        return known
    announced = [_decoder.decode(data) for data in answer.data]
    peers = tuple(
        Peer(
            rank=rank,
            role=role,
            role_rank=role_rank,
            node=nodes[rank],
            addresses=said.addresses,
            ports=said.ports,
            public_key=said.public_key,
            slots=said.slots,
            local_rank=local[rank],
        )
        for rank, ((role, role_rank), said) in enumerate(zip(seats, announced, strict=True))
    )
    return msgspec.structs.replace(known, peers=peers, missing=())


def local_ranks(nodes: list[NodeId]) -> tuple[list[int], dict[NodeId, int]]:
    """Each one's place among those on its node, in the order of ranks; and how many each node has."""
    sizes: dict[NodeId, int] = {}
    places = []
    for node in nodes:
        places.append(sizes.get(node, 0))
        sizes[node] = places[-1] + 1
    return places, sizes
