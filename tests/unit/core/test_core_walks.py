"""Random walks: any event in any state, sensible or not, and after each step everything that must always hold."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from house import House, program_spec, session_spec, trial_spec, workers_spec

from clutch.core import member as members
from clutch.core.brain import decide
from clutch.core.decisions.scheduling import schedule
from clutch.core.fold import apply
from clutch.core.freezing import freeze, thaw
from clutch.core.projection import project
from clutch.core.recorded import Recorded, from_row, to_row
from clutch.core.scheduling.plan import plan
from clutch.core.state import State, Touched
from clutch.core.wanted import wanted
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import ClutchError
from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, PoolName, TaskId
from clutch.wire.journal import Gone
from clutch.wire.messages import Exit, ExitCause, Phase
from clutch.wire.outcomes import LeaseEnd, LeaseState, TaskState
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import FairSharePolicy, OnNodeLost, PoolSpec, Quota, Split

STEPS = 120
PHASES = list(Phase)


class Walker:
    """Takes random steps on a stage: what users ask, what members say, what machines and links do."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        policy = {"policy": FairSharePolicy()} if seed % 3 == 0 else {}
        pool = PoolSpec(PoolName("pool"), interactive_headroom=seed % 2, min_run_s=5.0, **policy)
        self.house = House(pool=pool).nodes(2, 4, 3)
        self.count = 0
        self.cells = 0
        self.refused = 0
        self.steps: list[Callable[[], Any]] = [
            self.submit, self.submit, self.submit, self.wish, self.resize, self.priority, self.exclude,
            self.come_up, self.come_up, self.come_up, self.come_up, self.exit, self.exit, self.word, self.word,
            self.nonsense_word, self.ask_lease, self.ask_lease, self.lease_word, self.lease_word, self.link, self.link,
            self.obedience, self.node_wish, self.agent_restart, self.new_master, self.time, self.time, self.lanes,
            self.odd_report, self.quota, self.pool, self.remove, self.break_again_and_again,
            self.next_cell,
        ]  # fmt: skip

    def step(self) -> None:
        try:
            self.rng.choice(self.steps)()
        except ClutchError as error:
            assert error.blame != "bug", error
            self.refused += 1

    def task(self) -> TaskId:
        return self.rng.choice([*self.house.state.tasks, TaskId("nobody")])

    def node(self) -> NodeId:
        return self.rng.choice(list(self.house.machines))

    def member(self) -> MemberId:
        known = list(self.house.state.members)
        return self.rng.choice(known) if known else MemberId(TaskId("nobody"), "main", 0)

    def submit(self) -> None:
        self.count += 1
        name, rng = f"t{self.count}", self.rng
        common: dict[str, Any] = {
            "priority": rng.choice((1, 42, 42, 60)),
            "owner": rng.choice(("ada", "bob")),
            "max_restarts": rng.choice((0, 1, 5)),
            "preemptible": rng.random() < 0.8,
            "leave_within_s": rng.choice((0.0, 20.0, 600.0)),
            "on_node_lost": rng.choice((OnNodeLost.RESTART, OnNodeLost.WAIT)),
        }
        spec = rng.choice(
            [
                lambda: trial_spec(name, rng.choice((0, 1, 2)), ranks=rng.choice((1, 1, 2, 3)), count_max=4, **common),
                lambda: trial_spec(name, shape=Split(rng.choice((1, 3, 6)), even=rng.random() < 0.3), **common),
                lambda: session_spec(name, rng.choice((1, 2, 3)), **common),
                lambda: program_spec(name, rng.choice((1, 3)), **common),
                lambda: workers_spec(name, rng.choice((1, 2)), **common),
            ]
        )()
        self.house.do(e.Submit(task=TaskId(name), spec=spec, key=rng.choice(("", name, "shared"))))

    def wish(self) -> None:
        task = self.task()
        events = [e.Pause(task=task), e.Resume(task=task), e.Resume(task=task), e.Kill(task=task)]
        events += [e.Cancel(task=task), e.Cancel(task=task, reason=PreemptReason.STOPPED)]
        self.house.do(self.rng.choice(events))

    def resize(self) -> None:
        role = self.rng.choice(("main", "actor", "worker", "worker", "replica"))
        self.house.do(e.Resize(task=self.task(), role=role, count=self.rng.randrange(-1, 5)))

    def priority(self) -> None:
        self.house.do(e.SetPriority(task=self.task(), priority=self.rng.randrange(0, 101)))

    def exclude(self) -> None:
        self.house.do(e.ExcludeNode(task=self.task(), node=self.node()))

    def come_up(self) -> None:
        for machine in self.house.machines.values():
            for member, fence in list(machine.brain.records):
                if self.rng.random() < 0.6 and self.house._on(member) == (machine, fence):
                    self.house.run(member)

    def exit(self) -> None:
        lives = [m for machine in self.house.machines.values() for m, _ in machine.brain.records]
        if lives:
            ends = ((0, ExitCause.OWN), (0, ExitCause.OWN), (1, ExitCause.OWN), (1, ExitCause.MACHINE))
            follows = ((1, ExitCause.PEER_LOST), (1, ExitCause.PEER_FAILED))
            code, cause = self.rng.choice((*ends, (1, ExitCause.NO_DATA), *follows))
            offset = self.rng.choice((0, 0, 10))
            self.house.exit(self.rng.choice(lives), Exit(code, cause, output_offset=offset))

    def break_again_and_again(self) -> None:
        """The same member's machine fails it several times in a row."""
        member = self.member()
        for _ in range(3):
            if any(m == member for machine in self.house.machines.values() for m, _ in machine.brain.records):
                self.house.run(member)
                self.house.exit(member, Exit(1, ExitCause.MACHINE))

    def word(self, fence: Fence | None = None) -> None:
        member = self.member()
        known = self.house.state.members.get(member)
        own = known.fence(self.house.state.generation) if known else Fence(1, 1, 1)
        said: dict[str, Any] = {"task": member.task, "member": member, "fence": fence or own}
        step = self.rng.randrange(100)
        kinds = [e.AckLeave(**said), e.AckLeave(**said), e.DeclareFinished(**said)]
        self.house.do(self.rng.choice([*kinds, e.CommitCheckpoint(**said, checkpoint=f"c{step}", step=step)]))

    def nonsense_word(self) -> None:
        self.word(Fence(self.rng.randrange(3), self.rng.randrange(4), self.rng.randrange(4)))

    def lanes(self) -> None:
        member = self.member()
        known = self.house.state.members.get(member)
        fence = known.fence(self.house.state.generation) if known else Fence(1, 1, 1)
        self.house.do(e.ReachLanes(member=member, fence=fence, metrics_sequence=0, output_offset=10))

    def ask_lease(self) -> None:
        sessions = [t.task for t in self.house.state.tasks.values() if t.spec.kind == "notebook"]
        if sessions:
            self.cells += 1
            task = self.rng.choice(sessions)
            ranks = self.rng.choice(((0,), (0, 1), (0, 1, 2)))
            self.house.ask_lease(task, self.cells, self.rng.choice((1, 2)), ranks=ranks, linger_s=30.0)

    def lease_word(self) -> None:
        lease = self.rng.choice([*self.house.state.leases, LeaseId("nothing")])
        known = self.house.state.leases.get(lease)
        number = known.number if known and self.rng.random() < 0.9 else 7
        uses = known.uses if known else 1
        if known is not None and known.state is LeaseState.LINGERING and self.rng.random() < 0.5:
            self.house.do(e.ReuseLease(lease=lease, number=number, use=uses + 1))
            return
        self.house.do(
            self.rng.choice(
                [
                    e.IdleLease(lease=lease, number=number, use=uses),
                    e.IdleLease(lease=lease, number=number, use=uses),
                    e.ReuseLease(lease=lease, number=number, use=uses + 1),
                    e.ReuseLease(lease=lease, number=number, use=uses),
                    e.WithdrawLease(lease=lease),
                ]
            )
        )

    def next_cell(self) -> None:
        """A cell ends, and the next one goes on with its lease if nobody was waiting for it."""
        for lease in list(self.house.state.leases.values()):
            if lease.state is LeaseState.HELD:
                self.house.do(e.IdleLease(lease=lease.lease, number=lease.number, use=lease.uses))
                self.house.do(e.ReuseLease(lease=lease.lease, number=lease.number, use=lease.uses + 1))

    def link(self) -> None:
        node = self.node()
        machine = self.house.machines[node]
        if machine.linked:
            self.house.cut(node)
        else:
            self.house.mend(node)

    def obedience(self) -> None:
        node = self.node()
        machine = self.house.machines[node]
        machine.obedient = not machine.obedient
        self.house.beat(node)

    def node_wish(self) -> None:
        node = self.node()
        slots = tuple(self.rng.sample(range(4), self.rng.randrange(3)))
        events = [e.DrainNode(node=node), e.OpenNode(node=node), e.OpenNode(node=node)]
        self.house.do(self.rng.choice([*events, e.DisableSlots(node=node, slots=slots)]))

    def remove(self) -> None:
        self.house.do(e.RemoveNode(node=self.node()))

    def agent_restart(self) -> None:
        node = self.node()
        self.house.machines[node].restart_agent()
        self.house.hear(node)

    def new_master(self) -> None:
        if self.rng.random() < 0.3:
            self.house.new_master()

    def time(self) -> None:
        self.house.pass_time(self.rng.choice((0.0, 1.0, 6.0, 30.0, 100.0, 700.0)))

    def odd_report(self) -> None:
        """A report that lists too little or is from another term."""
        report = self.house.machines[self.node()].brain.report().report
        change = self.rng.choice(({"members": ()}, {"term": report.term + 1}, {"wanted_sequence": 0}, {"leases": ()}))
        self.house.do(e.Reported(report=msgspec.structs.replace(report, **change)))

    def quota(self) -> None:
        if self.rng.random() < 0.3:
            self.house.do(e.RemoveQuota(scope="user:ada"))
            return
        self.house.do(e.SetQuota(quota=Quota(self.rng.choice(("user:ada", "nonsense")), self.rng.randrange(-1, 9))))

    def pool(self) -> None:
        pool = self.house.state.pools["pool"]
        self.house.do(
            e.PutPool(pool=msgspec.structs.replace(pool, node_lost_after_s=self.rng.choice((-1.0, 30.0, 90.0))))
        )


