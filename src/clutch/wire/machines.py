"""Machines that a pool's provisioner asks for: their names, what is said to a provider, and what it answers.

A template says where a pool's machines come from. Each way is its own type; ``way`` tells them apart in TOML and JSON::

    [pools.gpu.machines]
    way = "ssh"
    hosts = [{ name = "rack-1" }, { name = "rack-2", address = "10.0.0.2" }]
"""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

import msgspec

from clutch.wire.ids import PoolName

MachineId = NewType("MachineId", str)
"""Also the name of the node that its agent becomes. Made of pool, generation and a journal index: never used twice."""

LAUNCH, TERMINATE = "machine_launch", "machine_terminate"
"""Kinds of outbox items."""


class StopReason(StrEnum):
    """Why a machine is to go."""

    STOPPED = "stopped"  # off already: to be cleared away
    NEVER_CAME = "never_came"  # its agent did not report within the starting grace
    DISCONNECTED = "disconnected"  # silent beyond the disconnected grace
    IDLE = "idle"  # nothing to do for long enough
    OVER_MAX = "over_max"  # more machines than the pool may have
    LAUNCH_FAILED = "launch_failed"  # the provider refused; whatever it may have made is cleared away
    STRAY = "stray"  # the provider has it and nobody here asked for it, or not any more


class Order(msgspec.Struct, frozen=True):
    """What an outbox item of a machine holds. ``token`` makes a repeat harmless."""

    token: str
    machine: MachineId
    pool: PoolName
    instance: str = ""
    """The provider's name for it, where it is known."""


class Instance(msgspec.Struct, frozen=True):
    """A machine as its provider knows it."""

    machine: MachineId
    instance: str
    """The provider's name for it."""
    pool: PoolName
    cluster: str
    """Whose it is: a provider may be shared by several clusters."""
    address: str = ""
    running: bool = True
    """False: it is off, or its agent has ended; it still counts until it is terminated."""


def launch_token(machine: MachineId) -> str:
    return f"launch:{machine}"


def terminate_token(machine: MachineId) -> str:
    return f"terminate:{machine}"


# -- where a pool's machines come from ----------------------------------------------------------------------------


class LocalTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="way", tag="local"):
    """Agents as processes of this very machine, each with a folder of its own."""

    arguments: tuple[str, ...] = ()
    """More arguments of ``clutch agent``, such as how many artificial slots it has."""
    stop_s: float = 10.0
    """How long an agent may take to end after SIGTERM before it is killed."""


class SshHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that stands somewhere and can be reached. At most one agent of ours runs on it."""

    name: str
    address: str = ""
    """Empty: its name."""
    port: int = 22
    user: str = ""


class SshTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="way", tag="ssh"):
    """A list of hosts. ``agent`` is the command there that starts an agent, ``folder`` where it keeps its things."""

    hosts: tuple[SshHost, ...]
    agent: tuple[str, ...] = ("clutch", "agent")
    arguments: tuple[str, ...] = ()
    folder: str = ".clutch/machines"
    """Relative to the user's home, or absolute."""
    identity_file: str = ""
    known_hosts: str = ""
    """Empty: the user's own files. A host that is not known is refused, always."""
    connect_timeout_s: int = 10
    stop_s: float = 10.0


MachineTemplate = LocalTemplate | SshTemplate
