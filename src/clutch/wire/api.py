"""What is asked and answered over HTTP about tasks, nodes and pools. JSON both ways; the SDK uses these very types.

Every list answers with a ``Page``: its items, and the cursor of the next page (empty at the end). Every error answers
with an ``ErrorView`` and the error's own status.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from clutch.wire.link import NodeUse
from clutch.wire.programs import Program
from clutch.wire.resources import Resources, Slot
from clutch.wire.specs import DEFAULT_PRIORITY, OnNodeLost, PoolSpec, Quota, RoleSpec
from clutch.wire.views import AllocationView, NodeView, TaskView

API = "/api/v1"
UPLOAD_MAX_BYTES = 256 * 2**20
PAGE_MAX = 1000
T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...]
    next: str = ""


# -- asking -------------------------------------------------------------------------------------------------------


class SubmitTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command for the cluster. Either ``resources`` and ``count`` (equal members of one role, ``main``) or ``roles``.

    ``key`` makes it safe to repeat: the same key gives the same task.
    """

    program: Program
    name: str = ""
    kind: str = "command"
    pool: str = "default"
    workspace: str = "default"
    project: str = ""
    resources: Resources = Resources()
    count: int = 1
    roles: tuple[RoleSpec, ...] = ()
    priority: int = DEFAULT_PRIORITY
    preemptible: bool = True
    leave_within_s: float = 30.0
    max_restarts: int = 0
    on_node_lost: OnNodeLost = OnNodeLost.WAIT
    excluded_nodes: tuple[str, ...] = ()
    key: str = ""


class SetPriority(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    priority: int


class SetCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    count: int


class SetSlots(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The slots of a node that get nothing new; empty enables all."""

    disabled: tuple[int, ...]


class TaskIds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Several tasks at once, each by id, unique beginning or name."""

    tasks: tuple[str, ...]


# -- answering ----------------------------------------------------------------------------------------------------


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    name: str


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one wish: ``task`` is its whole id, ``error`` why it was refused, empty when it was not."""

    task: str
    error: str = ""


class MovedTasks(msgspec.Struct, frozen=True):
    items: tuple[Moved, ...]


class CodeView(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    size_bytes: int


class TaskStory(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    lines: tuple[str, ...]


class WhyWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """Why something is not running: the code for programs, the words for people."""

    code: str
    detail: str
    position: int
    """In its pool's queue; 0 is next."""
    blockers: tuple[str, ...] = ()
    """What would have to end, where that is known."""


class MemberDetail(msgspec.Struct, frozen=True, kw_only=True):
    member: str
    role: str
    rank: int
    fence: str
    state: str
    node: str = ""
    slots: tuple[int, ...] = ()
    backend: str = ""
    doing: str = ""
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    slot_percent: int = -1
    exit_code: int | None = None
    exit_cause: str = ""
    exit_reason: str = ""
    notices: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


class TaskDetail(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskView
    project: str = ""
    program: Program | None = None
    """None for a task that ended and whose spec is no longer at hand."""
    exit_code: int | None = None
    """Of the last allocation's chief (or first failed) member; None while it runs."""
    waiting: WhyWaiting | None = None
    members: tuple[MemberDetail, ...] = ()
    allocations: tuple[AllocationView, ...] = ()


class WhyTask(msgspec.Struct, frozen=True, kw_only=True):
    """``clutch why TASK``: where it stands and how it came to that."""

    task: str
    state: str
    sentence: str
    """One sentence a person understands, whatever its state: waiting, running, ended."""
    waiting: WhyWaiting | None = None
    story: tuple[str, ...] = ()


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    name: str
    owner: str
    workspace: str
    pool: str
    priority: int
    slots: int
    submitted_at: float
    waiting: WhyWaiting


class NodeDetail(msgspec.Struct, frozen=True, kw_only=True):
    node: NodeView
    slots: tuple[Slot, ...] = ()
    disabled: tuple[int, ...] = ()
    use: NodeUse | None = None
    members: tuple[MemberDetail, ...] = ()


class PoolDetail(msgspec.Struct, frozen=True, kw_only=True):
    pool: PoolSpec
    nodes: int = 0
    slots: int = 0
    slots_held: int = 0
    running: int = 0
    waiting: int = 0


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of the journal, for people and programs. ``index`` is the cursor to go on from."""

    index: int
    at: float
    cause: str
    kind: str
    object: str = ""
    text: str = ""
    workspace: str = ""


class ProxyAddress(msgspec.Struct, frozen=True):
    """A path of the master that opens a task's port in a browser, for some hours and only for this user."""

    path: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """``serving``: this master leads. ``standby``: it waits to. Said to anybody, so it says no more."""

    status: str
    version: str


class MasterInfo(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    version: str
    term: int
    generation: int
    index: int
    holder: str
    store: str
    started_at: float
    nodes: int
    tasks: int
    promises: dict[str, str] = msgspec.field(default_factory=dict)
    """Which of P1-P8 holds here and to what extent, in words (``clutch doctor``)."""


class Quotas(msgspec.Struct, frozen=True):
    items: tuple[Quota, ...]
