"""Slot-seconds are counted once, wherever the facts are cut; and midnight divides them."""

from random import Random

import pytest

from clutch.core.recorded import Recorded
from clutch.master.access.accumulator import DAY_S, Account, Accumulator, Changes, split
from clutch.wire import facts as f
from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, PoolName, TaskId
from clutch.wire.link import NodeUse, SlotUse
from clutch.wire.messages import Exit
from clutch.wire.outcomes import EndReason, LeaseEnd
from clutch.wire.resources import Resources
from clutch.wire.schedule import Placement
from clutch.wire.specs import Members, RoleSpec, TaskSpec

START = 20_000 * DAY_S
Sums = dict[tuple[int, Account], list[float]]


def spec(owner: str = "ada", workspace: str = "vision", project: str = "") -> TaskSpec:
    role = RoleSpec("main", Members(1, Resources(slots=1)))
    return TaskSpec(
        kind="command", name="t", pool=PoolName("gpu"), roles=(role,), owner=owner, workspace=workspace, project=project
    )


def placed(rank: int, slots: tuple[int, ...], node: str = "n") -> f.Placed:
    return f.Placed(Placement("main", rank, NodeId(node), slots), 1)


class Book:
    """Facts fed to an accumulator, and what it charged."""

    def __init__(self, accounts: Accumulator | None = None) -> None:
        self.accounts = accounts or Accumulator()
        self.index = self.accounts.index
        self.sums: Sums = {}

    def say(self, at: float, *facts: f.Fact) -> None:
        for fact in facts:
            self.index += 1
            self.accounts.take(Recorded(self.index, 1, at, "test", fact))

    def collect(self) -> Sums:
        add(self.sums, self.accounts.collect())
        return self.sums


def add(sums: Sums, changes: Changes) -> None:
    for key, charge in changes.charges.items():
        row = sums.setdefault(key, [0.0, 0.0, 0])
        row[0] += charge.held_s
        row[1] += charge.used_s
        row[2] += charge.tasks


ADA = Account("ada", "vision", "", "gpu")


def test_a_task_is_charged_for_what_it_held() -> None:
    book = Book()
    task = TaskId("t")
    book.say(START + 10, f.TaskSubmitted(task, spec(), 1))
    book.say(START + 20, f.AllocationGranted(task, 1, (placed(0, (0, 1)), placed(1, (2,)))))
    book.say(START + 30, f.MemberExited(MemberId(task, "main", 1), Fence(1, 1, 1), Exit(0)))
    book.say(START + 50, f.MemberLost(MemberId(task, "main", 0), Fence(1, 1, 1), "gone"))
    book.say(START + 90, f.TaskEnded(task, EndReason.DONE))
    assert book.collect() == {(20_000, ADA): [2 * 30 + 10, 0.0, 1]}
    assert not book.accounts.tasks and not book.accounts.holdings


def test_midnight_divides_and_counts_again() -> None:
    book = Book()
    task = TaskId("t")
    book.say(START + DAY_S - 60, f.TaskSubmitted(task, spec(), 1))
    book.say(START + DAY_S - 60, f.AllocationGranted(task, 1, (placed(0, (0, 1)),)))
    book.accounts.advance(START + DAY_S)  # exactly midnight
    book.accounts.advance(START + 2 * DAY_S + 5)
    book.say(START + 2 * DAY_S + 10, f.MemberExited(MemberId(task, "main", 0), Fence(1, 1, 1), Exit(0)))
    assert book.collect() == {
        (20_000, ADA): [120.0, 0.0, 1],
        (20_001, ADA): [2 * DAY_S, 0.0, 1],
        (20_002, ADA): [20.0, 0.0, 1],
    }


def test_a_task_that_starts_again_is_one_task_of_its_day() -> None:
    book = Book()
    task, member = TaskId("t"), MemberId(TaskId("t"), "main", 0)
    book.say(START, f.TaskSubmitted(task, spec(project="maps"), 1))
    for epoch in (1, 2, 3):
        book.say(START + epoch * 10, f.AllocationGranted(task, epoch, (placed(0, (0,)),)))
        book.say(START + epoch * 10 + 5, f.MemberExited(member, Fence(1, epoch, 1), Exit(1)))
    book.say(START + 100, f.MemberGranted(member, placed(0, (1,))))
    book.say(START + 101, f.TaskEnded(task, EndReason.DONE))  # though nobody said how it ended
    assert book.collect() == {(20_000, Account("ada", "vision", "maps", "gpu")): [16.0, 0.0, 1]}


