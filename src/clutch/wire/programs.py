"""What a member runs: the payload of a task of kind ``command``, and of everything built on one.

A program is what its submitter wrote down; secrets appear by name only. What must not be written down (secret values,
the member's token, the uid it runs as) is the ``Kit``, which an agent asks for at the moment of a start.
"""

from __future__ import annotations

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
