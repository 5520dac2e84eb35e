"""A lease: slots for a cell, held by a resident member, numbered so that a late user of them is refused.

(The slots of a trial or an RL worker are leased as long as the member lives; that lease is part of the member, with a
number from the same counters.) It may know who may have it and until when; it is free only when the agent says so.
"""

from __future__ import annotations

import msgspec

from clutch.core.machine import Table
from clutch.wire.ids import LeaseId, MemberId, RequestId, TaskId
from clutch.wire.messages import Phase
from clutch.wire.outcomes import LeaseEnd, LeaseState
from clutch.wire.schedule import Placement

TABLE = Table(
    "lease",
    {
        LeaseState.WANTED: (LeaseState.HELD, LeaseState.ENDED),
        LeaseState.HELD: (LeaseState.LINGERING, LeaseState.RECLAIMING, LeaseState.ENDED),
        LeaseState.LINGERING: (LeaseState.HELD, LeaseState.RECLAIMING, LeaseState.ENDED),
        LeaseState.RECLAIMING: (LeaseState.ENDED,),
        LeaseState.ENDED: (),
    },
)


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    lease: LeaseId
    task: TaskId
    members: tuple[MemberId, ...]
    """Who may have it; after the grant, the one who has."""
    slots: int
    kind: str
    order: int
    state: LeaseState
    asked_at: float
    wait_limit_s: float
    linger_s: float
    deadline: float
    """While it waits, lingers or is reclaimed: until when."""
    placement: Placement | None = None
    number: int = 0
    granted_at: float = 0.0
    uses: int = 0
    """How many cells have run on it, the present one included."""
    beneficiary: RequestId | None = None
    """For whom its slots are meant once they are given back."""
    ending_index: int = 0
    how: LeaseEnd | None = None

    @property
    def phase(self) -> Phase:
        return Phase.LEAVE if self.state is LeaseState.RECLAIMING else Phase.RUN


def moved(lease: Lease, to: LeaseState) -> Lease:
    TABLE.move(lease.state, to, f"lease {lease.lease}")
    return msgspec.structs.replace(lease, state=to)


def request_id(lease: LeaseId) -> RequestId:
    """The name under which a lease waits for its slots."""
    return RequestId(f"lease:{lease}")