def test_a_cells_lease_is_charged_to_its_task() -> None:
    book = Book()
    task, member, lease = TaskId("t"), MemberId(TaskId("t"), "main", 0), LeaseId("l")
    book.say(START, f.TaskSubmitted(task, spec(), 1), f.AllocationGranted(task, 1, (placed(0, ()),)))
    book.say(START + 5, f.LeaseGranted(lease, member, placed(0, (0, 1, 2))))
    book.say(START + 9, f.LeaseEnded(lease, LeaseEnd.RELEASED), f.LeaseEnded(LeaseId("never"), LeaseEnd.RELEASED))
    book.say(START + 99, f.MemberExited(member, Fence(1, 1, 1), Exit(0)))
    assert book.collect() == {(20_000, ADA): [12.0, 0.0, 1]}


def test_a_clock_that_is_ahead_is_set_right() -> None:
    """The time was moved on before facts of earlier moments came: a start, an end."""
    book = Book()
    task, late = TaskId("t"), TaskId("late")
    book.say(START, f.TaskSubmitted(task, spec(), 1), f.TaskSubmitted(late, spec(), 2))
    book.say(START, f.AllocationGranted(task, 1, (placed(0, (0,)),)))
    book.accounts.advance(START + 100)
    book.say(START + 90, f.MemberExited(MemberId(task, "main", 0), Fence(1, 1, 1), Exit(0)))
    book.say(START + 95, f.AllocationGranted(late, 1, (placed(0, (0,)),)))
    book.accounts.advance(START + 97)  # backwards: nothing
    book.accounts.advance(START + 110)
    assert book.collect() == {(20_000, ADA): [90.0 + 15.0, 0.0, 2]}


def test_facts_are_taken_once_and_what_nobody_submitted_is_nobodys() -> None:
    book = Book()
    fact = f.AllocationGranted(TaskId("unknown"), 1, (placed(0, (0,)),))
    book.say(START, fact)
    book.accounts.take(Recorded(1, 1, START + 50, "again", f.TaskSubmitted(TaskId("t"), spec(), 1)))
    assert not book.accounts.tasks and book.collect() == {}


def test_what_was_measured_is_used_while_it_is_held() -> None:
    book = Book()
    task = TaskId("t")
    book.say(START, f.TaskSubmitted(task, spec(), 1), f.AllocationGranted(task, 1, (placed(0, (0, 1)),)))

    def measured(at: float, *percents: int) -> None:
        slots = tuple(SlotUse(slot, percent) for slot, percent in enumerate(percents))
        book.accounts.sample(NodeUse(NodeId("n"), at, slots=slots), START + at)

    measured(100.0, 100, 100, 100)  # the first says nothing about the time before it
    measured(110.0, 50, -1, 100)  # slot 1 cannot be told, slot 2 is held by nobody
    measured(110.0, 50, 50, 100)  # the same moment again
    measured(300.0, 100, 100, 100)  # after a silence nobody knows
    measured(305.0, 250, 0, 0)
    book.say(START + 400, f.MemberExited(MemberId(task, "main", 0), Fence(1, 1, 1), Exit(0)))
    measured(405.0, 100, 100, 100)
    assert book.collect()[20_000, ADA][1] == 10 * 0.5 + 5 * 1.0


def test_what_could_not_be_written_is_collected_again() -> None:
    book = Book()
    task = TaskId("t")
    book.say(START, f.TaskSubmitted(task, spec(), 1), f.AllocationGranted(task, 1, (placed(0, (0,)),)))
    lost = book.accounts.collect()
    book.say(START + 10, f.MemberExited(MemberId(task, "main", 0), Fence(1, 1, 1), Exit(0)))
    book.accounts.give_back(lost)
    changes = book.accounts.collect()
    assert changes.holdings == {"member t/main.0": None} and changes.charges[20_000, ADA].held_s == 10.0
    assert changes.charges[20_000, ADA].tasks == 1 and task in changes.tasks


