"""What a member runs: the payload of a task of kind ``command``, and of everything built on one.

A program is what its submitter wrote down; secrets appear by name only. What must not be written down (secret values,
the member's token, the uid it runs as) is the ``Kit``, which an agent asks for at the moment of a start.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from clutch.wire.containers import OUTPUT_CAP_BYTES, SIGTERM, RunAs
from clutch.wire.containers import Mount as Mount
from clutch.wire.containers import Pull as Pull
from clutch.wire.ids import Fence, MemberId


class SecretUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret by its name, and the environment variable in which the program finds its value."""

    name: str
    variable: str


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A container image, and how it is run. Having one means Docker where an engine answers."""

    name: str
    pull: Pull = Pull.MISSING
    registry_secret: str = ""
    """The secret that holds ``user:password`` for the image's registry; empty: none needed."""
    shm_bytes: int = 0
    """Size of ``/dev/shm``; 0 leaves the engine's default."""


# -- how the processes of a member are started ------------------------------------------------------------------------

PROCESSES_MAX = 1024
GRACE_S = 3.0
Processes = Annotated[int, msgspec.Meta(ge=0, le=PROCESSES_MAX)]
Grace = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class PlainLaunch(msgspec.Struct, frozen=True, tag_field="name", tag="plain", forbid_unknown_fields=True):
    """The command once for each member."""


class SeveralLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all ways have in common that start several processes in one member. The number of processes counts over the
    whole allocation: a process is a *rank*."""

    processes: Processes = 0
    """In each member; 0: one for each of its slots, at least one."""
    oversubscribe: bool = False
    """More processes than slots are meant: several share a device."""
    grace_s: Grace = GRACE_S
    """When one rank has failed, the others of its member are asked to end, and killed so much later."""


class RanksLaunch(SeveralLaunch, frozen=True, tag_field="name", tag="ranks"):
    """Any command, once for each slot."""

    share_devices: bool = False
    """Each process sees all devices of its member, and picks its own by ``LOCAL_RANK``; else only its own."""


class TorchrunLaunch(SeveralLaunch, frozen=True, tag_field="name", tag="torchrun"):
    """PyTorch's launcher."""

    arguments: tuple[str, ...] = ()
    """More words for it; they outrank ours."""


class AccelerateLaunch(SeveralLaunch, frozen=True, tag_field="name", tag="accelerate"):
    """Hugging Face's launcher."""

    arguments: tuple[str, ...] = ()


class OwnLaunch(SeveralLaunch, frozen=True, tag_field="name", tag="class"):
    """A launcher in the program's own code."""

    spot: str = msgspec.field(name="class")
    """``MODULE:CLASS``."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Its keyword arguments."""


Launching = PlainLaunch | RanksLaunch | TorchrunLaunch | AccelerateLaunch | OwnLaunch


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command with its surroundings. All members of a task run the same program and tell themselves apart by
    ``CLUTCH_ROLE`` and ``CLUTCH_RANK``."""

    argv: tuple[str, ...]
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    code: str = ""
    """Digest of the uploaded working directory, as ``sha256:HEX``; empty: it starts in an empty folder."""
    secrets: tuple[SecretUse, ...] = ()
    image: Image | None = None
    mounts: tuple[Mount, ...] = ()
    needs: tuple[str, ...] = ()
    """Paths of the node, besides the mounts' sources, that must be readable before it starts."""
    ports: tuple[int, ...] = ()
    """Ports of the program that the proxy may reach. 0 asks for any free one: the n-th is in ``CLUTCH_PORT_n``."""
    idle_timeout_s: float = 0.0
    """Ended when nobody has used its ports for so long; 0: never."""
    rendezvous: bool = False
    """Meet the other members before starting; several members of one role always do."""
    output_cap_bytes: int = OUTPUT_CAP_BYTES
    leave_signal: int = SIGTERM
    """What its agent sends it when it is asked to leave; 0 for a program that hears of it from the master itself
    (``clutch.init``) and would only be killed by a signal while it saves its work."""
    launch: Launching = PlainLaunch()
    """What starts the processes of each member once the members have met."""


class Kit(msgspec.Struct, frozen=True, tag="kit"):
    """What a start needs and nobody writes down. Answers a ``KitRequest``; ``error`` says why there is none."""

    member: MemberId
    fence: Fence
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Secret values by variable, ``CLUTCH_TOKEN``, ``CLUTCH_MASTERS``; laid over the program's own environment."""
    run_as: RunAs | None = None
    registry_auth: str = ""
    """``user:password`` for the image's registry."""
    error: str = ""


class KitRequest(msgspec.Struct, frozen=True, tag="kit_request"):
    """An agent is about to start this incarnation. A stale fence is refused."""

    member: MemberId
    fence: Fence


def program_in(payload: bytes) -> Program | None:
    """The program in a task's payload; None for a task of a kind that has none."""
    try:
        return msgspec.msgpack.decode(payload, type=Program)
    except msgspec.MsgspecError:
        return None
