"""What a member does for its local clients: append, read, change the group, hand leadership over.

No I/O; time is ticks. An append is proposed by a leader, forwarded by a follower, kept while there is no leader, and
tried again whenever that changes; it is over when the member's own log shows its key, or its deadline has passed.
"""

from __future__ import annotations

from collections.abc import Callable

from clutch.consensus.keys import KeyWindow
from clutch.consensus.proposals import Done, Pending, Proposals
from clutch.consensus.raft import Raft
from clutch.consensus.state import Limits, ReadState, Role
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Stale, TooLarge
from clutch.wire.raft import Address, Entry, RaftId

FORGOTTEN = Stale(
    "the key may have been applied too long ago to know",
    object="append",
    next_step="Read the log to see, then use a new key.",
)


class Requests:
    """The local clients' side of one member. After each call the member must be pumped."""

    def __init__(self, raft: Raft, limits: Limits, first_context: int) -> None:
        self.keys = KeyWindow(limits.key_window)
        self.waits = Proposals(limits.max_pending)
        self._raft = raft
        self._limits = limits
        self._now = 0
        # Contexts of reads start anywhere: an answer to an earlier life of this member must not fit a question of this.
        self._context = first_context
        self._transfer: tuple[RaftId, int, Done] | None = None

    # ------------------------------------------------------------------------------------------- from clients

    def append(self, key: str, data: bytes, since: int, timeout_ticks: int, done: Done) -> None:
        """Put data into the log; ``done`` gets the index at which it stands, or an error."""
        known = self.keys.index_of(key)
        if known is not None:
            done(known)
            return
        applied = self._raft.state.log.applied
        pending = Pending(key, data, applied if since < 0 else since, self._now + timeout_ticks, done)
        try:
            self._check(key, data)
            waiting = self.waits.wait_append(pending)
        except ClutchError as error:
            done(error)
            return
        if waiting is pending:
            try:
                self._try(pending)
            except ClutchError as error:
                del self.waits.appends[key]
                done(error)

    def read(self, timeout_ticks: int, done: Done) -> None:
        """``done`` gets an index that is applied here and not older than anything acknowledged before this call."""
        try:
            self._ask_read(self._now + timeout_ticks, done)
        except ClutchError as error:
            done(error)

    def add_learner(self, address: Address, timeout_ticks: int, done: Done) -> None:
        self._change(lambda: self._raft.add_learner(address), timeout_ticks, done)

    def promote(self, member: RaftId, timeout_ticks: int, done: Done) -> None:
        self._change(lambda: self._raft.promote(member), timeout_ticks, done)

    def remove(self, member: RaftId, timeout_ticks: int, done: Done) -> None:
        self._change(lambda: self._raft.remove(member), timeout_ticks, done)

    def transfer(self, member: RaftId, timeout_ticks: int, done: Done) -> None:
        """Hand leadership over; ``done`` gets the applied index once the target leads.

        One attempt lasts an election timeout, and on a busy machine that can pass before the target has its votes; so
        it is tried again until the caller's own time is over.
        """
        try:
            self._raft.transfer(member)
        except ClutchError as error:
            done(error)
            return
        self._end_transfer(Conflict("leadership is being handed to another", object=str(member)))
        self._transfer = (member, self._now + timeout_ticks, done)

    # ------------------------------------------------------------------------------------------ from the member

    def tick(self, now: int) -> None:
        self._now = now
        self.waits.expire(now)
        if now % self._limits.election_ticks == 0:
            self._retry(2 * self._limits.election_ticks)
        if self._transfer is not None and now >= self._transfer[1]:
            self._end_transfer(Conflict("leadership was not handed over in time", object=str(self._transfer[0])))
        self._hand_over_again()

    def applied(self, entry: Entry, index: int | None) -> None:
        """An entry was applied: new, a repeat of ``index``, or (None) refused as too old to know."""
        self.waits.applied(entry, FORGOTTEN if index is None else index)

    def reads(self, ready: list[ReadState], failed: list[int]) -> None:
        """Reads the core confirmed or gave up; serve those whose index is applied."""
        for read in ready:
            self.waits.confirmed(read.context, read.index)
        self.waits.serve_reads(self._raft.state.log.applied)
        for context in failed:
            self._ask_again(context)

    def leader_changed(self) -> None:
        """Somebody else leads, or this member in another term: what waits begins again there."""
        state = self._raft.state
        if state.leader is None:
            return
        if self._transfer is not None and state.leader != state.me:
            won = state.leader == self._transfer[0]
            lost = Conflict("another member was elected", object=str(self._transfer[0]))
            self._end_transfer(state.log.applied if won else lost)
        self._retry(1 << 62)
        for context in self.waits.reads_pending():
            self._ask_again(context)

    # ------------------------------------------------------------------------------------------------- inside

    def _check(self, key: str, data: bytes) -> None:
        if not key:
            raise BadRequest("an append needs a key", object="append")
        if len(data) > self._limits.max_entry_bytes or len(key) > self._limits.max_key_bytes:
            raise TooLarge(
                f"an entry may have {self._limits.max_entry_bytes} bytes, this one has {len(data)}",
                object=key[:64],
                next_step="Put the bytes into a blob and a pointer into the log.",
            )

    def _change(self, propose: Callable[[], int], timeout_ticks: int, done: Done) -> None:
        try:
            index = propose()
        except ClutchError as error:
            done(error)
            return
        self.waits.wait_change(index, self._raft.state.term, self._now + timeout_ticks, done)

    def _try(self, pending: Pending) -> None:
        """Propose it, or hand it to the leader, or leave it for when there is one."""
        state = self._raft.state
        pending.tried_at, pending.tried_term = self._now, state.term
        if state.role is Role.LEADER:
            self._raft.propose(pending.data, pending.key, pending.since)
        elif not self._raft.forward(pending.data, pending.key, pending.since):
            pending.tried_at = -1

    def _retry(self, every: int) -> None:
        """Try again what may have been lost. A leader's own log loses nothing within its term."""
        state = self._raft.state
        interval = 1 << 62 if state.role is Role.LEADER else every
        for pending in self.waits.to_retry(self._now, state.term, interval):
            try:
                self._try(pending)
            except ClutchError:
                pending.tried_at = -1  # no room now; its deadline still stands
                break
        if state.role is not Role.LEADER:
            for context in self.waits.reads_pending():
                self._ask_again(context)

    def _ask_read(self, deadline: int, done: Done) -> None:
        self._context += 1
        self.waits.wait_read(self._context, deadline, done)
        if self._raft.state.leader is not None:
            self._raft.read(self._context)

    def _ask_again(self, context: int) -> None:
        waiting = self.waits.unconfirmed(context)
        if waiting is not None:
            self._ask_read(*waiting)

    def _hand_over_again(self) -> None:
        """The core has given up an attempt that its client still waits for."""
        state = self._raft.state
        if self._transfer is None or state.role is not Role.LEADER or state.transfer_to is not None:
            return
        try:
            self._raft.transfer(self._transfer[0])
        except ClutchError as error:
            self._end_transfer(error)

    def _end_transfer(self, outcome: int | ClutchError) -> None:
        if self._transfer is not None:
            _, _, done = self._transfer
            self._transfer = None
            done(outcome)
