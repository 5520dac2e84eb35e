"""A small cluster on a table: the production core and the production agent brain, one event at a time.

Nothing here is random and nothing happens by itself: time moves when told, a process starts, acknowledges and exits
when told. What converges by itself in a cluster (orders to agents, their reports) is carried to and fro until it is
quiet. Every fact is kept as the journal would keep it, so a new master can be started from the rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from clutch.agent import brain as b
from clutch.core.autoscale import ScalePlan
from clutch.core.brain import decide, noticed, told
from clutch.core.controller import Controller
from clutch.core.decisions.controllers import News
from clutch.core.decisions.machines import provision
from clutch.core.decisions.scheduling import schedule
from clutch.core.fold import apply
from clutch.core.recorded import Recorded, from_row, to_row
from clutch.core.scheduling.plan import Plan
from clutch.core.state import State, Touched
from clutch.core.story import tell
from clutch.core.wanted import may_be_ordered, wanted
from clutch.wire import events as e
from clutch.wire.errors import BrokenInvariant, ClutchError
from clutch.wire.facts import Fact
from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, PoolName
from clutch.wire.messages import Exit, ExitCause, Hello, ObservedLease, Report
from clutch.wire.resources import CUDA, Capacity, Slot
from clutch.wire.specs import PoolSpec

ROUNDS_MAX = 200
POOL = PoolName("pool")


class Machine:
    """A node with its agent, and a link that can be cut."""

    def __init__(self, node: NodeId, pool: PoolName, capacity: Capacity) -> None:
        self.node = node
        self.pool = pool
        self.capacity = capacity
        self.linked = True
        self.obedient = True
        """Whether what must end ends at once, and slots that must come back come back at once."""
        self.starts = 1
        self.brain = b.Brain(node, pool, f"{node}/1", capacity)

    def restart_agent(self) -> None:
        """The agent starts again and finds its members and leases on the machine."""
        old = self.brain
        self.starts += 1
        found = [
            (member, fence, msgspec.structs.replace(r, told_to_leave=False))
            for (member, fence), r in old.records.items()
        ]
        leases = [ObservedLease(lease, number) for lease, number in old.leases.items()]
        self.brain = b.Brain(self.node, self.pool, f"{self.node}/{self.starts}", self.capacity, found, leases)


class Stage:
    """A master's state and its machines. ``said`` collects what happened, in words, until ``take`` is called."""

    def __init__(self, controllers: Mapping[str, Controller] | None = None, pool: PoolSpec | None = None) -> None:
        self.controllers = controllers or {}
        self.state = State(self.controllers)
        self.history: list[Recorded] = []
        self.machines: dict[NodeId, Machine] = {}
        self.plans: dict[PoolName, Plan] = {}
        self.scale_plans: dict[PoolName, ScalePlan] = {}
        self.now = 1000.0
        self.rng = Random(0)
        self.said: list[str] = []
        self.do(e.BeginTerm(cause="master:a", generation=1, term=1))
        self.do(e.PutPool(cause="admin", pool=pool or PoolSpec(POOL)))
        self.take()

    def take(self) -> list[str]:
        """What was said since the last time."""
        said, self.said = self.said, []
        return said

    # -- the master ----------------------------------------------------------------------------------------------

    def tell(self, event: e.Event) -> list[Fact]:
        """Decide and fold one event, and nothing else. A refusal half-way is a bug of the core."""
        facts: list[Fact] = []
        try:
            for fact in decide(self.state, event, self.now, self.rng):
                facts.append(fact)
                self._record(fact, event.cause)
        except ClutchError as error:
            if facts:
                raise BrokenInvariant(f"{type(event).__name__} was refused half-way: {error}") from error
            raise
        return facts

    def schedule(self) -> list[Fact]:
        """Plan every pool and decide what the plans say."""
        facts: list[Fact] = []
        news: News = []
        for fact in noticed(self.state, schedule(self.state, list(self.state.pools), self.now, self.plans), news):
            facts.append(fact)
            self._record(fact, "scheduler")
        for fact in told(self.state, news, self.now, self.rng):
            facts.append(fact)
            self._record(fact, "scheduler")
        for fact in provision(self.state, list(self.state.pools), self.now, self.scale_plans):
            facts.append(fact)
            self._record(fact, "provisioner")
        return facts

    def do(self, event: e.Event) -> list[Fact]:
        """An event with all its consequences: decided, planned, carried to the agents, and their reports heard."""
        facts = [*self.tell(event), *self.schedule()]
        for _ in range(ROUNDS_MAX):
            touched = list(self.state.touched.nodes)
            self.state.touched = Touched()
            reports = [report for node in touched for report in self._order(node)]
            if not reports:
                return facts
            for report in reports:
                facts += self.tell(e.Reported(cause=f"agent:{report.node}", report=report))
            facts += self.schedule()
        raise BrokenInvariant(f"no rest after {ROUNDS_MAX} rounds", object=type(event).__name__)

    def _record(self, fact: Fact, cause: str) -> None:
        recorded = Recorded(self.state.index + 1, self.state.term, self.now, cause, fact)
        apply(self.state, recorded)
        self.history.append(recorded)
        self.said.append(f"{tell(fact)}  <- {cause}" if cause else tell(fact))

    def tick(self) -> list[Fact]:
        return self.do(e.Tick(cause="timer"))

    def pass_time(self, seconds: float) -> list[Fact]:
        """Let time pass, stopping at each deadline on the way."""
        until = self.now + seconds
        facts: list[Fact] = []
        while (due := self._due_at()) is not None and due <= until:
            self.now = max(self.now, due)
            facts += self.tick()
        self.now = until
        return facts + self.tick()

    def _due_at(self) -> float | None:
        scale = (plan.look_again_at for plan in self.scale_plans.values())
        return min((at for at in (self.state.deadlines.next_at(), *scale) if at is not None), default=None)

    def refold(self, until: int | None = None) -> State:
        """What a new process makes of the journal's rows, all of them or up to an index."""
        state = State(self.controllers)
        for recorded in self.history[:until]:
            apply(state, from_row(to_row(recorded)))
        state.touched = Touched()
        return state

    def new_master(self) -> list[Fact]:
        """The master is gone; another folds the rows, begins its term and greets every agent it can reach."""
        self.state = self.refold()
        term = self.state.term + 1
        facts = self.do(e.BeginTerm(cause=f"master:{term}", generation=self.state.generation, term=term))
        for machine in list(self.machines.values()):
            facts += self.hear(machine.node)
        return facts

    # -- the machines --------------------------------------------------------------------------------------------

    def add_node(self, name: str, slots: int = 4, *, cpus: int = 32, kind: str = CUDA, pool: str = POOL) -> list[Fact]:
        """A machine joins: its agent is greeted and reports."""
        capacity = Capacity(tuple(Slot(i, kind) for i in range(slots)), cpus * 1000, 2**36)
        node = NodeId(name)
        self.machines[node] = Machine(node, PoolName(pool), capacity)
        return self.hear(node)

    def hear(self, node: str) -> list[Fact]:
        """The master greets the node's agent, if the link holds, and hears what it observes."""
        machine = self.machines[NodeId(node)]
        if not machine.linked:
            return []
        hello = Hello(self.state.generation, self.state.term, greeting=1)
        return self._heard(self._carry(machine, machine.brain.greeted(hello)))

    def _heard(self, reports: list[Report]) -> list[Fact]:
        facts: list[Fact] = []
        for report in reports:
            facts += self.do(e.Reported(cause=f"agent:{report.node}", report=report))
        return facts

    def _order(self, node: NodeId) -> list[Report]:
        machine = self.machines.get(node)
        if machine is None or not machine.linked or not may_be_ordered(self.state, node):
            return []
        return self._carry(machine, machine.brain.ordered(wanted(self.state, node)))

    def _carry(self, machine: Machine, effects: list[b.Effect]) -> list[Report]:
        """Do what the brain says. The last report wins; none gets through a cut link."""
        todo, done, reports = list(effects), list[b.Effect](), []
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, b.Say):
                reports.append(effect.report)
                continue
            if effect in done:
                continue
            done.append(effect)
            self.said.append(f"    {machine.node}: {_words(effect)}")
            if isinstance(effect, b.End) and machine.obedient:
                todo += machine.brain.exited(effect.member, effect.fence, Exit(-9, ExitCause.ENDED))
            elif isinstance(effect, b.TakeBack) and machine.obedient:
                todo += machine.brain.freed(effect.lease, effect.number)
        return reports[-1:] if machine.linked else []

    def _on(self, member: MemberId) -> tuple[Machine, Fence]:
        """Where the latest incarnation of a member really is."""
        lives = [
            (fence, machine) for machine in self.machines.values() for m, fence in machine.brain.records if m == member
        ]
        if not lives:
            raise BrokenInvariant("no machine knows it", object=str(member))
        fence, machine = max(lives, key=lambda life: life[0])
        return machine, fence

    # -- what processes do ---------------------------------------------------------------------------------------

    def run(self, member: MemberId) -> list[Fact]:
        """Its process is up."""
        machine, fence = self._on(member)
        return self._heard(self._carry(machine, machine.brain.started(member, fence)))

    def exit(self, member: MemberId, exit: Exit, fence: Fence | None = None) -> list[Fact]:
        """Its process is gone."""
        machine, latest = self._on(member)
        return self._heard(self._carry(machine, machine.brain.exited(member, fence or latest, exit)))

    def free(self, node: str, lease: str) -> list[Fact]:
        """A disobedient machine gives a lease's slots back after all."""
        machine = self.machines[NodeId(node)]
        number = machine.brain.leases[LeaseId(lease)]
        return self._heard(self._carry(machine, machine.brain.freed(LeaseId(lease), number)))

    def beat(self, node: str) -> list[Fact]:
        machine = self.machines[NodeId(node)]
        return self._heard(self._carry(machine, machine.brain.beat()))


def _words(effect: b.Effect) -> str:
    """What an agent does, in words."""
    match effect:
        case b.Start(wanted_member):
            fresh = f" from {wanted_member.checkpoint}" if wanted_member.checkpoint else ""
            slots = f" on slots {','.join(map(str, wanted_member.slots))}" if wanted_member.slots else ""
            return f"start {wanted_member.member} {wanted_member.fence}{slots}{fresh}"
        case b.AskLeave(wanted_member):
            return f"ask {wanted_member.member} to leave ({wanted_member.reason}) by {wanted_member.deadline:g}"
        case b.End(member, fence, stray):
            return f"end {member} {fence}" + (" (stray)" if stray else "")
        case b.Forget(member, fence):
            return f"forget {member} {fence}"
        case b.HandOver(lease):
            slots = ",".join(map(str, lease.slots))
            return f"hand lease {lease.lease} #{lease.number} to {lease.member}: slots {slots}"
        case b.TakeBack(lease_id, number, deadline):
            return f"take back lease {lease_id} #{number}" + (f" by {deadline:g}" if deadline else "")
        case b.Complain(refusal):
            return f"complain: {refusal.error.cause}"
        case b.Say(_):
            return "report"
