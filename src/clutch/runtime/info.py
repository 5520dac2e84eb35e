"""What a member is told about itself: its environment, read once, into one frozen value.

The only place of ours besides the command line that touches ``os.environ``. The agent that starts a member writes these
variables (``docs/architecture/push.md`` lists them); ``boot`` adds those that say who its peers are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from clutch.wire.errors import BadRequest

MEET_WITHIN_S = 600.0
FLUSH_WITHIN_S = 60.0


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of one member."""

    task: str = ""
    role: str = "main"
    role_rank: int = 0
    fence: str = ""
    members: int = 1
    node: str = ""
    pool: str = ""
    masters: tuple[str, ...] = ()
    ca_file: str = ""
    token: str = ""
    checkpoint: str = ""
    code: str = ""
    """Digest of its working directory, ``sha256:HEX``; empty: none."""
    rendezvous: bool = False
    slots: tuple[int, ...] = ()
    lease_number: int = 0
    ports: tuple[int, ...] = ()
    address: str = ""
    """How peers reach this machine, if the agent was told; else it is found out."""
    cache: str = ""
    """A folder in which members of one user share what they fetched; empty: one in ``/tmp``."""
    meet_within_s: float = MEET_WITHIN_S
    rank: int = 0
    size: int = 1
    roster_file: str = ""
    """Written by ``boot``: everybody's address and public key, as JSON."""
    secret_key: str = ""
    process_rank: int = 0
    """Counts processes: a launcher such as torchrun starts several in one member (``RANK``); else as ``rank``."""
    process_size: int = 1
    local_rank: int = 0
    last_words: str = ""
    """A file for why this process ended, where an exit code does not tell."""
    trial: str = ""
    """JSON of a ``TrialInfo``; empty: the task is no trial."""
    storage_secret: str = ""
    """What the secret of its storage holds, if it has one."""
    tmp: str = ""
    """A folder for what need not outlive this incarnation; empty: the machine's own."""
    flush_within_s: float = FLUSH_WITHIN_S
    """How long a program that ends waits for a master that is away to take its last reports."""
    hparams: str = ""
    """JSON, for a program that runs by itself."""
    resume: str = ""
    """The folder of an earlier run, for a program that runs by itself."""
    detached: bool = False

    @property
    def on_cluster(self) -> bool:
        """Whether there is a master to talk to."""
        return bool(self.task and self.masters and self.token)

    @property
    def epoch(self) -> int:
        """Which run of its task it is, from 1, as its fence says."""
        found = re.search(r"e(\d+)", self.fence)
        return int(found[1]) if found else 1

    def __repr__(self) -> str:
        return f"Info(task={self.task!r}, role={self.role!r}, role_rank={self.role_rank}, fence={self.fence!r})"


def read_info(environment: Mapping[str, str] | None = None) -> Info:
    """What the environment says. ``BadRequest`` names a variable that cannot be read."""
    found = environment if environment is not None else os.environ
    reader = _Reader(found)
    masters = tuple(address.strip() for address in found.get("CLUTCH_MASTERS", "").split(",") if address.strip())
    return Info(
        task=found.get("CLUTCH_TASK", ""),
        role=found.get("CLUTCH_ROLE", "main"),
        role_rank=reader.whole("CLUTCH_RANK", 0),
        fence=found.get("CLUTCH_FENCE", ""),
        members=reader.whole("CLUTCH_MEMBERS", 1),
        node=found.get("CLUTCH_NODE", ""),
        pool=found.get("CLUTCH_POOL", ""),
        masters=masters,
        ca_file=found.get("CLUTCH_CA_FILE", ""),
        token=found.get("CLUTCH_TOKEN", ""),
        checkpoint=found.get("CLUTCH_CHECKPOINT", ""),
        code=found.get("CLUTCH_CODE", ""),
        rendezvous=found.get("CLUTCH_RENDEZVOUS", "") not in ("", "0"),
        slots=reader.wholes("CLUTCH_SLOTS"),
        lease_number=reader.whole("CLUTCH_LEASE", 0),
        ports=reader.numbered("CLUTCH_PORT_"),
        address=found.get("CLUTCH_ADDRESS", ""),
        cache=found.get("CLUTCH_CACHE", ""),
        meet_within_s=reader.seconds("CLUTCH_MEET_WITHIN_S", MEET_WITHIN_S),
        rank=reader.whole("CLUTCH_WORLD_RANK", 0),
        size=reader.whole("CLUTCH_WORLD_SIZE", 1),
        roster_file=found.get("CLUTCH_ROSTER_FILE", ""),
        secret_key=found.get("CLUTCH_SECRET_KEY", ""),
        process_rank=reader.theirs("RANK", "CLUTCH_WORLD_RANK", 0),
        process_size=reader.theirs("WORLD_SIZE", "CLUTCH_WORLD_SIZE", 1),
        local_rank=reader.theirs("LOCAL_RANK", "", 0),
        last_words=found.get("CLUTCH_LAST_WORDS", ""),
        trial=found.get("CLUTCH_TRIAL", ""),
        storage_secret=found.get("CLUTCH_STORAGE_SECRET", ""),
        tmp=found.get("TMPDIR", ""),
        flush_within_s=reader.seconds("CLUTCH_FLUSH_WITHIN_S", FLUSH_WITHIN_S),
        hparams=found.get("CLUTCH_HPARAMS", ""),
        resume=found.get("CLUTCH_RESUME", ""),
        detached=found.get("CLUTCH_DETACHED", "") not in ("", "0"),
    )


def inherited() -> dict[str, str]:
    """A copy of the whole environment, for a command that is about to replace this process."""
    return dict(os.environ)


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def whole(self, name: str, otherwise: int) -> int:
        said = self._environment.get(name, "")
        if not said:
            return otherwise
        if not said.isascii() or not said.isdecimal() or len(said) > 18:
            raise _wrong(name, said, "a whole number")
        return int(said)

    def theirs(self, name: str, ours: str, otherwise: int) -> int:
        """What a launcher wrote, which is not ours to check; what we wrote where it says nothing of use."""
        said = self._environment.get(name, "")
        if said.isascii() and said.isdecimal() and len(said) <= 9:
            return int(said)
        return self.whole(ours, otherwise) if ours else otherwise

    def wholes(self, name: str) -> tuple[int, ...]:
        said = self._environment.get(name, "")
        parts = [part for part in said.split(",") if part]
        if not all(part.isascii() and part.isdecimal() and len(part) <= 18 for part in parts):
            raise _wrong(name, said, "whole numbers with commas between them")
        return tuple(map(int, parts))

    def numbered(self, prefix: str) -> tuple[int, ...]:
        """``PREFIX0``, ``PREFIX1`` and so on, as far as they go."""
        found: list[int] = []
        while f"{prefix}{len(found)}" in self._environment:
            found.append(self.whole(f"{prefix}{len(found)}", 0))
        return tuple(found)

    def seconds(self, name: str, otherwise: float) -> float:
        said = self._environment.get(name, "")
        try:
            value = float(said) if said else otherwise
        except ValueError:
            value = -1.0
        if not 0 < value < 1e6:
            raise _wrong(name, said, "seconds above 0")
        return value


def _wrong(name: str, said: str, wanted: str) -> BadRequest:
    return BadRequest(f"{said[:80]!a} is not {wanted}", object=f"environment variable {name}")
