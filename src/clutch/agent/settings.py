"""What an agent is told at its start, as one frozen value. Whoever starts it reads the environment; it does not."""

from __future__ import annotations

from pathlib import Path

import msgspec

from clutch.agent.slots import SlotWish

HOST_NETWORK = "host"


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    masters: tuple[str, ...]
    """``http(s)://HOST:PORT`` of each master, tried in turn: the one that leads answers."""
    data: Path
    """Its folder: members' directories, their working folders, and the lock that keeps a second agent out."""
    node: str = ""
    """Empty: the host's name."""
    pool: str = "default"
    token: str = ""
    ca_file: Path | None = None
    """Certificates to believe for ``https``; None: those of the system."""
    slots: SlotWish = SlotWish()
    address: str = ""
    """How other machines reach this one; empty: members find it out."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    reserve_millicpus: int = 0
    reserve_memory_bytes: int = 0
    """What is kept back for the machine itself and not offered."""
    open_files: int = 0
    core_bytes: int | None = None
    """Limits of every member; 0 and None leave the machine's own."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Laid over the small environment every member begins with (PATH, HOME, LANG, TMPDIR)."""
    docker_socket: Path | None = Path("/var/run/docker.sock")
    """Where a container engine may answer; None: images are not run here."""
    docker_network: str = HOST_NETWORK
    allowed_mounts: tuple[Path, ...] = ()
    """Containers may mount only what is in these; empty: whatever whom they run as may read."""
    beat_s: float = 1.0
    """At least so often it reports."""
    measure_s: float = 2.0
    kit_timeout_s: float = 60.0
    """How long a start waits for its kit before it fails as never started."""
