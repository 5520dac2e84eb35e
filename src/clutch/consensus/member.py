"""One member, all but its threads and sockets: raft, write-ahead log, snapshots, clients, in the one right order.

It may know ``Files`` and ``Ports``, which the driver makes of real disks and sockets and the simulation of ones that
fail; it never waits, reads a clock or draws chance but from what it is given. So the order *persist, send, apply,
advance* and everything that rests on it is the same code in both.

``pump`` does what there is to do. While the disk works (``Ports.sync`` may answer later) nothing else is persisted, new
work gathers, and only messages that promise nothing leave; the next frame then holds all of it: that is group commit.

A disk or an invariant that fails ends the member: ``halted`` says why, and it does nothing from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

import msgspec

from clutch.consensus import identity, snapshots
from clutch.consensus.files import Files
from clutch.consensus.frames import Batch
from clutch.consensus.keys import KeyWindow, WindowState
from clutch.consensus.proposals import Done, Pending, Proposals
from clutch.consensus.raft import Raft, Ready, Recovered
from clutch.consensus.rules import Rules
from clutch.consensus.snapshots import INCOMING, Incoming, SnapshotHead, SnapshotPlan
from clutch.consensus.state import Limits, Role
from clutch.consensus.streams import Streams
from clutch.consensus.wal import LogIdentity, Wal
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Corrupt, Stale, TooLarge
from clutch.wire.raft import (
    Address,
    Configuration,
    Entry,
    EntryKind,
    InstallSnapshot,
    Introduction,
    PeerMessage,
    RaftId,
    Refusal,
    SnapshotAck,
    SnapshotChunk,
    SnapshotMeta,
    Status,
    VoteRequest,
)


class Ports(Protocol):
    """What a member needs of the world around it."""

    def send(self, message: PeerMessage) -> bool:
        """Put a message under way; False if it is certain to be lost."""
        ...

    def sync(self, name: str, size_bytes: int, done: Callable[[], None]) -> None:
        """Make a file durable, then call ``done``: at once, or later. Raises what the disk raises."""
        ...

    def applied(self, entries: list[Entry], upto: int) -> None:
        """Committed entries of clients, without repeats, in order."""
        ...

    def restored(self, snapshot: SnapshotMeta) -> None:
        """The application's state is now that of this snapshot."""
        ...

    def configured(self, configuration: Configuration) -> None:
        """The group has other members, or members elsewhere."""
        ...

    def introduced(self, addresses: tuple[Address, ...]) -> None:
        """A member of the group says that these are members, too."""
        ...


class Founding(msgspec.Struct, frozen=True):
    """How a new folder begins. Without voters it waits to be added as a learner; with a snapshot, a group that lost
    its majority begins again from it, under the next generation."""

    birth: str
    configuration: Configuration = Configuration()
    snapshot_index: int = 0
    snapshot_term: int = 0
    snapshot_body: bytes = b""
    snapshot_keys: WindowState = WindowState()


class Nature(msgspec.Struct, frozen=True):
    """What makes members differ: their limits, their chance, and (in tests only) their rules."""

    limits: Limits
    chance: Random
    rules: Rules


class OpenLog(msgspec.Struct, frozen=True):
    """A member's disk, read and whole."""

    identity: LogIdentity
    wal: Wal
    recovered: Recovered
    files: Files


def open_log(files: Files, group: str, me: RaftId, founding: Founding, limits: Limits) -> OpenLog:
    """The log in this folder, made first if the folder is new. Raises Corrupt, TooNew, NotAllowed, Stale, DiskFull."""
    known = identity.read_identity(files, group, me)
    if known is not None:
        wal, recovered = Wal.open(files, known, limits)
        return OpenLog(known, wal, recovered, files)
    made = LogIdentity(group, me, founding.birth)
    identity.write_identity(files, made, complete=False)
    meta = SnapshotMeta(founding.snapshot_index, founding.snapshot_term, founding.configuration)
    if meta.index:
        snapshots.write(files, SnapshotHead(meta, founding.snapshot_keys), [founding.snapshot_body])
    wal, recovered = Wal.create(files, made, meta, limits)
    identity.write_identity(files, made, complete=True)
    return OpenLog(made, wal, recovered, files)


