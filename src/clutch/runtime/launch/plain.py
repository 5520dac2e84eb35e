"""The plain launcher: the command as it was written, with variables that say who its peers are.

``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` are what PyTorch and
its relatives read (*master* is their word for the chief). They count members: one process each. Here *local* are the
members on the same node, and ``CROSS_RANK`` counts nodes.
"""

from __future__ import annotations

from clutch.runtime.launch.base import Launch
from clutch.runtime.launch.world import member_variables
from clutch.wire.push import Roster


class Plain:
    """The way of every command that starts no processes of its own for its slots."""

    def launch(self, argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None) -> Launch:
        return Launch(argv, {**environment, **peer_variables(roster)} if roster is not None else environment)


def peer_variables(roster: Roster) -> dict[str, str]:
    """Who this member is among its peers, and where the chief is."""
    nodes = list(dict.fromkeys(peer.node for peer in roster.peers))
    return {
        **member_variables(roster),
        "RANK": str(roster.rank),
        "WORLD_SIZE": str(roster.size),
        "LOCAL_RANK": str(roster.local_rank),
        "LOCAL_WORLD_SIZE": str(roster.local_size),
        "CROSS_RANK": str(nodes.index(roster.peers[roster.rank].node)),
        "CROSS_SIZE": str(len(nodes)),
    }
