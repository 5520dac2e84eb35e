"""The processes of an allocation, counted: which ranks are in which member, and what each of them is told."""

from __future__ import annotations

import msgspec

from clutch.runtime.rendezvous import chief_address
from clutch.wire.errors import BadRequest
from clutch.wire.programs import PROCESSES_MAX
from clutch.wire.push import Peer, Roster

GROUP_PORT, COMMS_PORT = 0, 1
"""Among the chief's ports: where PyTorch and its relatives meet, and where ``clutch.init`` does."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Counts *processes* (ranks); a member has one or more of them, with consecutive numbers."""

    counts: tuple[int, ...]
    """How many each member has, in the order of members."""
    member: int
    """Which member this is: the ``CROSS_RANK`` of its processes."""

    @property
    def size(self) -> int:
        return sum(self.counts)

    @property
    def members(self) -> int:
        return len(self.counts)

    @property
    def first(self) -> int:
        """The number of this member's first process."""
        return sum(self.counts[: self.member])

    @property
    def local_size(self) -> int:
        return self.counts[self.member]


def world_of(roster: Roster, processes: int = 0, *, oversubscribe: bool = False) -> World:
    """One process for each slot of each member, at least one; or ``processes`` in every member.

    ``BadRequest`` when that is more than a member has slots, unless ``oversubscribe`` says that it is meant. A member
    without any slots shares no device, so there it is always meant.
    """
    if not 0 <= processes <= PROCESSES_MAX:
        raise BadRequest(f"{processes} processes, at most {PROCESSES_MAX}", object="launch", path="processes")
    for peer in roster.peers:
        if processes > len(peer.slots) > 0 and not oversubscribe:
            raise BadRequest(
                f"{processes} processes in a member, and {_name(peer)} has {_slots(peer)}",
                object="launch",
                path="processes",
                next_step="Leave processes out (one for each slot), or say oversubscribe: true.",
            )
    return World(counts=tuple(processes or max(1, len(peer.slots)) for peer in roster.peers), member=roster.rank)


def member_variables(roster: Roster) -> dict[str, str]:
    """What every process is told whatever starts it: which member it is in, and where the chief is."""
    address, ports = chief_address(roster), roster.chief.ports
    found = {
        "MASTER_ADDR": address,
        "CLUTCH_WORLD_RANK": str(roster.rank),
        "CLUTCH_WORLD_SIZE": str(roster.size),
        "CLUTCH_CHIEF_ADDRESS": address,
    }
    if len(ports) > GROUP_PORT:
        found |= {"MASTER_PORT": str(ports[GROUP_PORT]), "CLUTCH_CHIEF_PORT": str(ports[GROUP_PORT])}
    if len(ports) > COMMS_PORT:
        found |= {"CLUTCH_COMMS_ADDRESS": address, "CLUTCH_COMMS_PORT": str(ports[COMMS_PORT])}
    return found


def world_variables(roster: Roster, world: World) -> dict[str, str]:
    """What all processes of this member are told; ``RANK`` and ``LOCAL_RANK`` are each one's own."""
    return {
        **member_variables(roster),
        "WORLD_SIZE": str(world.size),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "CROSS_RANK": str(world.member),
        "CROSS_SIZE": str(world.members),
    }


def _name(peer: Peer) -> str:
    return f"{peer.role}.{peer.role_rank} on {peer.node or 'this node'}"


def _slots(peer: Peer) -> str:
    return f"{len(peer.slots)} slot{'s' * (len(peer.slots) != 1)}"
