"""An agent's brain: what is wanted on this node against what is observed here, and the difference as effects.

Pure: it knows no process, directory, device or socket. The hands tell it what they see and do what it says. It begins
with what the hands find on the machine (processes and leases outlive an agent), so start and restart are the same.

Whom it obeys: a ``Wanted`` counts only if it is addressed to this start of the agent and its (generation, term,
sequence) is not below one that was heard before. A member's process starts only under the highest fence seen for
that member.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, PoolName
from clutch.wire.messages import (
    Exit,
    ExitCause,
    Hello,
    MemberStatus,
    ObservedLease,
    ObservedMember,
    Phase,
    Refusal,
    Report,
    Wanted,
    WantedLease,
    WantedMember,
)
from clutch.wire.resources import Capacity

Key = tuple[MemberId, Fence]

# -- what the hands do --------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True):
    """Start this incarnation, if its directory can be made; if it exists, it was started before."""

    member: WantedMember


class AskLeave(msgspec.Struct, frozen=True):
    """Let the process know that it must leave, why, and by when."""

    member: WantedMember


class End(msgspec.Struct, frozen=True):
    """End this process group now. ``stray``: nobody wants it here at all."""

    member: MemberId
    fence: Fence
    stray: bool


class Forget(msgspec.Struct, frozen=True):
    """The master has taken over this exit record; its directory may go once its output is shipped."""

    member: MemberId
    fence: Fence


class HandOver(msgspec.Struct, frozen=True):
    """Give these slots to the member's interpreter."""

    lease: WantedLease


class TakeBack(msgspec.Struct, frozen=True):
    """Have the slots given back: by the interpreter itself until the deadline, by ending it from then on."""

    lease: LeaseId
    number: int
    deadline: float


class Complain(msgspec.Struct, frozen=True):
    """Tell the machine's operator why the master does not take this agent's reports."""

    refusal: Refusal


class Say(msgspec.Struct, frozen=True):
    """Report to the master."""

    report: Report


Effect = Start | AskLeave | End | Forget | HandOver | TakeBack | Complain | Say

# -- what it remembers --------------------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True):
    """One incarnation on this machine, as its shim's directory tells."""

    status: MemberStatus
    exit: Exit | None = None
    told_to_leave: bool = False


