"""What one member knows: its role, its term and vote, its log, its followers. And its outboxes.

Pure. The functions of ``election``, ``replication``, ``reads`` and ``membership`` change it; ``raft.Raft`` is the only
door to them. Chance comes in as a ``Random``; time as ticks.

A message waits in one of two outboxes. *Late* ones promise something (a vote, an accepted append) and leave only after
what they promise is durable. *Early* ones promise nothing and may leave while the disk still works.
"""

from __future__ import annotations

import enum
from random import Random

import msgspec

from clutch.consensus.log import Log
from clutch.consensus.progress import Progress
from clutch.consensus.rules import Rules
from clutch.wire.errors import IllegalMove
from clutch.wire.raft import HardState, RaftId, RaftMessage, SnapshotMeta


class Role(enum.Enum):
    FOLLOWER = "follower"  # hears a leader, or waits for one
    PRE_CANDIDATE = "pre-candidate"  # asks whether it could win; its term has not moved
    CANDIDATE = "candidate"  # asks for votes in a term of its own
    LEADER = "leader"  # the only one that appends in its term


MOVES: dict[Role, tuple[Role, ...]] = {
    Role.FOLLOWER: (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE),  # straight to candidate: asked by the leader
    Role.PRE_CANDIDATE: (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE),
    Role.CANDIDATE: (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER),
    Role.LEADER: (Role.FOLLOWER,),
}


class Limits(msgspec.Struct, frozen=True):
    """Every bound of a member. Ticks are the driver's; bytes count an entry's data, key and a fixed overhead."""

    heartbeat_ticks: int = 2
    election_ticks: int = 15
    """A follower stands for election after this many ticks of silence plus a draw of up to as many again."""
    max_entry_bytes: int = 16 << 20
    max_key_bytes: int = 256
    max_append_bytes: int = 1 << 20
    """An append carries at most this, or one entry."""
    max_inflight_messages: int = 64
    max_inflight_bytes: int = 16 << 20
    max_uncommitted_bytes: int = 64 << 20
    """Proposals over it are refused until some are committed."""
    max_log_bytes: int = 1 << 30
    """Proposals over it are refused until a snapshot is saved."""
    max_apply_bytes: int = 4 << 20
    max_pending_reads: int = 4096
    promote_lag: int = 1024
    """A learner may be made a voter when it is at most this many entries behind."""
    keep_entries: int = 2048
    keep_bytes: int = 8 << 20
    """Kept behind a snapshot, so that a follower a little behind needs no snapshot."""
    snapshot_after_bytes: int = 64 << 20
    """The application is asked for a snapshot when the log has grown over this."""
    key_window: int = 65_536
    """How many entries back a repeated key is recognised; older repeats are refused, never doubled."""
    segment_bytes: int = 1 << 20
    max_segment_bytes: int = 64 << 20
    """Of the write-ahead log's files: each is twice the one before, up to this."""
    chunk_bytes: int = 128 << 10
    chunks_inflight: int = 2
    """Of a snapshot that is being streamed: few and small, because commits share the disks and processors."""
    max_pending: int = 65_536
    """Appends and reads of local clients under way; more are refused."""


class ReadState(msgspec.Struct, frozen=True):
    """A read asked for under ``context`` may be served once ``index`` is applied."""

    context: int
    index: int


class State:
    """Everything one member knows. Fields are public to the modules of this package."""

    def __init__(self, group: str, me: RaftId, log: Log, limits: Limits, rules: Rules, chance: Random) -> None:
        self.group = group
        self.me = me
        self.log = log
        self.limits = limits
        self.rules = rules
        self.chance = chance
        self.role = Role.FOLLOWER
        self.term = 0
        self.vote: RaftId | None = None
        self.leader: RaftId | None = None
        self.durable = HardState()
        self.elapsed = 0  # ticks since a leader was heard, or since the last quorum check of a leader
        self.beat_elapsed = 0
        self.timeout = 0
        self.votes: dict[RaftId, bool] = {}
        self.progress: dict[RaftId, Progress] = {}
        self.transfer_to: RaftId | None = None
        self.change_after = 0  # a leader changes the configuration only once this index is committed
        self.uncommitted_bytes = 0  # of a leader's own proposals
        self.read_round = 0
        self.read_round_open = False  # reads may still join it; its heartbeats are not sent yet
        self.reads_confirming: list[tuple[int, RaftId, int, int]] = []  # (round, asker, context, index)
        self.reads_waiting: list[tuple[RaftId, int]] = []  # (asker, context), before the term's first commit
        self.reads_ready: list[ReadState] = []
        self.reads_failed: list[int] = []
        self.snapshots_wanted: list[tuple[RaftId, SnapshotMeta]] = []
        self.early: list[RaftMessage] = []
        self.late: list[RaftMessage] = []
        self.why = "started"
        self.draw_timeout()

    # ------------------------------------------------------------------------------------------- looking

    @property
    def is_voter(self) -> bool:
        return self.me in self.log.configuration.voters

    @property
    def quorum(self) -> int:
        return self.rules.quorum(len(self.log.configuration.voters))

    @property
    def hears_leader(self) -> bool:
        """Whether a leader was heard so lately that nobody else should stand. Liveness only: no promise rests on it."""
        return self.leader is not None and self.elapsed < self.limits.election_ticks

    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.commit)

    # ------------------------------------------------------------------------------------------ changing

    def move(self, role: Role, why: str) -> None:
        if role not in MOVES[self.role]:
            raise IllegalMove(
                f"{self.role.value} cannot become {role.value}", object=str(self.me), story=(self.why, why)
            )
        self.role = role
        self.why = why

    def draw_timeout(self) -> None:
        self.timeout = self.limits.election_ticks + self.chance.randrange(self.limits.election_ticks)

    def send_early(self, message: RaftMessage) -> None:
        """Send as soon as possible: a leader's words, which its own disk need not know first."""
        if self.rules.may_send_before_persist(self.durable.term, self.term):
            self.early.append(message)
        else:
            self.late.append(message)

    def send_late(self, message: RaftMessage) -> None:
        """Send after everything known now is durable."""
        self.late.append(message)
