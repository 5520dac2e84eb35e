"""A member: one process group of an allocation, and each start of it an incarnation.

It may know where it is placed and what its agent observed of it. Resources are held from PLACED until EXITED or LOST:
an exit record proves that the process is gone, and a lost member's node is closed until its agent has shown that
nothing of it is left.
"""

from __future__ import annotations

import msgspec

from clutch.core.machine import Table
from clutch.wire.ids import Epoch, Fence, Incarnation, MemberId, RequestId
from clutch.wire.messages import Exit, Phase
from clutch.wire.outcomes import MemberState
from clutch.wire.schedule import Placement, PreemptReason

M = MemberState
TABLE = Table(
    "member",
    {
        M.RESTING: (M.WANTED, M.LOST),
        M.WANTED: (M.PLACED, M.LOST),
        M.PLACED: (M.STARTING, M.RUNNING, M.LEAVING, M.ENDING, M.EXITED, M.LOST),
        M.STARTING: (M.RUNNING, M.LEAVING, M.ENDING, M.EXITED, M.LOST),
        M.RUNNING: (M.LEAVING, M.ENDING, M.EXITED, M.LOST),
        M.LEAVING: (M.ENDING, M.EXITED, M.LOST),
        M.ENDING: (M.EXITED, M.LOST),
        M.EXITED: (M.WANTED, M.RESTING),
        M.LOST: (M.WANTED, M.RESTING),
    },
)

PRESENT = (
    MemberState.PLACED,
    MemberState.STARTING,
    MemberState.RUNNING,
    MemberState.LEAVING,
    MemberState.ENDING,
)
"""States in which it holds resources on its node."""
SEEN = (MemberState.STARTING, MemberState.RUNNING, MemberState.LEAVING, MemberState.ENDING)
ABSENT = (MemberState.RESTING, MemberState.WANTED)
"""It has no place yet, and will get one."""
GONE = (MemberState.EXITED, MemberState.LOST)


class Member(msgspec.Struct, frozen=True, kw_only=True):
    member: MemberId
    epoch: Epoch
    incarnation: Incarnation
    state: MemberState
    placement: Placement | None = None
    lease_number: int = 0
    observed: bool = False
    """Whether its agent has ever shown it: one that was and no longer is, has vanished."""
    failures: int = 0
    """Of this member alone, for roles whose members start again one by one."""
    setbacks: int = 0
    """How often in a row infrastructure failed it."""
    setback: str = ""
    """The last of them, in words."""
    rest_until: float = 0.0
    placed_at: float = 0.0
    exit: Exit | None = None
    leave_reason: PreemptReason | None = None
    deadline: float = 0.0
    ending_index: int = 0
    """The journal index from which it was wanted gone: a report that reflects it and does not list the member proves
    that it never started."""
    metrics_reached: int = 0
    output_reached: int = 0

    def fence(self, generation: int) -> Fence:
        return Fence(generation, self.epoch, self.incarnation)

    @property
    def phase(self) -> Phase:
        if self.state is MemberState.ENDING:
            return Phase.END
        return Phase.LEAVE if self.state is MemberState.LEAVING else Phase.RUN

    @property
    def flushed(self) -> bool:
        """Whether the store has everything this member sent, as far as its exit record knows."""
        if self.exit is None:
            return True
        return self.metrics_reached >= self.exit.metrics_sequence and self.output_reached >= self.exit.output_offset


def moved(member: Member, to: MemberState) -> Member:
    TABLE.move(member.state, to, f"member {member.member}")
    return msgspec.structs.replace(member, state=to)


def request_id(member: MemberId) -> RequestId:
    """The name under which a single member waits for a place."""
    return RequestId(str(member))
