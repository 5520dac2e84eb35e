"""PyTorch's own launcher, told where everybody is. Nodes may have different numbers of processes: its agents tell each
other theirs.

Restarts are the cluster's (``max_restarts`` of the task), so torchrun does none. Every rank sees all devices of its
member and picks its own by ``LOCAL_RANK``, as programs for torchrun do.
"""

from __future__ import annotations

import msgspec

from clutch.runtime.launch.base import Launch, rank_words, supervisor_words
from clutch.runtime.launch.world import world_of, world_variables
from clutch.wire.errors import BadRequest
from clutch.wire.programs import TorchrunLaunch
from clutch.wire.push import Roster

TORCHRUN = "torchrun"
ADVICE = "torchrun is not installed in this environment: pip install torch"


class Torchrun:
    """``launch: torchrun``."""

    def __init__(self, said: TorchrunLaunch) -> None:
        self._said = said

    def launch(self, argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None) -> Launch:
        if roster is None:
            raise BadRequest("torchrun needs to know its peers, and there is no roster", object="launch")
        said = self._said
        world = world_of(roster, said.processes, oversubscribe=said.oversubscribe)
        variables = world_variables(roster, world)
        words = (
            TORCHRUN,
            f"--nnodes={world.members}",
            f"--nproc-per-node={world.local_size}",
            f"--node-rank={world.member}",
            f"--master-addr={variables['MASTER_ADDR']}",
            f"--master-port={variables['MASTER_PORT']}",
            "--max-restarts=0",
            *said.arguments,
            "--no-python",
            *rank_words(),
        )
        around = supervisor_words("around", {"grace": f"{said.grace_s:g}", "advice": ADVICE})
        return Launch((*around, *words), {**environment, **variables, **command_variable(argv)})


def command_variable(argv: tuple[str, ...]) -> dict[str, str]:
    """The command, past launchers that would take some of its words for theirs."""
    return {"CLUTCH_COMMAND": msgspec.json.encode(argv).decode()}