class Member:
    """One member of one group, from its disk on."""

    def __init__(self, log: OpenLog, ports: Ports, nature: Nature) -> None:
        self.identity = log.identity
        self.me = log.identity.me
        self.limits = nature.limits
        self.wal = log.wal
        self.files = log.files
        self.raft = Raft(log.identity.group, self.me, log.recovered, nature.chance, nature.limits, nature.rules)
        self.halted: ClutchError | None = None
        self.ticks = 0
        self.proposals = Proposals(nature.limits.max_pending)
        self.streams = Streams(log.identity.group, self.me, log.files, nature.limits, ports.send)
        self._ports = ports
        # Contexts of reads start anywhere: an answer to an earlier life of this member must not fit a question of this.
        self._next_context = nature.chance.getrandbits(48)
        self._persisting: Ready | None = None
        self._pumping = False
        self._compactions: list[tuple[SnapshotMeta, Done]] = []
        self._repeats: list[int] = []  # indexes of applied entries whose key was applied before
        self._transfer: tuple[RaftId, int, Done] | None = None
        self._seen: tuple[int, RaftId | None, Role] = (-1, None, self.raft.state.role)
        self._configuration: Configuration | None = None
        self._start()

    def _start(self) -> None:
        """Take up the snapshot the log begins after."""
        snapshot = self.raft.state.log.snapshot
        if snapshot.index and snapshots.file_name(snapshot) not in self.files.names():
            raise Corrupt("the snapshot the log begins after is gone", object=snapshots.file_name(snapshot))
        if snapshot.index:
            snapshots.verify(self.files, snapshots.file_name(snapshot))
        self._load_keys(snapshot)
        snapshots.prune(self.files, (snapshots.file_name(snapshot),))
        if INCOMING in self.files.names():
            self.files.remove(INCOMING)
        if snapshot.index:
            self._ports.restored(snapshot)
        self._note_configuration()

    # ------------------------------------------------------------------------------------------- from peers

    def tick(self) -> None:
        """One tick of the clock."""
        if self.halted is not None:
            return
        self.ticks += 1
        self.raft.tick()
        state = self.raft.state
        for peer in self.streams.tick(state.term, self.ticks):
            self.raft.report_snapshot(peer, False)
        self.proposals.expire(self.ticks)
        retry_every = 2 * self.limits.election_ticks
        if self.ticks % self.limits.election_ticks == 0:
            self._retry(retry_every)
        if self._transfer is not None and self.ticks >= self._transfer[1]:
            self._end_transfer(Conflict("leadership was not handed over in time", object=str(self._transfer[0])))
        self.pump()

    def receive(self, message: PeerMessage) -> None:
        """Take a message; ``pump`` does what follows from it. Raises NotAllowed or Stale for one not meant for us."""
        if self.halted is not None:
            return
        state = self.raft.state
        if isinstance(message, SnapshotChunk):
            if message.receiver == self.me and message.term >= state.term and message.group == state.group:
                self._on_chunk(message)
        elif isinstance(message, SnapshotAck):
            over = self.streams.on_ack(message, state.term, self.ticks)
            if over is not None:
                self.raft.report_snapshot(message.sender, over)
        elif isinstance(message, Refusal):
            # Only "another node has this id" ends a member; a peer of another group, say, is merely not a peer.
            if message.birth == self.identity.birth and message.error.code == Conflict.code:
                self.halt(Conflict(message.error.cause, object=message.error.object, next_step=message.error.next_step))
        elif isinstance(message, Introduction):
            if message.group == state.group and message.receiver == self.me:
                self._ports.introduced(message.addresses)
        else:
            if isinstance(message, VoteRequest) and message.pre and state.hears_leader:
                self._introduce(message.sender)
            try:
                self.raft.step(message)
            except ClutchError as error:
                if error.blame == "bug" or isinstance(error, Corrupt):
                    self.halt(error)
                raise

    def _introduce(self, asker: RaftId) -> None:
        """It hears no leader while we do: perhaps it slept while the group changed, and does not know its key."""
        state = self.raft.state
        self._ports.send(Introduction(state.group, self.me, asker, state.term, state.log.configuration.addresses))

    def _on_chunk(self, message: SnapshotChunk) -> None:
        incoming = self.streams.on_chunk(message, self.raft.state.log.commit)
        if incoming is not None:
            self._ports.sync(INCOMING, incoming.total, lambda: self._install(incoming))

    def _install(self, incoming: Incoming) -> None:
        """The snapshot's file is durable: let the log follow it."""
        if self.halted is not None:
            return
        self.streams.finish(incoming)
        state = self.raft.state
        if incoming.term >= state.term:
            self.raft.step(InstallSnapshot(state.group, incoming.sender, self.me, incoming.term, incoming.meta))
        self.pump()

    # ----------------------------------------------------------------------------------------- from clients

    def append(self, key: str, data: bytes, since: int, timeout_ticks: int, done: Done) -> None:
        """Put data into the log; ``done`` gets the index at which it stands, or an error. Call ``pump`` after."""
        known = self.keys.index_of(key)
        if known is not None:
            done(known)
            return
        applied = self.raft.state.log.applied
        pending = Pending(key, data, applied if since < 0 else since, self.ticks + timeout_ticks, done)
        try:
            self._check_append(key, data)
            waiting = self.proposals.wait_append(pending)
        except ClutchError as error:
            done(error)
            return
        if waiting is pending:
            try:
                self._try(pending)
            except ClutchError as error:
                del self.proposals.appends[key]
                done(error)

    def read(self, timeout_ticks: int, done: Done) -> None:
        """``done`` gets an index that is applied here and not older than anything acknowledged before this call."""
        try:
            self._ask_read(self.ticks + timeout_ticks, done)
        except ClutchError as error:
            done(error)

    def change(self, propose: Callable[[], int], timeout_ticks: int, done: Done) -> None:
        """Propose a change of the group; ``done`` gets its index once it is committed."""
        try:
            index = propose()
            self.proposals.wait_change(index, self.raft.state.term, self.ticks + timeout_ticks, done)
        except ClutchError as error:
            done(error)

    def add_learner(self, address: Address, timeout_ticks: int, done: Done) -> None:
        self.change(lambda: self.raft.add_learner(address), timeout_ticks, done)

    def promote(self, member: RaftId, timeout_ticks: int, done: Done) -> None:
        self.change(lambda: self.raft.promote(member), timeout_ticks, done)

    def remove(self, member: RaftId, timeout_ticks: int, done: Done) -> None:
        self.change(lambda: self.raft.remove(member), timeout_ticks, done)

    def transfer(self, member: RaftId, timeout_ticks: int, done: Done) -> None:
        """Hand leadership over; ``done`` gets the applied index once the target leads."""
        try:
            self.raft.transfer(member)
            self._transfer = (member, self.ticks + timeout_ticks, done)
        except ClutchError as error:
            done(error)

    def applied_after(self, index: int, max_bytes: int) -> tuple[list[Entry], int] | None:
        """Entries of clients applied after ``index``, without repeats, and up to where; None if they are compacted."""
        log = self.raft.state.log
        if index < log.base.index:
            return None
        found = log.between(index + 1, log.applied + 1, max_bytes)
        upto = found[-1].index if found else index
        fresh = [e for e in found if e.kind == EntryKind.DATA]
        if self._repeats:
            repeats = dict.fromkeys(self._repeats)
            fresh = [e for e in fresh if e.index not in repeats]
        return fresh, upto

    # -------------------------------------------------------------------------------------------- snapshots

    @property
    def wants_snapshot(self) -> bool:
        return self.raft.state.log.size_bytes > self.limits.snapshot_after_bytes

    def plan_snapshot(self, index: int) -> SnapshotPlan:
        """What a snapshot of the application's state at ``index`` must say beside it."""
        log = self.raft.state.log
        if index > log.applied:
            raise BadRequest(f"index {index} is not applied yet", object="snapshot")
        if index <= log.snapshot.index:
            raise Stale(f"a snapshot of index {log.snapshot.index} is here already", object="snapshot")
        term = log.term(index)
        assert term is not None  # base <= snapshot < index <= applied
        meta = SnapshotMeta(index, term, log.configuration_at(index))
        entries = log.entries[log.snapshot.index - log.base.index : index - log.base.index]
        return SnapshotPlan(meta, self._keys_at_snapshot, entries, self.limits.key_window)

    def snapshot_saved(self, meta: SnapshotMeta, done: Done) -> None:
        """The file is durable: let the log begin later. Call ``pump`` after."""
        self._compactions.append((meta, done))

    # ----------------------------------------------------------------------------------------- the one order

    def pump(self) -> None:
        """Do everything there is to do now. Raises what ended the member, if something did."""
        if self.halted is not None or self._pumping:
            return
        self._pumping = True
        try:
            while self._persisting is None:
                if self._compactions:
                    self._compact()
                ready = self.raft.ready()
                if ready is None:
                    break
                self._send(ready.early)
                if ready.must_sync:
                    self._persist(ready)
                else:
                    self._finish(ready)
            if self._persisting is not None:
                self._send(self.raft.take_early())
        except ClutchError as error:
            self.halt(error)
            raise
        finally:
            self._pumping = False

    def halt(self, error: ClutchError) -> None:
        """Stop for good; whoever runs this member reads ``halted``."""
        if self.halted is None:
            self.halted = error

    def _persist(self, ready: Ready) -> None:
        size = self.wal.append(Batch(ready.hard_state, ready.entries, ready.snapshot))
        self._persisting = ready
        self._ports.sync(self.wal.current, size, self._on_persisted)

    def _on_persisted(self) -> None:
        ready, self._persisting = self._persisting, None
        if ready is None or self.halted is not None:
            return
        self._finish(ready)
        self.pump()

    def _finish(self, ready: Ready) -> None:
        """After persist: send, apply, advance."""
        self._send(ready.late)
        if ready.snapshot is not None:
            self._load_keys(ready.snapshot)
            self.wal.drop_old_segments()
            snapshots.prune(self.files, (snapshots.file_name(ready.snapshot), *self.streams.names_in_use))
            self._ports.restored(ready.snapshot)
        if ready.committed:
            self._apply(ready.committed)
        self.raft.advance(ready)
        state = self.raft.state
        for read in ready.reads:
            self.proposals.confirmed(read.context, read.index)
        self.proposals.serve_reads(state.log.applied)
        for context in ready.reads_failed:
            self._ask_again(context)
        if state.role is Role.LEADER:
            for peer, meta in ready.snapshots_wanted:
                self.streams.begin(peer, meta, state.term, self.ticks)
        self._note_leader()
        self._note_configuration()

    def _send(self, messages: Sequence[PeerMessage]) -> None:
        for message in messages:
            if not self._ports.send(message):
                self.raft.report_unreachable(message.receiver)

    def _apply(self, entries: list[Entry]) -> None:
        fresh: list[Entry] = []
        for entry in entries:
            if entry.kind == EntryKind.DATA:
                index = self.keys.take(entry)
                if index == entry.index:
                    fresh.append(entry)
                else:
                    self._repeats.append(entry.index)
                self.proposals.applied(entry, _FORGOTTEN if index is None else index)
            else:
                self.proposals.passed(entry.index, entry.term)
        self._ports.applied(fresh, entries[-1].index)

    # ---------------------------------------------------------------------------------------------- inside

    def _compact(self) -> None:
        waiting, self._compactions = self._compactions, []
        for meta, done in waiting:
            if meta.index <= self.raft.state.log.snapshot.index:
                done(Stale("a newer snapshot is here already", object="snapshot"))
                continue
            head, _ = snapshots.read_head(self.files, snapshots.file_name(meta))
            base = self.raft.compact(meta)
            self.wal.compact(meta, base)
            self._keys_at_snapshot = head.keys
            self._repeats = [i for i in self._repeats if i > base.index]
            snapshots.prune(self.files, (snapshots.file_name(meta), *self.streams.names_in_use))
            done(meta.index)

    def _load_keys(self, snapshot: SnapshotMeta) -> None:
        state = WindowState()
        if snapshot.index:
            state = snapshots.read_head(self.files, snapshots.file_name(snapshot))[0].keys
        self._keys_at_snapshot = state
        self.keys = KeyWindow(self.limits.key_window, state)

    def _check_append(self, key: str, data: bytes) -> None:
        if not key:
            raise BadRequest("an append needs a key", object="append")
        if len(data) > self.limits.max_entry_bytes or len(key) > self.limits.max_key_bytes:
            raise TooLarge(
                f"an entry may have {self.limits.max_entry_bytes} bytes, this one has {len(data)}",
                object=key[:64],
                next_step="Put the bytes into a blob and a pointer into the log.",
            )

    def _try(self, pending: Pending) -> None:
        """Propose it, or hand it to the leader, or leave it for when there is one."""
        state = self.raft.state
        pending.tried_at, pending.tried_term = self.ticks, state.term
        if state.role is Role.LEADER:
            self.raft.propose(pending.data, pending.key, pending.since)
        elif not self.raft.forward(pending.data, pending.key, pending.since):
            pending.tried_at = -1

    def _retry(self, every: int) -> None:
        """Try again what may have been lost. A leader's own log loses nothing within its term."""
        state = self.raft.state
        interval = 1 << 62 if state.role is Role.LEADER else every
        for pending in self.proposals.to_retry(self.ticks, state.term, interval):
            try:
                self._try(pending)
            except ClutchError:
                pending.tried_at = -1  # no room now; its deadline still stands
                break
        if state.role is not Role.LEADER:
            for context in self.proposals.reads_pending():
                self._ask_again(context)

    def _ask_read(self, deadline: int, done: Done) -> None:
        self._next_context += 1
        self.proposals.wait_read(self._next_context, deadline, done)
        if self.raft.state.leader is not None:
            self.raft.read(self._next_context)

    def _ask_again(self, context: int) -> None:
        waiting = self.proposals.unconfirmed(context)
        if waiting is not None:
            self._ask_read(*waiting)

    def _note_leader(self) -> None:
        """Whenever somebody else leads, or this member in another term, waits begin again there."""
        state = self.raft.state
        seen = (state.term, state.leader, state.role)
        if seen == self._seen:
            return
        was_leader = self._seen[2] is Role.LEADER
        self._seen = seen
        if was_leader and state.role is not Role.LEADER:
            self.streams.stop()
        if state.leader is None:
            return
        if self._transfer is not None and state.leader != self.me:
            self._end_transfer(state.log.applied if state.leader == self._transfer[0] else None)
        self._retry(1 << 62)
        for context in self.proposals.reads_pending():
            self._ask_again(context)

    def _end_transfer(self, outcome: int | ClutchError | None) -> None:
        if self._transfer is not None:
            target, _, done = self._transfer
            self._transfer = None
            done(Conflict("another member was elected", object=str(target)) if outcome is None else outcome)

    def _note_configuration(self) -> None:
        configuration = self.raft.state.log.configuration
        if configuration is not self._configuration:
            self._configuration = configuration
            self._ports.configured(configuration)

    def status(self, request_id: int = 0) -> Status:
        state = self.raft.state
        log = state.log
        return Status(
            request_id,
            state.group,
            self.me,
            state.role.value,
            state.term,
            state.leader,
            log.commit,
            log.applied,
            log.base.index + 1,
            log.last_index,
            log.snapshot.index,
            log.size_bytes,
            self.raft.members(),
            str(self.halted) if self.halted else state.why,
        )


_FORGOTTEN = Stale(
    "the key may have been applied too long ago to know",
    object="append",
    next_step="Read the log to see, then use a new key.",
)
