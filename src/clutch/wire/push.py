"""What a task says to its master, and hears from it: the push API. JSON both ways, by the token of one incarnation.

Every call may be repeated until it is answered, also at another master: it says the same thing twice. A call by an
incarnation that is no longer current is ``Stale`` (410): whoever hears that must stop.

A *long poll* (``rendezvous``, ``all_gather``, ``preemption``, ``names`` watch) waits at most ``POLL_MAX_S`` and then
answers with what is so now; the caller asks again until its own deadline.
"""

from __future__ import annotations

import msgspec

from clutch.wire.metrics import MetricBatch
from clutch.wire.resources import Resources
from clutch.wire.schedule import PreemptReason

RUN = "/api/v1/run"
BLOBS = "/api/v1/blobs"
UPLOADS = "/api/v1/uploads"
POLL_MAX_S = 60.0
MEETING_MAX_S = 24 * 3600.0
"""The longest that members may be willing to wait for each other."""
ADDRESSES_MAX = 16
PORTS_MAX = 64
GATHER_MAX_BYTES = 256 << 10
"""What one member may bring to a round of ``all_gather``."""
ROUNDS_KEPT = 8
"""A round that is complete is answered again until so many later ones are complete too."""
FILES_MAX = 100_000
MANIFEST_MAX_BYTES = 32 << 20
METADATA_MAX = 100
"""So many things are said of one checkpoint."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body of this API: an unknown field is an error, not a silent mistake."""


# -- meeting peers ------------------------------------------------------------------------------------------------


class Announce(Asked, frozen=True):
    """Here I am. Answered when all members of the allocation are there, or when the poll is over."""

    addresses: tuple[str, ...]
    """How peers reach this machine, the best first: host names or IP addresses."""
    ports: tuple[int, ...] = ()
    """Free ports of this machine; the chief's first one is where its group meets."""
    public_key: str = ""
    """CURVE's, in Z85; the secret stays inside."""
    slots: tuple[int, ...] = ()
    timeout_s: float = POLL_MAX_S
    within_s: float = 600.0
    """How long after the first arrival the members give up on each other. The first to come decides."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A member as its peers see it. ``rank`` counts over the whole allocation, ``role_rank`` in its role."""

    rank: int
    role: str
    role_rank: int
    node: str
    addresses: tuple[str, ...]
    ports: tuple[int, ...] = ()
    public_key: str = ""
    slots: tuple[int, ...] = ()
    local_rank: int = 0
    """Its place among the members on its node."""


class Roster(msgspec.Struct, frozen=True, kw_only=True):
    """Who is there. While not all are, ``ready`` is false and ``missing`` names those who are not."""

    ready: bool
    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1
    version: int = 0
    """Grows when a restarted member has brought a new address."""
    peers: tuple[Peer, ...] = ()
    missing: tuple[str, ...] = ()
    deadline: float = 0.0
    """When those who wait are told that the missing ones did not come (seconds since 1970, the master's clock)."""

    @property
    def chief(self) -> Peer:
        return self.peers[0]


class Gather(Asked, frozen=True):
    """What this member brings to a round. Rounds count up from 1, the same number for all members."""

    round: int
    data: bytes = b""
    timeout_s: float = POLL_MAX_S
    within_s: float = 600.0


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What each member brought, in the order of ranks; ``ready`` is false while some have not come."""

    ready: bool
    data: tuple[bytes, ...] = ()
    missing: tuple[str, ...] = ()


# -- leaving ------------------------------------------------------------------------------------------------------


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this member must leave, why, and by when (seconds since 1970, the master's clock)."""

    asked: bool
    reason: PreemptReason | None = None
    deadline: float = 0.0
    remaining_s: float = 0.0
    """Until the deadline as of this answer, for a machine whose clock differs."""
    acknowledged: bool = False


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """It is durable."""

    done: bool = True


# -- reporting ----------------------------------------------------------------------------------------------------


class PushMetrics(Asked, frozen=True):
    """Batches with consecutive sequence numbers. What the store already has is skipped."""

    batches: tuple[MetricBatch, ...]


class MetricsTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Every batch of this incarnation up to ``sequence`` is durable."""

    sequence: int


class Progress(Asked, frozen=True):
    """How far the work is, from 0 to 1. Soft: shown, never decided upon, forgotten with the master."""

    fraction: float
    message: str = ""


class ProgressView(msgspec.Struct, frozen=True, kw_only=True):
    fraction: float
    message: str
    member: str
    at: float


# -- checkpoints --------------------------------------------------------------------------------------------------


class BeginCheckpoint(Asked, frozen=True):
    """A checkpoint is about to be stored. The same step and label give the same id, however often it is begun."""

    step: int
    label: str = ""
    """Tells two checkpoints of the same step apart."""


class CheckpointBegun(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    prefix: str
    """Where its files belong in the workspace's blobs, if they are stored there: ``checkpoints/ID``."""
    workspace: str


class CheckpointFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a checkpoint, by its path in it; a path that ends with ``/`` is a folder with nothing in it.

    An empty folder is in the manifest only: no store keeps anything of it.
    """

    path: str
    size_bytes: int
    sha256: str

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/")


SHA256_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""What a manifest says of an empty file, and of a folder."""


class CommitManifest(Asked, frozen=True):
    """The checkpoint is whole in its store: these are its files."""

    step: int
    label: str = ""
    storage: str = ""
    """The address of the store that holds the files, without credentials; empty: the workspace's blobs."""
    files: tuple[CheckpointFile, ...] = ()
    metadata: dict[str, str] = {}


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint. ``files`` only where one is asked for by its id."""

    id: str
    task: str
    step: int
    epoch: int
    member: str
    committed_at: float
    size_bytes: int
    file_count: int
    storage: str = ""
    prefix: str = ""
    latest: bool = False
    """It is what a later start resumes from."""
    metadata: dict[str, str] = {}
    files: tuple[CheckpointFile, ...] = ()


# -- about itself -------------------------------------------------------------------------------------------------


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a member may know of itself."""

    task: str
    name: str
    kind: str
    workspace: str
    owner: str
    pool: str
    role: str
    role_rank: int
    rank: int
    size: int
    node: str
    slots: tuple[int, ...]
    resources: Resources
    """What each member of its role holds; for a split role, what this one does."""
    epoch: int
    incarnation: int
    restarts: int
    checkpoint: str = ""
    checkpoint_step: int = 0
    leave_within_s: float = 0.0
    preemption: Preemption = Preemption(asked=False)


# -- names --------------------------------------------------------------------------------------------------------


class AddName(Asked, frozen=True):
    """``key`` is chosen by the caller: the same add said again is answered with the same tenure."""

    name: str
    value: bytes = b""
    ttl_s: float | None = None
    replace: bool = False
    key: str = ""


class RenewName(Asked, frozen=True):
    name: str
    token: int
    value: bytes | None = None


class RemoveName(Asked, frozen=True):
    name: str
    token: int


class NameEntry(msgspec.Struct, frozen=True):
    name: str
    value: bytes
    token: int


class NameChange(msgspec.Struct, frozen=True):
    """What became of a name: its entry as it is now, or nothing."""

    name: str
    entry: NameEntry | None = None


class NameChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since a version, in the order it was last touched; ``whole``: this is everything there is."""

    version: str
    whole: bool = False
    changes: tuple[NameChange, ...] = ()


# -- served blobs -------------------------------------------------------------------------------------------------


class BlobView(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    size_bytes: int
    sha256: str
    modified_at: float


class BlobKey(msgspec.Struct, frozen=True):
    key: str
    modified_at: float


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an upload, named ``INDEX-SHA256``."""

    part: str
    size_bytes: int = -1
    """-1 where only its name is known."""


class CommitUpload(Asked, frozen=True):
    """Join these parts, in this order, into a blob."""

    key: str
    parts: tuple[str, ...]
    sha256: str
    create: bool = False


class SweepUploads(Asked, frozen=True):
    older_than_s: float = 24 * 3600.0


class Swept(msgspec.Struct, frozen=True):
    count: int


# -- before a member's command ------------------------------------------------------------------------------------

BOOT_CLUSTER = 117
"""Exit code of ``clutch.runtime.boot`` when the cluster failed it: no master answered, code did not arrive, peers did
not come, this incarnation is over. Not the user's failure."""
BOOT_REFUSED = 118
"""Exit code of ``clutch.runtime.boot`` for what trying again will not mend: an archive that is not safe to unpack."""
