"""What every machine of a pool is told: whose it is, how it reaches its masters, and as what it introduces itself."""

from __future__ import annotations

from pathlib import Path

import msgspec

from clutch.wire.ids import PoolName
from clutch.wire.machines import MachineId


class Site(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    pool: PoolName
    masters: tuple[str, ...]
    """Addresses that a machine of this pool can reach."""
    token_file: Path
    """Holds the enrolment token, readable by its owner only. It is never an argument: every user can read those."""
    folder: Path
    """Where this process keeps what it must remember of the pool's machines."""
    agent: tuple[str, ...]
    """The command that starts an agent on this very machine."""
    ca_file: Path | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """All that an agent started on this machine sees."""

    def arguments(self, machine: MachineId) -> list[str]:
        """What an agent is told besides its folder and its token."""
        addresses = [word for master in self.masters for word in ("--master", master)]
        return [*addresses, "--name", machine, "--pool", self.pool]
