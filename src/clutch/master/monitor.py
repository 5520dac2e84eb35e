"""What the agents measured last, and why members ended, for who wants to look. Soft and bounded: nothing is decided
from it, and a new master begins with none.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from clutch.wire.ids import Fence, MemberId, NodeId
from clutch.wire.link import MemberUse, NodeUse

NODES_MAX = 20_000
EXITS_MAX = 20_000


class Monitor:
    """``take`` for the links; the rest for the API and Prometheus."""

    def __init__(self) -> None:
        self._uses: OrderedDict[NodeId, NodeUse] = OrderedDict()
        self._heard_at: dict[NodeId, float] = {}
        self._members: dict[NodeId, dict[tuple[MemberId, Fence], MemberUse]] = {}
        self._exits: OrderedDict[tuple[MemberId, Fence], str] = OrderedDict()

    def take(self, node: NodeId, use: NodeUse) -> None:
        """An agent has measured."""
        self._uses[node] = use
        self._uses.move_to_end(node)
        self._heard_at[node] = time.time()
        self._members[node] = {(member.member, member.fence): member for member in use.members}
        while len(self._uses) > NODES_MAX:
            self.forget(next(iter(self._uses)))
        for note in use.exits:
            self._exits[note.member, note.fence] = note.reason
            self._exits.move_to_end((note.member, note.fence))
        while len(self._exits) > EXITS_MAX:
            self._exits.popitem(last=False)

    def forget(self, node: NodeId) -> None:
        """The node is removed."""
        self._uses.pop(node, None)
        self._heard_at.pop(node, None)
        self._members.pop(node, None)

    def node(self, node: NodeId) -> NodeUse | None:
        """What its agent said last; None if this master has not heard it."""
        return self._uses.get(node)

    def heard_at(self, node: NodeId) -> float:
        """When that was, on this master's clock; 0 for never."""
        return self._heard_at.get(node, 0.0)

    def nodes(self) -> list[NodeUse]:
        return list(self._uses.values())

    def member(self, node: NodeId, member: MemberId, fence: Fence) -> MemberUse | None:
        """What a member uses, as the agent of the node it is placed on said last."""
        return self._members.get(node, {}).get((member, fence))

    def members(self, node: NodeId) -> tuple[MemberUse, ...]:
        """All members of a node, as its agent said last."""
        return tuple(self._members.get(node, {}).values())

    def exit_reason(self, member: MemberId, fence: Fence) -> str:
        """Why it ended, in words; empty if nobody said so lately."""
        return self._exits.get((member, fence), "")
