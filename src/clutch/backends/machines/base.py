"""The contract of a place where machines come from. Every way passes ``clutch.testing.machines_suite``.

The rules the suite tries to break:

- ``launch`` is idempotent by the machine's name and token: however often it is called, by however many processes, there
  is one machine of that name. Its agent may report before ``launch`` returns.
- ``terminate`` is idempotent, and final: a launch of the same machine that comes later, perhaps from a master that was
  asleep, makes nothing and is ``Conflict``. A machine that was never launched is terminated by saying so.
- ``listing`` says what exists really, whoever made it and wherever that process is now. What is terminated is not
  listed; what has died by itself is listed as not running, or not at all.
- Machines live on when the process that launched them ends, however it ends.
- Errors are of ``clutch.wire.errors``. A user's error (a template that cannot work) is not tried again; others are.
"""

from __future__ import annotations

from typing import Protocol

from clutch.wire.errors import Conflict
from clutch.wire.machines import Instance, Order


class Machines(Protocol):
    """One pool's provider. The template, the cluster's name and the way to the master were given when it was opened."""

    lag_s: float
    """For so long after a launch, ``listing`` may not show the machine yet."""

    async def launch(self, order: Order) -> Instance:
        """The machine of this order, started if it is not there yet."""
        ...

    async def terminate(self, order: Order) -> None:
        """Gone when this returns, with everything on it."""
        ...

    async def listing(self) -> list[Instance]:
        """Every machine of this provider, of this cluster or another."""
        ...

    async def close(self) -> None:
        """Release what this process holds. The machines stay."""
        ...


def terminated(order: Order) -> Conflict:
    """The answer to a launch that comes after its own termination."""
    return Conflict(
        "it has been terminated, and a name is used once",
        object=f"machine {order.machine}",
        next_step="Nothing is needed: the provisioner asks for another one.",
    )
