"""A node: a machine with an agent, as the master knows it.

It may know what its agent last reported and what its operator wishes. It never knows a connection: silence is an event.

The state says what others may do with the node; the table says how it changes. A node comes into being with its first
report. ``strays`` are processes or leases that a report showed alive and that are no longer anybody's: while there are
any, the node is closed, because the slots they sit on were already given back.
"""

from __future__ import annotations

import msgspec

from clutch.core.machine import Table
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.outcomes import NodeState, NodeWish
from clutch.wire.resources import Capacity
from clutch.wire.schedule import Room

N = NodeState
TABLE = Table(
    "node",
    {
        N.UNREPORTED: (N.UNREPORTED, N.READY, N.DRAINING, N.SUSPECT, N.LOST),
        N.READY: (N.UNREPORTED, N.READY, N.DRAINING, N.SUSPECT),
        N.SUSPECT: (N.UNREPORTED, N.READY, N.DRAINING, N.LOST),
        N.LOST: (N.UNREPORTED, N.READY, N.DRAINING),
        N.DRAINING: (N.UNREPORTED, N.READY, N.DRAINING, N.SUSPECT),
    },
)

HEARD = (NodeState.READY, NodeState.DRAINING)
"""States in which the agent is in touch with this term."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    node: NodeId
    pool: PoolName
    state: NodeState
    session: str
    capacity: Capacity
    since: float
    """When it entered its state; for a silent node, since when it is silent."""
    wish: NodeWish = NodeWish.OPEN
    disabled: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    """Slots that disappeared while somebody holds them: on the books, and closed, until they are given back."""
    strays: tuple[str, ...] = ()
    residents: bool = True
    """While it is suspect: whether its resident members are still waited for."""

    def room(self) -> Room:
        """The node as the scheduler sees it."""
        return Room(
            node=self.node,
            capacity=self.capacity,
            usable=self.state is NodeState.READY,
            disabled_slots=tuple(sorted({*self.disabled, *self.missing})),
        )


def moved(node: Node, to: NodeState, at: float) -> Node:
    """The node in another state. Staying where it is keeps ``since``."""
    TABLE.move(node.state, to, f"node {node.node}")
    return node if node.state is to else msgspec.structs.replace(node, state=to, since=at)


def state_after_report(wish: NodeWish, strays: tuple[str, ...]) -> NodeState:
    if strays:
        return NodeState.UNREPORTED
    return NodeState.DRAINING if wish is NodeWish.DRAIN else NodeState.READY
