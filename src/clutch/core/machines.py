"""A machine of a pool's provisioner: asked for, launched, serving as a node, stopped, gone.

It may know what its provider and its node have said. It never knows why it is wanted: ``core.autoscale`` decides how
many there should be, and the state here is what was durably asked. The node of the same name is its agent's own affair;
the two meet only by that name.
"""

from __future__ import annotations

import msgspec

from clutch.core.machine import Table
from clutch.wire.ids import PoolName
from clutch.wire.machines import MachineId, StopReason
from clutch.wire.outcomes import MachineState

M = MachineState
TABLE = Table(
    "machine",
    {
        M.ASKED: (M.LAUNCHED, M.SERVING, M.STOPPING),
        M.LAUNCHED: (M.SERVING, M.STOPPING, M.GONE),
        M.SERVING: (M.ASKED, M.LAUNCHED, M.STOPPING, M.GONE),
        M.STOPPING: (M.GONE,),
        M.GONE: (),
    },
)

AWAITED = (MachineState.ASKED, MachineState.LAUNCHED)
"""States in which its agent has yet to report."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    machine: MachineId
    pool: PoolName
    state: MachineState
    asked_at: float
    since: float
    """Since when its agent is awaited, or it serves, or it is being stopped."""
    launched_at: float | None = None
    """When its provider said that it has it."""
    launched_index: int = 0
    """The fact that says so: a listing from before it need not show the machine."""
    instance: str = ""
    address: str = ""
    idle_since: float | None = None
    """Since when its node has held nothing; None: it holds something, or is no node."""
    reason: StopReason | None = None
    detail: str = ""

    @property
    def launch_pending(self) -> bool:
        """Whether its launch still waits in the outbox. An agent may report before its provider has answered."""
        return self.launched_at is None and self.state is not MachineState.STOPPING


class Setbacks(msgspec.Struct, frozen=True):
    """How a pool's launches go: failures in a row, and until when it asks for nothing."""

    count: int
    rest_until: float


def moved(machine: Machine, to: MachineState, at: float) -> Machine:
    TABLE.move(machine.state, to, f"machine {machine.machine}")
    waits_on = machine.state in AWAITED and to in AWAITED
    return msgspec.structs.replace(machine, state=to, since=machine.since if waits_on else at)