class Watch:
    """What must hold after every step, given what held before."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.live = State(house.controllers)
        self.folded = 0
        self.epochs: dict[TaskId, int] = {}
        self.fences: dict[MemberId, tuple[int, int]] = {}
        self.numbers: dict[tuple[NodeId, int], int] = {}
        self.orders = 0
        self.phases: dict[tuple[MemberId, Fence], Phase] = {}
        self.views: dict[tuple[str, str], Any] = {}

    def look(self) -> None:
        state = self.house.state
        for ledger in state.ledgers.values():
            ledger.check()
        self._rows()
        self._views()
        self._monotone(state)
        self._holdings(state)
        self._wanted(state)

    def _rows(self) -> None:
        """What a standby makes of the encoded rows, one after the other, is what lives."""
        for recorded in self.house.history[self.folded :]:
            if isinstance(recorded.fact, f.AllocationGranted):
                assert recorded.fact.task not in self.live.allocations, "two live allocations of one task"
            self._numbers(recorded.fact)
            apply(self.live, from_row(to_row(recorded)))
        self.folded = len(self.house.history)
        assert freeze(self.live).payload == freeze(self.house.state).payload

    def _views(self) -> None:
        """The rows that each batch wrote, one over the other, show everything as it is now."""
        state = self.live
        for row in project(state, state.touched):
            if isinstance(row, Gone):
                del self.views[row.table, row.key]
            else:
                self.views[row.table, row.key] = row
        state.touched = Touched()
        now = Touched()
        now.tasks, now.nodes = dict.fromkeys(state.tasks), dict.fromkeys(state.nodes)
        now.leases = dict.fromkeys(state.leases)
        for row in project(state, now):
            assert not isinstance(row, Gone)
            assert self.views[row.table, row.key] == row
        for (table, key), row in self.views.items():
            if table == "tasks":
                assert (row.state == "ended") is (key not in state.tasks)
            if table == "nodes":
                assert key in state.nodes
            if table == "leases":
                assert (row.state in list(LeaseEnd)) is (key not in state.leases)

    def _monotone(self, state: State) -> None:
        assert state.orders >= self.orders
        self.orders = state.orders
        for task in state.tasks.values():
            assert task.epoch >= self.epochs.get(task.task, 0)
            self.epochs[task.task] = task.epoch
        for member in state.members.values():
            life = (member.epoch, member.incarnation)
            assert life >= self.fences.get(member.member, (0, 0)), "a fence fell back"
            self.fences[member.member] = life

    def _numbers(self, fact: f.Fact) -> None:
        """On each slot, the number of a lease is above every one before it."""
        placed = fact.members if isinstance(fact, f.AllocationGranted) else ()
        if isinstance(fact, f.MemberGranted | f.LeaseGranted):
            placed = (fact.placed,)
        for one in placed:
            for slot in one.placement.slots:
                assert one.lease_number > self.numbers.get((one.placement.node, slot), 0)
                self.numbers[one.placement.node, slot] = one.lease_number

    def _holdings(self, state: State) -> None:
        """Every present member and granted lease is on the books, and nothing else is."""
        held = {
            (name, p.role, p.rank, p.node, p.slots)
            for ledger in state.ledgers.values()
            for name, holding in ledger.holdings.items()
            for p in holding.placements
        }
        due = {
            (m.member.task, p.role, p.rank, p.node, p.slots)
            for m in state.members.values()
            if m.state in members.PRESENT and (p := m.placement)
        }
        due |= {
            (f"lease:{x.lease}", p.role, p.rank, p.node, p.slots) for x in state.leases.values() if (p := x.placement)
        }
        assert held == due
        for task in state.tasks.values():
            assert (task.task in state.allocations) is (task.state is TaskState.RUNNING)
            assert (task.task in state.ledger_of(task.task).waiting) is (task.state is TaskState.QUEUED)

    def _wanted(self, state: State) -> None:
        for node in state.nodes:
            for each in wanted(state, node).members:
                key = (each.member, each.fence)
                before = self.phases.get(key, Phase.RUN)
                assert PHASES.index(each.phase) >= PHASES.index(before), f"{key} went from {before} to {each.phase}"
                self.phases[key] = each.phase


def _sorted(placements: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted(placements, key=str))


def books(state: State) -> Any:
    """What scheduling and time will act upon, in an order that does not depend on how the state was made."""
    return [
        (
            name,
            sorted((r.request, r) for r in ledger.waiting.values()),
            sorted(
                (n, msgspec.structs.replace(h, placements=_sorted(h.placements))) for n, h in ledger.holdings.items()
            ),
            {node: desk.measure() for node, desk in sorted(ledger.index.desks.items())},
            dict(sorted(ledger.quotas.used.items())),
        )
        for name, ledger in state.ledgers.items()
    ]


def thawed_alike(house: House, rng: Random) -> None:
    """A state through a snapshot is the same state: same bytes, same books, same deadlines, same decisions."""
    snapshot = freeze(house.state)
    thawed = thaw(snapshot, house.controllers)
    assert freeze(thawed).payload == snapshot.payload
    assert thawed.deadlines == house.state.deadlines
    assert books(thawed) == books(house.state)
    for ledger in thawed.ledgers.values():
        ledger.check()
    assert thawed.waiting_members == house.state.waiting_members
    for node in thawed.nodes:
        ours, theirs = wanted(house.state, node), wanted(thawed, node)
        assert sorted(ours.members, key=str) == sorted(theirs.members, key=str)
        assert sorted(ours.leases, key=str) == sorted(theirs.leases, key=str)
    for pool, ledger in house.state.ledgers.items():
        mine, other = plan(ledger, house.now), plan(thawed.ledgers[pool], house.now)
        assert sorted(mine.grants, key=str) == sorted(other.grants, key=str)
        assert sorted(mine.preemptions, key=str) == sorted(other.preemptions, key=str)
    # Let the same time pass for both: the same facts follow, in whatever order.
    later = house.now + rng.choice((1.0, 50.0, 1000.0))
    assert sorted(map(str, _future(thawed, later))) == sorted(map(str, _future(house.refold(), later)))


def _future(state: State, now: float) -> list[f.Fact]:
    facts = []
    for fact in decide(state, e.Tick(), now, Random(1)):
        facts.append(fact)
        apply(state, Recorded(state.index + 1, state.term, now, "timer", fact))
    for fact in schedule(state, list(state.pools), now, {}):
        facts.append(fact)
        apply(state, Recorded(state.index + 1, state.term, now, "scheduler", fact))
    return facts


@pytest.mark.parametrize("seed", range(60))
def test_a_walk(seed: int) -> None:
    walker = Walker(seed)
    watch = Watch(walker.house)
    for number in range(STEPS):
        walker.step()
        watch.look()
        if number % 20 == 19:
            thawed_alike(walker.house, walker.rng)
    assert walker.refused, "a walk without a refusal tried too little"


def test_the_walks_go_everywhere() -> None:
    """Together they reach every kind of fact that needs no controller and no provider of machines."""
    seen: dict[str, int] = {}
    for seed in range(60):
        walker = Walker(1000 + seed)
        for _ in range(STEPS):
            walker.step()
        for recorded in walker.house.history:
            seen[type(recorded.fact).__name__] = seen.get(type(recorded.fact).__name__, 0) + 1
    missing = [kind.__name__ for kind in f.FACTS.values() if kind.__name__ not in seen]
    by_controllers = ("Controller", "Machine", "Effect", "RestartsForbidden", "MaxSlotsSet")
    assert [name for name in missing if not name.startswith(by_controllers)] == []