def test_where_rows_are_gone_it_goes_on_from_what_lives() -> None:
    book = Book()
    known, gone, new = TaskId("known"), TaskId("gone"), TaskId("new")
    for number, task in enumerate((known, gone)):
        book.say(START, f.TaskSubmitted(task, spec(), number))
        book.say(START, f.AllocationGranted(task, 1, (placed(0, (number,)),)))
    book.accounts.advance(START + 10)
    tasks, holdings = dict(book.accounts.tasks), dict(book.accounts.holdings)
    tasks[new] = tasks.pop(gone)
    holdings["member new/main.0"] = type(holdings["member gone/main.0"])(new, NodeId("n"), (7, 8))
    del holdings["member gone/main.0"]
    book.accounts.seed(500, START + 30, tasks, holdings)
    book.accounts.advance(START + 40)
    # known 40 s; gone until it was last seen; new from where it was first seen
    assert book.collect()[20_000, ADA][0] == 40.0 + 10.0 + 2 * 10.0
    assert book.accounts.index == 500 and gone not in book.accounts.tasks


def test_spans_are_cut_at_midnight_forwards_and_backwards() -> None:
    assert list(split(DAY_S - 1, DAY_S + 2)) == [(0, 1.0), (1, 2.0)]
    assert list(split(DAY_S + 2, DAY_S - 1)) == [(0, -1.0), (1, -2.0)]
    assert list(split(5.0, 5.0)) == []


# -- the same history, cut anywhere -------------------------------------------------------------------------------


def history(rng: Random) -> tuple[list[tuple[float, f.Fact]], Sums]:
    """Facts in order, and what they amount to, summed up span by span."""
    facts: list[tuple[float, f.Fact]] = []
    expected: Sums = {}
    at = START + rng.uniform(0, DAY_S)
    held: dict[MemberId, tuple[float, int, Account]] = {}
    for number in range(rng.randrange(5, 25)):
        at += rng.choice((0.0, 1.0, 100.0, 3600.0, 20_000.0))
        busy = sorted(held)
        if busy and rng.random() < 0.45:
            member = rng.choice(busy)
            began, slots, account = held.pop(member)
            for day, seconds in split(began, at):
                expected.setdefault((day, account), [0.0, 0.0, 0])[0] += slots * seconds
            facts.append((at, f.MemberExited(member, Fence(1, 1, 1), Exit(0))))
        else:
            task, owner = TaskId(f"t{number}"), rng.choice(("ada", "bob"))
            slots = tuple(range(rng.randrange(1, 4)))
            facts.append((at, f.TaskSubmitted(task, spec(owner), number)))
            facts.append((at, f.AllocationGranted(task, 1, (placed(0, slots, f"n{number}"),))))
            held[MemberId(task, "main", 0)] = (at, len(slots), Account(owner, "vision", "", "gpu"))
    for began, count, account in held.values():
        for day, seconds in split(began, at + 1000):
            expected.setdefault((day, account), [0.0, 0.0, 0])[0] += count * seconds
    facts.append((at + 1000, f.NodeRemoved(NodeId("x"))))
    return facts, expected


@pytest.mark.parametrize("seed", range(150))
def test_however_it_is_cut_it_adds_up_to_the_same(seed: int) -> None:
    rng = Random(seed)
    facts, expected = history(rng)
    book = Book()
    for at, fact in facts:
        book.say(at, fact)
        if rng.random() < 0.3:
            book.accounts.advance(at + rng.choice((-50.0, 0.0, 5.0, 90_000.0)))
        if rng.random() < 0.3:  # a restart: what a store keeps, and the last facts once more
            sums = book.collect()
            kept = Accumulator()
            kept.load(book.accounts.index, book.accounts.charged_at, book.accounts.tasks, book.accounts.holdings)
            book = Book(kept)
            book.sums = sums
            book.accounts.take(Recorded(max(1, book.index - 1), 1, at, "again", fact))
    end = facts[-1][0]
    sums = book.collect()
    for holding in book.accounts.holdings.values():  # what is still held, charged beyond the end, is taken back
        account = book.accounts.tasks[holding.task].account
        for day, seconds in split(book.accounts.charged_at, end):
            row = sums.setdefault((day, account), [0.0, 0.0, 0])
            row[0] += len(holding.slots) * seconds
    found = {key: row[0] for key, row in sums.items() if abs(row[0]) > 1e-6}
    wanted = {key: row[0] for key, row in expected.items() if row[0]}
    assert found.keys() == wanted.keys()
    for key, seconds in wanted.items():
        assert found[key] == pytest.approx(seconds, abs=1e-3)
