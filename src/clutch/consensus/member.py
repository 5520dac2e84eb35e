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
from typing import Protocol

from clutch.consensus import snapshots
from clutch.consensus.frames import Batch
from clutch.consensus.keys import KeyWindow, WindowState
from clutch.consensus.opening import Nature, OpenLog
from clutch.consensus.proposals import Done
from clutch.consensus.raft import Raft, Ready
from clutch.consensus.requests import Requests
from clutch.consensus.snapshots import INCOMING, Incoming, SnapshotPlan
from clutch.consensus.state import Role
from clutch.consensus.streams import Streams
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Corrupt, Stale
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


class Member:
    """One member of one group, from its disk on."""

    requests_type: type[Requests] = Requests

    def __init__(self, log: OpenLog, ports: Ports, nature: Nature) -> None:
        self.identity = log.identity
        self.me = log.identity.me
        self.limits = nature.limits
        self.wal = log.wal
        self.files = log.files
        self.raft = Raft(log.identity.group, self.me, log.recovered, nature.chance, nature.limits, nature.rules)
        self.halted: ClutchError | None = None
        self.ticks = 0
        self.requests = self.requests_type(self.raft, nature.limits, nature.chance.getrandbits(48))
        self.streams = Streams(log.identity.group, self.me, log.files, nature.limits, ports.send)
        self._ports = ports
        self._persisting: Ready | None = None
        self._pumping = False
        self._compactions: list[tuple[SnapshotMeta, Done]] = []
        self._repeats: list[int] = []  # indexes of applied entries whose key was applied before
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
        snapshots.clear(self.files, snapshot)
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
        self.requests.tick(self.ticks)
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

    # -------------------------------------------------------------------------------------------- the log

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
            snapshots.prune(self.files, ready.snapshot, self.streams.names_in_use)
            self._ports.restored(ready.snapshot)
        if ready.committed:
            self._apply(ready.committed)
        self.raft.advance(ready)
        state = self.raft.state
        self.requests.reads(ready.reads, ready.reads_failed)
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
                index = self.requests.keys.take(entry)
                if index == entry.index:
                    fresh.append(entry)
                else:
                    self._repeats.append(entry.index)
                self.requests.applied(entry, index)
            else:
                self.requests.waits.passed(entry.index, entry.term)
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
            snapshots.prune(self.files, meta, self.streams.names_in_use)
            done(meta.index)

    def _load_keys(self, snapshot: SnapshotMeta) -> None:
        state = WindowState()
        if snapshot.index:
            state = snapshots.read_head(self.files, snapshots.file_name(snapshot))[0].keys
        self._keys_at_snapshot = state
        self.requests.keys = KeyWindow(self.limits.key_window, state)

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
        self.requests.leader_changed()

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