class Brain:
    """One start of an agent."""

    def __init__(
        self,
        node: NodeId,
        pool: PoolName,
        session: str,
        capacity: Capacity,
        found: Iterable[tuple[MemberId, Fence, Record]] = (),
        leases: Iterable[ObservedLease] = (),
    ) -> None:
        self.node = node
        self.pool = pool
        self.session = session
        self.capacity = capacity
        self.generation = 0
        self.term = 0
        self.greeting = 0
        self.wanted: Wanted | None = None
        self.records: dict[Key, Record] = {}
        self.leases: dict[LeaseId, int] = {lease.lease: lease.number for lease in leases}
        self._highest: dict[MemberId, Fence] = {}
        self._sequence = 0
        for member, fence, record in found:
            self._put(member, fence, record)

    # -- what may happen -----------------------------------------------------------------------------------------

    def greeted(self, hello: Hello) -> list[Effect]:
        """A master introduces itself. A higher term takes over; what an older one wanted is forgotten."""
        theirs, ours = (hello.generation, hello.term), (self.generation, self.term)
        if theirs < ours:
            return []
        if theirs > ours:
            self.generation, self.term, self.greeting = hello.generation, hello.term, 0
            self.wanted = None
        self.greeting = max(self.greeting, hello.greeting)
        return [self.report()]

    def ordered(self, wanted: Wanted) -> list[Effect]:
        """The master says what it wants here."""
        if wanted.node != self.node or wanted.session != self.session:
            return []
        if (wanted.generation, wanted.term) != (self.generation, self.term):
            return []
        if self.wanted is not None and wanted.sequence < self.wanted.sequence:
            return []
        self.wanted = wanted
        return [*self._reconcile(), self.report()]

    def refused(self, refusal: Refusal) -> list[Effect]:
        """The master cannot use what was reported; its operator must know. Reporting goes on: it may be mended."""
        return [Complain(refusal)]

    def started(self, member: MemberId, fence: Fence) -> list[Effect]:
        record = self.records.get((member, fence))
        if record is None or record.status is not MemberStatus.STARTING:
            return []
        self._put(member, fence, msgspec.structs.replace(record, status=MemberStatus.RUNNING))
        return [*self._reconcile(), self.report()]

    def exited(self, member: MemberId, fence: Fence, exit: Exit) -> list[Effect]:
        self._put(member, fence, Record(MemberStatus.EXITED, exit))
        return [*self._reconcile(), self.report()]

    def freed(self, lease: LeaseId, number: int) -> list[Effect]:
        """Nothing of ours is left on the lease's slots."""
        if self.leases.get(lease) == number:
            del self.leases[lease]
        return [*self._reconcile(), self.report()]

    def beat(self) -> list[Effect]:
        """Say again what is seen, and do again what was not done."""
        return [*self._reconcile(), self.report()]

    # -- the difference ------------------------------------------------------------------------------------------

    def report(self) -> Say:
        self._sequence += 1
        return Say(
            Report(
                node=self.node,
                pool=self.pool,
                session=self.session,
                sequence=self._sequence,
                generation=self.generation,
                term=self.term,
                greeting=self.greeting,
                wanted_sequence=self.wanted.sequence if self.wanted is not None else 0,
                capacity=self.capacity,
                members=tuple(ObservedMember(m, fence, r.status, r.exit) for (m, fence), r in self.records.items()),
                leases=tuple(ObservedLease(lease, number) for lease, number in self.leases.items()),
            )
        )

    def _put(self, member: MemberId, fence: Fence, record: Record) -> None:
        self.records[member, fence] = record
        if fence > self._highest.get(member, fence):
            self._highest[member] = fence
        self._highest.setdefault(member, fence)

    def _reconcile(self) -> list[Effect]:
        """What must be done so that the machine becomes what is wanted. Nothing, before a master has said so."""
        if self.wanted is None:
            return []
        effects: list[Effect] = []
        listed: dict[Key, WantedMember] = {(w.member, w.fence): w for w in self.wanted.members}
        for key, record in list(self.records.items()):
            wanted = listed.get(key)
            if wanted is None:
                effects.append(self._unwanted(key, record))
            else:
                effects += self._wanted(key, record, wanted)
        for key, wanted in listed.items():
            if key not in self.records:
                effects += self._missing(wanted)
        return [*effects, *self._reconcile_leases(self.wanted)]

    def _unwanted(self, key: Key, record: Record) -> Effect:
        member, fence = key
        if record.status is MemberStatus.EXITED:
            del self.records[key]
            return Forget(member, fence)
        return End(member, fence, stray=True)

    def _wanted(self, key: Key, record: Record, wanted: WantedMember) -> list[Effect]:
        if record.status is MemberStatus.EXITED:
            return []
        if wanted.phase is Phase.END:
            return [End(wanted.member, wanted.fence, stray=False)]
        if wanted.phase is Phase.LEAVE and not record.told_to_leave and record.status is MemberStatus.RUNNING:
            self.records[key] = msgspec.structs.replace(record, told_to_leave=True)
            return [AskLeave(wanted)]
        return []

    def _missing(self, wanted: WantedMember) -> list[Effect]:
        """Wanted and not here: start it, unless it is already on its way out or a later life of it was seen."""
        if wanted.fence < self._highest.get(wanted.member, wanted.fence) or wanted.phase is Phase.END:
            return []
        if wanted.phase is Phase.LEAVE:
            self._put(wanted.member, wanted.fence, Record(MemberStatus.EXITED, Exit(1, ExitCause.NEVER_STARTED)))
            return []
        self._put(wanted.member, wanted.fence, Record(MemberStatus.STARTING))
        return [Start(wanted)]

    def _reconcile_leases(self, wanted: Wanted) -> list[Effect]:
        effects: list[Effect] = []
        listed = {(lease.lease, lease.number): lease for lease in wanted.leases}
        for lease, number in self.leases.items():
            found = listed.get((lease, number))
            if found is None:
                effects.append(TakeBack(lease, number, deadline=0.0))
            elif found.phase is not Phase.RUN:
                effects.append(TakeBack(lease, number, found.deadline))
        for lease_wanted in wanted.leases:
            record = self.records.get((lease_wanted.member, lease_wanted.fence))
            alive = record is not None and record.status is MemberStatus.RUNNING
            if lease_wanted.lease not in self.leases and lease_wanted.phase is Phase.RUN and alive:
                self.leases[lease_wanted.lease] = lease_wanted.number
                effects.append(HandOver(lease_wanted))
        return effects
