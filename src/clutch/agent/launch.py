"""From what is wanted to what is executed: command, environment, limits. Nothing here touches the machine.

What a program finds in its environment, each laid over the ones before: the small base of this machine, its own
``environment``, the ``CLUTCH_*`` that say who it is, its kit (secrets, token). ``docs/architecture/link.md`` has the
list.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from clutch.wire.containers import ContainerSpec, Limits, Mount, RunAs
from clutch.wire.errors import BadRequest, Conflict, Unavailable
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.messages import WantedMember
from clutch.wire.programs import Kit, PlainLaunch, Program
from clutch.wire.resources import Capacity, Slot

PROCESS, DOCKER = "process", "docker"
LAST_WORDS = "clutch-last-words"
"""In a member's TMPDIR: why boot gave up, or which of its ranks failed and what that one said last."""
_BOOT = (
    "import sys; sys.modules['typing_extensions'] = None; "  # msgspec would load it, with inspect and more: 9 ms
    "sys.path[1:1] = sys.argv[1].split(':'); from clutch.runtime.boot import start; start(sys.argv[2:])"
)
IMAGE_PYTHON = "python3"
"""By this name an image has the Python that starts its ranks."""
_IMAGE_BOOT = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]  # a file of the program must not take the place of Python's
try:
    from clutch.runtime.boot import start
except ImportError as missing:
    words = f"boot: the Python {sys.version.split()[0]} of the image has no clutch, which starts its ranks: {missing}"
    with open(sys.argv[1], "w") as file:
        file.write(words)
    sys.stderr.write(f"clutch {words}\\n")
    sys.exit(118)
start(sys.argv[2:])
"""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for every member of this machine."""

    node: NodeId
    pool: PoolName
    masters: tuple[str, ...]
    ca_file: str
    address: str = ""
    capacity: Capacity
    python: str
    environment: dict[str, str]
    open_files: int = 0
    core_bytes: int | None = None
    on_host_network: bool = True
    """Whether containers are where ``address`` is."""
    allowed_mounts: tuple[str, ...] = ()
    """Folders of this machine that containers may mount; empty: any."""
    own: RunAs | None = None
    """As whom a container runs that is not told; None: as its image says. An agent that is not root itself may hand out
    no more than it has."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What was made ready for one incarnation: its folders, the backend it runs on, its real ports."""

    backend: str
    cwd: str
    tmp: str
    home: str
    ports: tuple[int, ...] = ()


def read_program(payload: bytes, name: str) -> Program:
    """The program in a task's payload."""
    try:
        program = msgspec.msgpack.decode(payload, type=Program)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise BadRequest(f"its payload is not a program: {wrong}", object=name) from wrong
    if not program.argv:
        raise BadRequest("there is no command", object=name)
    return program


def backend_for(program: Program, available: Sequence[str], name: str) -> str:
    """Where it runs: an image means Docker, and nothing else will do."""
    if program.image is None:
        return PROCESS
    if DOCKER not in available:
        raise Conflict(
            f"it wants the image {program.image.name}, and no Docker engine answers on this node",
            object=name,
            next_step="Exclude the node, start Docker there, or leave the image out.",
        )
    return DOCKER


def boot_command(python: str) -> tuple[str, ...]:
    """What a command is put behind. It finds our packages where this agent has them, and nothing that the user's own
    variables (PYTHONPATH, PYTHONHOME) name: those are for the command."""
    folders = ":".join(folder for folder in sys.path if folder.startswith("/") and ":" not in folder)
    return (python, "-I", "-c", _BOOT, folders, "--")


def boots_inside(program: Program) -> bool:
    """Whether boot runs in the container itself: what starts the ranks must see the image, and holds their ports."""
    return program.image is not None and program.launch != PlainLaunch()


def image_boot_command(tmp: str) -> tuple[str, ...]:
    """The same for an image, which must have clutch. Unlike on the node it is found by whatever the image says."""
    return (IMAGE_PYTHON, "-c", _IMAGE_BOOT, f"{tmp}/{LAST_WORDS}", "--")


def needs_boot(program: Program, wanted: WantedMember) -> bool:
    """Whether something must happen inside before the command: code to fetch, peers to meet, ranks to start."""
    return bool(program.code) or program.rendezvous or wanted.members > 1 or program.launch != PlainLaunch()


