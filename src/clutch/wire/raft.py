"""What replicas of one group say to each other, and what a local client says to its replica.

A **group** is one replicated log (a notebook session). A **raft id** is (generation, member, incarnation) and is never
used twice: a member that lost its log comes back under its next incarnation, a group restored from a snapshot under
its next generation. Messages are frozen, tagged, array-like msgpack; no field is ever a pickle.

Three vocabularies, in this order: the log (entries, configurations, snapshots), the peers' messages, the local client's
requests and answers.
"""

from __future__ import annotations

import enum

import msgspec

from clutch.wire.errors import ErrorView


class RaftId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One life of one member of a group."""

    generation: int
    member: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.member}.{self.incarnation}@g{self.generation}"


# ------------------------------------------------------------------------------------------------------- the log


class EntryKind(enum.IntEnum):
    DATA = 0  # bytes of a client
    NOOP = 1  # the first entry of a term: commits everything before it
    CONFIGURATION = 2  # data is an encoded Configuration
    DETACHED = 3  # on its way or on disk only: the data stands elsewhere, here is its length


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One line of the log. ``key`` makes a retry harmless; ``since`` is what its proposer had applied at first."""

    index: int
    term: int
    kind: EntryKind
    data: bytes
    key: str = ""
    since: int = 0


class Address(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Where a member is reached and how it is known: two endpoints and the public half of its CURVE key (Z85)."""

    id: RaftId
    control: str = ""
    bulk: str = ""
    public_key: str = ""


class Retired(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The highest incarnation a member name ever had in this group."""

    member: str
    incarnation: int


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """Who votes, who learns, where they are. All tuples are sorted."""

    voters: tuple[RaftId, ...] = ()
    learners: tuple[RaftId, ...] = ()
    addresses: tuple[Address, ...] = ()
    highest: tuple[Retired, ...] = ()

    @property
    def members(self) -> tuple[RaftId, ...]:
        return tuple(sorted((*self.voters, *self.learners)))


class SnapshotMeta(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot stands for: everything up to and with ``index``."""

    index: int
    term: int
    configuration: Configuration


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What a member must never forget. ``commit`` is a hint: losing it costs time, not safety."""

    term: int = 0
    vote: RaftId | None = None
    commit: int = 0


# -------------------------------------------------------------------------------------------- messages of peers


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What every message says first. A receiver refuses another group's or generation's."""

    group: str
    sender: RaftId
    receiver: RaftId
    term: int


class VoteRequest(Message, frozen=True, array_like=True, tag="vote"):
    """``pre`` asks only whether an election could be won and changes nothing; ``transfer``: the leader asked for it."""

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


class VoteReply(Message, frozen=True, array_like=True, tag="voted"):
    granted: bool
    pre: bool = False


class Append(Message, frozen=True, array_like=True, tag="append"):
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendReply(Message, frozen=True, array_like=True, tag="appended"):
    """Accepted: the log matches the leader's up to ``index``. Rejected: it does not at ``index``; see the hint."""

    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(Message, frozen=True, array_like=True, tag="beat"):
    """``read`` is the number of the newest read round this beat may confirm."""

    commit: int
    read: int = 0


class HeartbeatReply(Message, frozen=True, array_like=True, tag="beaten"):
    read: int = 0


class InstallSnapshot(Message, frozen=True, array_like=True, tag="install"):
    """The snapshot's bytes are already durable at the receiver (see SnapshotChunk); this makes its log follow."""

    snapshot: SnapshotMeta


class TimeoutNow(Message, frozen=True, array_like=True, tag="timeout"):
    """The leader asks the receiver to stand for election at once."""


class ReadRequest(Message, frozen=True, array_like=True, tag="read"):
    context: int


class ReadReply(Message, frozen=True, array_like=True, tag="readable"):
    context: int
    index: int


class Forward(Message, frozen=True, array_like=True, tag="forward"):
    """A proposal handed to the leader. No reply: the proposer sees the entry come back in its own log."""

    data: bytes
    key: str
    since: int


class SnapshotChunk(Message, frozen=True, array_like=True, tag="chunk"):
    """A piece of a snapshot file, on the bulk channel. ``total`` is the file's size."""

    snapshot: SnapshotMeta
    offset: int
    total: int
    data: bytes


class SnapshotAck(Message, frozen=True, array_like=True, tag="chunked"):
    """The receiver has everything before ``offset``; ``refused`` tells the sender to start again later."""

    index: int
    offset: int
    refused: bool = False


class Refusal(Message, frozen=True, array_like=True, tag="refused"):
    """A peer will not listen to the node with this ``birth``; the error says why (two nodes with one id, wrong key)."""

    birth: str
    error: ErrorView


class Introduction(Message, frozen=True, array_like=True, tag="introduce"):
    """Where the members are now, told to one that asks for votes because it has missed how the group changed."""

    addresses: tuple[Address, ...]


RaftMessage = (
    VoteRequest
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | InstallSnapshot
    | TimeoutNow
    | ReadRequest
    | ReadReply
    | Forward
)
"""What the pure core understands."""

PeerMessage = RaftMessage | SnapshotChunk | SnapshotAck | Refusal | Introduction
"""What travels between members."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of every message between members. ``birth`` names the log directory it comes from."""

    group: str
    sender: RaftId
    birth: str
    version: int = 1


# ------------------------------------------------------------------------------- a local client and its replica


class AppendRequest(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """Put data into the log. The same key again is answered with the first entry's index.

    ``since`` is the highest index the client knew when it first used the key, or -1 for what the replica has applied.
    """

    id: int
    key: str
    data: bytes
    timeout_s: float
    since: int = -1


class ReadBarrier(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Wait until this replica has applied everything committed before now."""

    id: int
    timeout_s: float


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Send every applied entry from this index on, after the snapshot if the index is inside it."""

    id: int
    from_index: int


class Consumed(msgspec.Struct, frozen=True, array_like=True, tag="consumed"):
    """The subscriber has handled everything up to this index: more may be sent."""

    index: int


class SaveSnapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """A file with the application's state at ``index``; the replica takes a copy and may drop the log before it."""

    id: int
    index: int
    path: str


class StatusRequest(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    id: int


class AddLearner(msgspec.Struct, frozen=True, array_like=True, tag="add"):
    id: int
    address: Address
    timeout_s: float


class Promote(msgspec.Struct, frozen=True, array_like=True, tag="promote"):
    id: int
    member: RaftId
    timeout_s: float


class Remove(msgspec.Struct, frozen=True, array_like=True, tag="remove"):
    id: int
    member: RaftId
    timeout_s: float


class Transfer(msgspec.Struct, frozen=True, array_like=True, tag="transfer"):
    id: int
    member: RaftId
    timeout_s: float


ClientRequest = (
    AppendRequest
    | ReadBarrier
    | Subscribe
    | Consumed
    | SaveSnapshot
    | StatusRequest
    | AddLearner
    | Promote
    | Remove
    | Transfer
)


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """A request succeeded. ``index`` is the entry's, the read's or the snapshot's."""

    id: int
    index: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """``leader`` names who leads, when that is what the caller needs."""

    id: int
    error: ErrorView
    leader: str = ""


class Applied(msgspec.Struct, frozen=True, array_like=True, tag="applied"):
    """Committed entries of clients, in log order. The log's own entries are left out, so indexes have gaps."""

    entries: tuple[Entry, ...]
    upto: int


class Restore(msgspec.Struct, frozen=True, array_like=True, tag="restore"):
    """Start from this snapshot: the application's bytes are in the file from ``offset`` on."""

    index: int
    path: str
    offset: int


class SnapshotWanted(msgspec.Struct, frozen=True, array_like=True, tag="wanted"):
    """The log has grown over its limit: please save a snapshot."""

    applied: int


class MemberStatus(msgspec.Struct, frozen=True, array_like=True):
    """How far one member is, as the leader sees it; all zero at a follower."""

    id: RaftId
    voter: bool
    match: int = 0
    state: str = ""
    active: bool = False


class Status(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    id: int
    group: str
    me: RaftId
    role: str
    term: int
    leader: RaftId | None
    commit: int
    applied: int
    first_index: int
    last_index: int
    snapshot_index: int
    log_bytes: int
    members: tuple[MemberStatus, ...]
    reason: str


ServerMessage = Done | Failed | Applied | Restore | SnapshotWanted | Status
