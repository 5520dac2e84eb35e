"""What an agent asks of the place where members run, and what it sees there."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from clutch.wire.ids import Fence, MemberId
from clutch.wire.messages import Exit, ExitCause, MemberStatus
from clutch.wire.resources import CUDA, ROCM, Slot

OUTPUT_CAP_BYTES = 4 * 2**30
SIGTERM = 15
REASON_MAX = 500
"""Characters of an exit's reason that a master hears."""


class Limits(msgspec.Struct, frozen=True):
    """What a member may use at most; 0 is no limit. CPU and memory count for its whole process tree."""

    millicpus: int = 0
    memory_bytes: int = 0
    open_files: int = 0
    core_bytes: int | None = None
    """Size of a core file; None leaves the machine's setting."""


class RunAs(msgspec.Struct, frozen=True):
    """The user a member runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class Pull(StrEnum):
    """When an image is fetched before a start."""

    MISSING = "missing"  # unless the node has it
    ALWAYS = "always"
    NEVER = "never"  # it must be there


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder or file of the node that the program sees. On the process backend ``target`` becomes a link."""

    source: str
    target: str
    read_only: bool = True


class ContainerSpec(msgspec.Struct, frozen=True):
    """One incarnation of a member: what to run, where, as whom, with what.

    ``environment`` is all the command sees, besides what ``slots`` adds (``lease_environment``) and what its image
    sets. It may hold secrets, and we never write it to disk.
    """

    member: MemberId
    fence: Fence
    argv: tuple[str, ...]
    cwd: str
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    limits: Limits = Limits()
    run_as: RunAs | None = None
    output_cap_bytes: int = OUTPUT_CAP_BYTES
    image: str = ""
    """For a way that has images; the process way refuses it. ``cwd`` is a folder of the node all the same: the
    container sees it, writable, under the same path."""
    pull: Pull = Pull.MISSING
    registry_auth: str = ""
    """``user:password`` for the image's registry; never written down."""
    mounts: tuple[Mount, ...] = ()
    shm_bytes: int = 0
    """Size of ``/dev/shm``; 0 leaves the engine's default."""


class ExitRecord(msgspec.Struct, frozen=True):
    """How an incarnation ended. ``code`` is its exit code, or minus the signal that killed it."""

    code: int
    cause: ExitCause
    reason: str = ""
    started_at: float = 0.0
    """0 when it never ran."""
    ended_at: float = 0.0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    cpu_s: float = 0.0

    def exit(self, metrics_sequence: int = 0) -> Exit:
        """As the master hears it; ``output_offset`` is the sum over both streams."""
        reached = self.stdout_bytes + self.stderr_bytes
        return Exit(self.code, self.cause, metrics_sequence, reached, self.reason[:REASON_MAX])


class Observed(msgspec.Struct, frozen=True):
    """One incarnation on this machine. ``notices`` say what was asked for and is not enforced here, and why."""

    member: MemberId
    fence: Fence
    status: MemberStatus
    exit: ExitRecord | None = None
    pid: int = 0
    started_at: float = 0.0
    notices: tuple[str, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Of the whole process tree: CPU time since its start, memory now."""

    cpu_s: float
    memory_bytes: int
    processes: int


def lease_environment(slots: tuple[Slot, ...]) -> dict[str, str]:
    """The variables that show a process exactly these devices; with none of a kind, it sees none of that kind."""
    cuda, rocm = (
        ",".join(slot.uuid or str(slot.index) for slot in slots if slot.kind == kind) for kind in (CUDA, ROCM)
    )
    return {"CUDA_VISIBLE_DEVICES": cuda, "ROCR_VISIBLE_DEVICES": rocm}