def container_spec(
    wanted: WantedMember, program: Program, kit: Kit, around: Surroundings, place: Place
) -> ContainerSpec:
    argv = program.argv
    if boots_inside(program):
        argv = (*image_boot_command(place.tmp), *program.argv)
    elif needs_boot(program, wanted) and place.backend == PROCESS:  # for an image see ``agent.boot``
        argv = (*boot_command(around.python), *program.argv)
    return ContainerSpec(
        member=wanted.member,
        fence=wanted.fence,
        argv=argv,
        cwd=place.cwd,
        environment=_environment(wanted, program, kit, around, place),
        slots=_slots(wanted, around.capacity),
        limits=Limits(
            millicpus=wanted.millicpus,
            memory_bytes=wanted.memory_bytes,
            open_files=around.open_files,
            core_bytes=around.core_bytes,
        ),
        run_as=runs_as(program, kit, around),
        output_cap_bytes=program.output_cap_bytes,
        **_image(program, kit, around, place),
    )


def runs_as(program: Program, kit: Kit, around: Surroundings) -> RunAs | None:
    """None: as the agent, or in a container as its image says."""
    return kit.run_as or (around.own if program.image is not None else None)


def _image(program: Program, kit: Kit, around: Surroundings, place: Place) -> dict[str, Any]:
    """Besides what the program mounts, its container sees its temporary folder and the certificates it believes."""
    image = program.image
    if image is None:
        return {}
    theirs = {mount.target.rstrip("/") for mount in program.mounts}
    ours = [
        Mount(place.tmp, place.tmp, read_only=False),
        *([Mount(around.ca_file, around.ca_file)] * bool(around.ca_file)),
    ]
    return {
        "image": image.name,
        "pull": image.pull,
        "registry_auth": kit.registry_auth,
        "mounts": (*program.mounts, *(mount for mount in ours if mount.target not in theirs)),
        "shm_bytes": image.shm_bytes,
    }


def _slots(wanted: WantedMember, capacity: Capacity) -> tuple[Slot, ...]:
    here = {slot.index: slot for slot in capacity.slots}
    missing = [index for index in wanted.slots if index not in here]
    if missing:
        raise Unavailable(f"slot {missing[0]} is not on this machine any more", object=str(wanted.member))
    return tuple(here[index] for index in wanted.slots)


def _environment(
    wanted: WantedMember, program: Program, kit: Kit, around: Surroundings, place: Place
) -> dict[str, str]:
    member = wanted.member
    base = {"TMPDIR": place.tmp}  # what is left there when it dies, its agent finds; all else an image brings itself
    if place.backend == PROCESS:
        base = {"HOME": place.home, "TMPDIR": place.tmp, "PWD": place.cwd, **around.environment}
    ours = {
        "CLUTCH_TASK": member.task,
        "CLUTCH_ROLE": member.role,
        "CLUTCH_RANK": str(member.rank),
        "CLUTCH_FENCE": str(wanted.fence),
        "CLUTCH_MEMBERS": str(wanted.members),
        "CLUTCH_NODE": around.node,
        "CLUTCH_POOL": around.pool,
        "CLUTCH_MASTERS": ",".join(around.masters),
        "CLUTCH_CA_FILE": around.ca_file,
        "CLUTCH_ADDRESS": around.address if around.on_host_network or program.image is None else "",
        "CLUTCH_CHECKPOINT": wanted.checkpoint,
        "CLUTCH_CODE": program.code,
        "CLUTCH_RENDEZVOUS": "1" if program.rendezvous or wanted.members > 1 else "",
        "CLUTCH_LAUNCH": _launching(program),
        "CLUTCH_LAST_WORDS": f"{place.tmp}/{LAST_WORDS}" if needs_boot(program, wanted) else "",
        "CLUTCH_SLOTS": ",".join(map(str, wanted.slots)),
        "CLUTCH_LEASE": str(wanted.lease_number),
        **{f"CLUTCH_PORT_{number}": str(port) for number, port in enumerate(place.ports)},
    }
    kept = {name: value for name, value in ours.items() if value}
    return {**base, **program.environment, **kept, **kit.environment}


def _launching(program: Program) -> str:
    """For boot; nothing where the command itself is all there is to start."""
    return "" if program.launch == PlainLaunch() else msgspec.json.encode(program.launch).decode()
