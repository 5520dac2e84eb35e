"""Hugging Face's launcher, which uses torchrun's parts underneath.

It divides the number of processes it is told by that of machines. Nodes may have different numbers of slots, so each is
told *its* number times that of machines; the parts underneath then count together what each node really has.
"""

from __future__ import annotations

from clutch.runtime.launch.base import Launch, rank_words, supervisor_words
from clutch.runtime.launch.torchrun import command_variable
from clutch.runtime.launch.world import world_of, world_variables
from clutch.wire.errors import BadRequest
from clutch.wire.programs import AccelerateLaunch
from clutch.wire.push import Roster

ACCELERATE = "accelerate"
ADVICE = "accelerate is not installed in this environment: pip install accelerate"


class Accelerate:
    """``launch: accelerate``."""

    def __init__(self, said: AccelerateLaunch) -> None:
        self._said = said

    def launch(self, argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None) -> Launch:
        if roster is None:
            raise BadRequest("accelerate needs to know its peers, and there is no roster", object="launch")
        said = self._said
        world = world_of(roster, said.processes, oversubscribe=said.oversubscribe)
        variables = world_variables(roster, world)
        total = world.local_size * world.members
        words = (
            ACCELERATE,
            "launch",
            f"--num_processes={total}",
            f"--num_machines={world.members}",
            f"--machine_rank={world.member}",
            f"--main_process_ip={variables['MASTER_ADDR']}",
            f"--main_process_port={variables['MASTER_PORT']}",
            "--same_network",
            "--mixed_precision=no",
            "--dynamo_backend=no",
            *(("--multi_gpu",) if total > 1 else ()),
            *said.arguments,
            "--no_python",
            *rank_words(),
        )
        around = supervisor_words("around", {"grace": f"{said.grace_s:g}", "advice": ADVICE})
        return Launch((*around, *words), {**environment, **variables, **command_variable(argv)})
