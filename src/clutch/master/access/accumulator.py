"""Who held how many slots for how long, by day: folded from the journal's facts. Pure.

Everything that is held is charged up to one moment, ``charged_at``. Moving that moment on charges all of it; whatever
begins or ends at another moment is set right by the signed difference. So each second of each slot counts exactly
once, wherever the facts are cut, and what must be remembered between two runs is small: who holds what, and that one
moment. Days are UTC.

What was *used* comes from the agents' measurements. They are soft: a sample counts for the time since the one before
it, and what nobody measured is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from clutch.core.recorded import Recorded
from clutch.wire import facts as f
from clutch.wire.ids import MemberId, NodeId, TaskId
from clutch.wire.link import NodeUse
from clutch.wire.schedule import Placement

DAY_S = 86400.0
SAMPLE_MAX_S = 30.0
"""A sample counts for at most so long: after a silence nobody knows."""


class Account(msgspec.Struct, frozen=True, order=True):
    """Where something is charged to."""

    user: str
    workspace: str
    project: str
    pool: str


class OpenTask(msgspec.Struct, frozen=True):
    account: Account
    counted_day: int = -1
    """The last day it was counted on."""


class Holding(msgspec.Struct, frozen=True):
    """Slots of a node, held by a member or a lease. A member may hold none and still runs."""

    task: TaskId
    node: NodeId
    slots: tuple[int, ...]


class Charge(msgspec.Struct):
    """What is added to one day of one account."""

    held_s: float = 0.0
    used_s: float = 0.0
    tasks: int = 0


class Changes(msgspec.Struct):
    """What a store must write to be where the accumulator is."""

    charges: dict[tuple[int, Account], Charge] = msgspec.field(default_factory=dict)
    tasks: dict[TaskId, OpenTask | None] = msgspec.field(default_factory=dict)
    holdings: dict[str, Holding | None] = msgspec.field(default_factory=dict)


def split(start: float, end: float) -> Iterator[tuple[int, float]]:
    """(day, seconds) of a time span, cut at each midnight; negative seconds when it runs backwards."""
    low, high, sign = (start, end, 1.0) if start <= end else (end, start, -1.0)
    while low < high:
        day = int(low // DAY_S)
        until = min(high, (day + 1) * DAY_S)
        yield day, sign * (until - low)
        low = until


class Accumulator:
    """The accounts as of a journal index. ``take`` facts in order, ``advance`` the time, and collect ``changes``."""

    def __init__(self) -> None:
        self.index = 0
        self.charged_at = 0.0
        self.tasks: dict[TaskId, OpenTask] = {}
        self.holdings: dict[str, Holding] = {}
        self.changes = Changes()
        self._open: dict[Account, int] = {}
        """Slots held now, by account."""
        self._running: dict[TaskId, int] = {}
        """Members and leases at work now, by task."""
        self._counted_day = -1
        """The last day on which all that runs was counted."""
        self._slots: dict[tuple[NodeId, int], Account] = {}
        self._sampled_at: dict[NodeId, float] = {}

    @property
    def held(self) -> Mapping[Account, int]:
        """Slots held now, by account; nothing for those that hold none."""
        return self._open

    def load(self, index: int, charged_at: float, tasks: dict[TaskId, OpenTask], holdings: dict[str, Holding]) -> None:
        """Go on from what a store kept."""
        self.index, self.charged_at = index, charged_at
        self.tasks = dict(tasks)
        for name, holding in holdings.items():
            self._hold(name, holding)
        self.changes = Changes()

    def seed(self, index: int, at: float, tasks: dict[TaskId, OpenTask], holdings: dict[str, Holding]) -> None:
        """Go on from what is so now, where the rows in between are gone: what is held is charged from here on, or on
        from where it was, if it was known."""
        for name, held in list(self.holdings.items()):
            if holdings.get(name) != held:
                self._end(name, self.charged_at)
        for task in [task for task in self.tasks if task not in tasks]:
            self._end_task(task, self.charged_at)
        for task, found in tasks.items():
            if task not in self.tasks:
                self._set_task(task, found)
        self.advance(at)
        for name, holding in holdings.items():
            if name not in self.holdings:
                self._start(name, holding, at)
        self.index = index

    def take(self, recorded: Recorded) -> None:
        """One fact more. One that was taken before is left alone."""
        if recorded.index <= self.index:
            return
        self.advance(recorded.at)
        fact, at = recorded.fact, recorded.at
        match fact:
            case f.TaskSubmitted():
                spec = fact.spec
                account = Account(spec.owner, spec.workspace, spec.project, spec.pool)
                self._set_task(fact.task, OpenTask(account))
            case f.TaskEnded():
                self._end_task(fact.task, at)
            case f.AllocationGranted():
                for placed in fact.members:
                    placement = placed.placement
                    self._begin(MemberId(fact.task, placement.role, placement.rank), placement, at)
            case f.MemberGranted():
                self._begin(fact.member, fact.placed.placement, at)
            case f.LeaseGranted():
                self._start(f"lease {fact.lease}", _holding(fact.member.task, fact.placed.placement), at)
            case f.MemberExited() | f.MemberLost():
                self._end(f"member {fact.member}", at)
            case f.LeaseEnded():
                self._end(f"lease {fact.lease}", at)
            case f.NodeRemoved():
                self._sampled_at.pop(fact.node, None)
            case _:
                pass
        self.index = recorded.index

    def advance(self, now: float) -> None:
        """Charge everything held up to now. Time that runs backwards is not charged twice."""
        if now <= self.charged_at:
            return
        if self.charged_at:
            days = list(split(self.charged_at, now))
            for account, slots in self._open.items():
                for day, seconds in days:
                    self._charge(day, account).held_s += slots * seconds
            if days[-1][0] > self._counted_day:
                self._counted_day = days[-1][0]
                for task in self._running:
                    for day, _ in days:
                        self._count(task, day)
        self.charged_at = now

    def sample(self, use: NodeUse, now: float) -> None:
        """What an agent measured last on its slots. The same sample counts once."""
        before = self._sampled_at.get(use.node)
        self._sampled_at[use.node] = use.at
        span = use.at - before if before is not None else 0.0
        if not 0 < span <= SAMPLE_MAX_S:
            return
        for slot in use.slots:
            account = self._slots.get((use.node, slot.slot))
            if account is not None and slot.percent > 0:
                for day, seconds in split(now - span, now):
                    self._charge(day, account).used_s += seconds * min(slot.percent, 100) / 100

    def collect(self) -> Changes:
        """What changed since the last time; from here on it is the caller's to write."""
        changes, self.changes = self.changes, Changes()
        return changes

    def give_back(self, changes: Changes) -> None:
        """They could not be written: they are collected again, under what has changed since."""
        later, self.changes = self.changes, changes
        for (day, account), charge in later.charges.items():
            mine = self._charge(day, account)
            mine.held_s += charge.held_s
            mine.used_s += charge.used_s
            mine.tasks += charge.tasks
        self.changes.tasks.update(later.tasks)
        self.changes.holdings.update(later.holdings)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _charge(self, day: int, account: Account) -> Charge:
        return self.changes.charges.setdefault((day, account), Charge())

    def _begin(self, member: MemberId, placement: Placement, at: float) -> None:
        self._start(f"member {member}", _holding(member.task, placement), at)

    def _start(self, name: str, holding: Holding, at: float) -> None:
        task = self.tasks.get(holding.task)
        if task is None:
            return  # it was submitted before the first row we know: there is nobody to charge
        if name in self.holdings:
            self._end(name, at)
        self._hold(name, holding)
        self.changes.holdings[name] = holding
        for day, seconds in split(at, self.charged_at):
            self._charge(day, task.account).held_s += len(holding.slots) * seconds
        self._count(holding.task, int(at // DAY_S))

    def _hold(self, name: str, holding: Holding) -> None:
        task = self.tasks.get(holding.task)
        if task is None:
            return
        self.holdings[name] = holding
        self._running[holding.task] = self._running.get(holding.task, 0) + 1
        if holding.slots:
            self._open[task.account] = self._open.get(task.account, 0) + len(holding.slots)
        for slot in holding.slots:
            self._slots[holding.node, slot] = task.account

    def _end(self, name: str, at: float) -> None:
        holding = self.holdings.pop(name, None)
        if holding is None:
            return
        self.changes.holdings[name] = None
        account = self.tasks[holding.task].account
        for day, seconds in split(self.charged_at, at):
            self._charge(day, account).held_s += len(holding.slots) * seconds
        left = self._open.get(account, 0) - len(holding.slots)
        if left:
            self._open[account] = left
        else:
            self._open.pop(account, None)
        self._running[holding.task] -= 1
        if not self._running[holding.task]:
            del self._running[holding.task]
        for slot in holding.slots:
            self._slots.pop((holding.node, slot), None)

    def _end_task(self, task: TaskId, at: float) -> None:
        if task in self._running:
            for name in [name for name, held in self.holdings.items() if held.task == task]:
                self._end(name, at)
        if self.tasks.pop(task, None) is not None:
            self.changes.tasks[task] = None

    def _set_task(self, task: TaskId, found: OpenTask) -> None:
        self.tasks[task] = found
        self.changes.tasks[task] = found

    def _count(self, task: TaskId, day: int) -> None:
        """It ran on this day: one more task, once."""
        found = self.tasks[task]
        if day > found.counted_day:
            self._charge(day, found.account).tasks += 1
            self._set_task(task, msgspec.structs.replace(found, counted_day=day))


def _holding(task: TaskId, placement: Placement) -> Holding:
    return Holding(task, placement.node, placement.slots)
