"""What a provisioner decides: asks, failures, idleness, silence, listings; and that the outbox follows the state."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "core"))
from house import House, names, trial_spec

from clutch.core.freezing import freeze, thaw
from clutch.core.outbox import outbox
from clutch.core.projection import machine_view, project
from clutch.core.state import MACHINES_REMEMBERED
from clutch.testing.stage import POOL
from clutch.wire import events as e
from clutch.wire import facts as f
from clutch.wire.errors import Conflict
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.journal import OutboxItem
from clutch.wire.machines import LAUNCH, TERMINATE, Instance, MachineId, Order, StopReason
from clutch.wire.messages import Exit
from clutch.wire.outcomes import MachineState, NodeState, NodeWish, TaskState
from clutch.wire.specs import Autoscale, OnNodeLost, PoolSpec, Quota
from clutch.wire.views import MachineView

SCALE = Autoscale(
    nodes_max=2,
    slots_per_node=4,
    millicpus_per_node=32_000,
    memory_bytes_per_node=2**36,
    idle_s=60.0,
    starting_s=300.0,
    disconnected_s=120.0,
)


class Yard(House):
    """A house whose nodes come from a provider; what it owes to the outside is kept as a journal would."""

    def __init__(self, scale: Autoscale = SCALE) -> None:
        super().__init__()
        self.waiting: dict[str, OutboxItem] = {}
        self._settled = len(self.history)
        self.scale(scale)

    def scale(self, scale: Autoscale | None) -> None:
        self.do(e.PutPool(cause="admin", pool=PoolSpec(POOL, autoscale=scale, node_lost_after_s=30.0)))

    def do(self, event: e.Event) -> list[f.Fact]:
        facts = super().do(event)
        if hasattr(self, "waiting"):
            self.settle()
        return facts

    def settle(self) -> None:
        """What every batch of this test does: take in what is owed, and compare it with the state."""
        owed = outbox(self.state, self.history[self._settled :])
        self._settled = len(self.history)
        self.waiting.update({item.token: item for item in owed.items})
        for token in owed.delivered:
            self.waiting.pop(token, None)
        expected = {f"launch:{m.machine}" for m in self.state.machines.values() if m.launch_pending}
        stopping = [m.machine for m in self.state.machines.values() if m.state is MachineState.STOPPING]
        assert set(self.waiting) == expected | {f"terminate:{name}" for name in stopping}

    @property
    def own(self) -> list[MachineId]:
        return list(self.state.machines)

    def machine(self, name: MachineId) -> MachineState | None:
        found = self.state.machines.get(name)
        return found.state if found else None

    def launched(self, name: MachineId) -> None:
        self.do(e.MachineUp(cause="provider", machine=name, instance=f"i-{name}", address="10.0.0.1"))

    def joined(self, name: MachineId) -> MachineId:
        self.launched(name)
        self.add_node(name, 4)
        assert self.machine(name) is MachineState.SERVING
        return name

    def terminated(self, name: MachineId) -> list[f.Fact]:
        self.machines.pop(NodeId(name), None)
        return self.do(e.MachineDown(cause="provider", machine=name))

    def listed(self, *seen: str, index: int | None = None, lag_s: float = 0.0) -> list[f.Fact]:
        found = tuple(Instance(MachineId(name), f"i-{name}", POOL, "c") for name in seen)
        at = self.state.index if index is None else index
        return self.do(e.MachinesListed(cause="provider", pool=POOL, instances=found, index=at, lag_s=lag_s))

    def served(self) -> tuple[MachineId, str]:
        """A machine with a task that runs on it."""
        self.submit(trial_spec("t"))
        (name,) = self.own
        self.joined(name)
        self.up(self.task("t"))
        return name, "t"

    def task(self, name: str):  # type: ignore[no-untyped-def]
        return next(task for task in self.state.tasks if task == name)

    def cut(self, name: MachineId) -> None:
        self.machines[NodeId(name)].linked = False
        self.do(e.Silent(cause="timer", node=NodeId(name)))


# -- asking -------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_for_without_work_and_as_much_as_work_needs() -> None:
    yard = Yard()
    assert yard.own == []
    yard.submit(trial_spec("a", 4))
    yard.submit(trial_spec("b", 4))
    yard.submit(trial_spec("c", 4))
    assert len(yard.own) == 2, "no more than the pool may have"
    for item in yard.waiting.values():
        order = msgspec.msgpack.decode(item.payload, type=Order)
        assert (item.kind, order.pool, item.token) == (LAUNCH, POOL, f"launch:{order.machine}")


def test_the_minimum_is_asked_for_at_once_and_kept() -> None:
    yard = Yard(msgspec.structs.replace(SCALE, nodes_min=1))
    (name,) = yard.own
    yard.joined(name)
    yard.pass_time(1000.0)
    assert yard.machine(name) is MachineState.SERVING


def test_names_carry_the_generation_so_that_a_restored_backup_repeats_none() -> None:
    yard = Yard()
    yard.do(e.BeginTerm(cause="restore", generation=7, term=9))
    yard.submit(trial_spec("a"))
    assert yard.own[0].startswith(f"{POOL}-7-")


def test_an_agent_may_report_before_its_provider_answers() -> None:
    yard = Yard()
    yard.submit(trial_spec("t"))
    (name,) = yard.own
    yard.add_node(name, 4)
    assert yard.machine(name) is MachineState.SERVING
    assert f"launch:{name}" in yard.waiting
    yard.launched(name)
    assert yard.waiting == {} and yard.machine(name) is MachineState.SERVING
    assert yard.state.machines[name].instance == f"i-{name}"


@pytest.mark.parametrize("word", ["up", "failed"])
def test_a_repeated_answer_is_nothing(word: str) -> None:
    yard = Yard()
    name, _ = yard.served()
    before = yard.state.index
    if word == "up":
        yard.launched(name)
    else:
        yard.do(e.LaunchFailed(cause="provider", machine=name, detail="late"))
    yard.do(e.MachineDown(cause="provider", machine=name))
    yard.do(e.MachineUp(cause="provider", machine=MachineId("nobody"), instance="i"))
    assert yard.state.index == before


# -- failing ------------------------------------------------------------------------------------------------------


def test_a_failed_launch_is_cleared_away_before_the_next_and_each_rest_is_longer() -> None:
    yard = Yard(msgspec.structs.replace(SCALE, nodes_max=1))
    yard.submit(trial_spec("t"))
    rests = []
    for _ in range(6):
        (name,) = yard.own
        yard.do(e.LaunchFailed(cause="provider", machine=name, detail="no room"))
        assert list(yard.waiting) == [f"terminate:{name}"], "the launch is withdrawn, its remains are cleared away"
        assert [m.reason for m in yard.state.machines.values()] == [StopReason.LAUNCH_FAILED]
        rests.append(yard.state.setbacks[POOL].rest_until - yard.now)
        yard.terminated(name)
        yard.pass_time(max(rests[-1] - 0.5, 0.0))
        assert yard.own == [] or rests[-1] == 0.0
        yard.pass_time(1.0)
        assert len(yard.own) == 1
    assert rests == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    yard.joined(yard.own[0])
    assert yard.state.setbacks == {}, "one that comes up forgives them all"


def test_a_launch_that_failed_though_its_agent_speaks_did_not_fail() -> None:
    yard = Yard()
    yard.submit(trial_spec("t"))
    (name,) = yard.own
    yard.add_node(name, 4)
    yard.do(e.LaunchFailed(cause="provider", machine=name, detail="timed out"))
    assert yard.machine(name) is MachineState.SERVING and yard.waiting == {}


def test_one_that_never_reports_is_stopped_at_the_end_of_its_grace() -> None:
    yard = Yard(msgspec.structs.replace(SCALE, nodes_max=1))
    yard.submit(trial_spec("t"))
    (name,) = yard.own
    yard.pass_time(200.0)
    yard.launched(name)
    yard.pass_time(99.0)
    assert yard.machine(name) is MachineState.LAUNCHED
    yard.pass_time(1.0)
    assert yard.state.machines[name].reason is StopReason.NEVER_CAME
    assert yard.own == [name], "the one that is being stopped still counts"
    yard.terminated(name)
    assert len(yard.own) == 1 and yard.own != [name]


def test_a_launch_that_never_was_performed_is_withdrawn_with_its_machine() -> None:
    yard = Yard()
    yard.submit(trial_spec("t"))
    (name,) = yard.own
    yard.do(e.Cancel(cause="api", task=yard.task("t")))
    yard.pass_time(300.0)
    assert list(yard.waiting) == [f"terminate:{name}"]
    assert next(iter(yard.waiting.values())).kind == TERMINATE


# -- idleness -----------------------------------------------------------------------------------------------------


def test_idleness_begins_when_the_last_output_is_in_the_store() -> None:
    yard = Yard()
    name, task = yard.served()
    member = yard.m(yard.task(task))
    yard.exit(member, Exit(0, output_offset=100))
    assert yard.state.machines[name].idle_since is None
    assert yard.scale_plans[POOL].look_again_at == yard.now + 1.0
    yard.pass_time(20.0)
    fence = yard.fence(yard.task(task))
    yard.do(e.ReachLanes(cause="lanes", member=member, fence=fence, metrics_sequence=0, output_offset=100))
    yard.pass_time(1.0)
    idle_since = yard.state.machines[name].idle_since
    assert idle_since is not None and idle_since >= yard.now - 2.0
    yard.pass_time(58.0)
    assert yard.machine(name) is MachineState.SERVING
    yard.pass_time(2.0)
    assert yard.machine(name) is MachineState.STOPPING
    assert yard.state.nodes[NodeId(name)].wish is NodeWish.DRAIN, "nothing can be placed there any more"
    yard.submit(trial_spec("u"))
    assert len(yard.own) == 2
    yard.terminated(name)
    assert NodeId(name) not in yard.state.nodes


def test_work_that_comes_in_time_ends_idleness() -> None:
    yard = Yard()
    name, task = yard.served()
    yard.exit(yard.m(yard.task(task)), Exit(0))
    yard.pass_time(59.0)
    yard.submit(trial_spec("u"))
    assert yard.state.machines[name].idle_since is None
    yard.pass_time(500.0)
    assert yard.machine(name) is MachineState.SERVING


def test_a_node_of_a_machine_that_stops_cannot_be_opened_and_does_not_come_back() -> None:
    yard = Yard()
    name, task = yard.served()
    yard.exit(yard.m(yard.task(task)), Exit(0))
    yard.pass_time(61.0)
    with pytest.raises(Conflict, match="being stopped"):
        yard.do(e.OpenNode(cause="admin", node=NodeId(name)))
    body = yard.machines[NodeId(name)]
    yard.terminated(name)
    yard.machines[NodeId(name)] = body
    with pytest.raises(Conflict, match="given up"):
        yard.hear(name)
    assert NodeId(name) not in yard.state.nodes


def test_an_agent_of_the_wrong_pool_is_refused() -> None:
    yard = Yard()
    yard.do(e.PutPool(cause="admin", pool=PoolSpec(PoolName("other"))))
    yard.submit(trial_spec("t"))
    with pytest.raises(Conflict, match="launched for pool"):
        yard.add_node(yard.own[0], 4, pool="other")


def test_a_removed_node_is_awaited_again() -> None:
    yard = Yard(msgspec.structs.replace(SCALE, nodes_min=1))
    name = yard.joined(yard.own[0])
    yard.do(e.DrainNode(cause="admin", node=NodeId(name)))
    yard.do(e.RemoveNode(cause="admin", node=NodeId(name)))
    assert yard.machine(name) is MachineState.LAUNCHED
    yard.hear(name)
    assert yard.machine(name) is MachineState.SERVING


def test_a_quota_bounds_what_is_asked_for() -> None:
    yard = Yard()
    yard.do(e.SetQuota(cause="admin", quota=Quota("user:ada", 4)))
    for number in range(3):
        yard.submit(trial_spec(f"t{number}", 4, owner="ada"))
    assert len(yard.own) == 1


# -- silence and listings -----------------------------------------------------------------------------------------


def test_a_silent_machine_is_stopped_after_its_work_went_elsewhere() -> None:
    yard = Yard()
    name, task = yard.served()
    yard.cut(name)
    yard.pass_time(31.0)
    assert yard.state.nodes[NodeId(name)].state is NodeState.LOST
    assert yard.state.tasks[yard.task(task)].state is TaskState.QUEUED
    assert len(yard.own) == 2, "another one is asked for"
    yard.pass_time(120.0)
    assert yard.state.machines[name].reason is StopReason.DISCONNECTED


def test_a_machine_whose_work_waits_for_it_is_kept() -> None:
    yard = Yard()
    yard.submit(trial_spec("t", on_node_lost=OnNodeLost.WAIT))
    name = yard.joined(yard.own[0])
    yard.up(yard.task("t"))
    yard.cut(name)
    yard.pass_time(10_000.0)
    assert yard.machine(name) is MachineState.SERVING
    yard.machines[NodeId(name)].linked = True
    yard.hear(name)
    assert yard.state.nodes[NodeId(name)].state is NodeState.READY


def test_one_that_vanished_takes_even_waiting_work_off_its_node() -> None:
    yard = Yard()
    yard.submit(trial_spec("t", on_node_lost=OnNodeLost.WAIT))
    name = yard.joined(yard.own[0])
    yard.up(yard.task("t"))
    facts = yard.listed()
    assert names(facts)[:3] == ["MachineGone", "NodeSuspected", "NodeLost"]
    assert NodeId(name) not in yard.state.nodes
    assert yard.state.tasks[yard.task("t")].state is TaskState.QUEUED
    assert len(yard.own) == 1 and yard.own != [name]


def test_a_listing_says_nothing_of_what_came_after_it() -> None:
    yard = Yard()
    before = yard.state.index
    name, _ = yard.served()
    assert yard.listed(index=before) == []
    assert yard.listed(lag_s=60.0) == []
    yard.pass_time(61.0)
    assert "MachineGone" in names(yard.listed(lag_s=60.0))
    assert yard.listed(name, index=before) == [], "it went after the listing was taken"
    assert "MachineStray" in names(yard.listed(name))


def test_a_stray_is_stopped_and_one_with_work_is_emptied_first() -> None:
    yard = Yard()
    yard.listed("pool-1-77")
    assert yard.state.machines[MachineId("pool-1-77")].reason is StopReason.STRAY
    yard.terminated(MachineId("pool-1-77"))
    yard.add_node("pool-1-88", 4)  # a backup was restored that knows nothing of it
    yard.submit(trial_spec("t"))
    yard.up(yard.task("t"))
    assert names(yard.listed("pool-1-88")) == ["NodeWished"]
    assert MachineId("pool-1-88") not in yard.state.machines
    yard.exit(yard.m(yard.task("t")), Exit(0))
    assert "MachineStray" in names(yard.listed("pool-1-88"))


def test_one_that_is_off_and_never_reported_is_cleared_away() -> None:
    yard = Yard()
    yard.submit(trial_spec("t"))
    (name,) = yard.own
    yard.launched(name)
    off = Instance(name, "i", POOL, "c", running=False)
    yard.do(e.MachinesListed(cause="provider", pool=POOL, instances=(off,), index=yard.state.index))
    assert yard.state.machines[name].reason is StopReason.STOPPED


def test_one_that_is_off_is_not_waited_for_though_its_work_would() -> None:
    yard = Yard()
    yard.submit(trial_spec("t", on_node_lost=OnNodeLost.WAIT))
    name = yard.joined(yard.own[0])
    yard.up(yard.task("t"))
    off = e.MachinesListed(
        cause="provider", pool=POOL, instances=(Instance(name, "i", POOL, "c", running=False),), index=yard.state.index
    )
    assert yard.do(off) == [], "as long as its agent speaks, it runs"
    yard.cut(name)
    assert yard.do(off) == [], "nor is a moment of silence enough"
    yard.pass_time(31.0)
    yard.do(off)
    assert yard.state.machines[name].reason is StopReason.STOPPED
    yard.terminated(name)
    assert yard.state.tasks[yard.task("t")].state is TaskState.QUEUED, "it starts elsewhere"


# -- what is kept -------------------------------------------------------------------------------------------------


def test_machines_come_through_a_snapshot_and_old_snapshots_have_none() -> None:
    yard = Yard()
    yard.served()
    yard.submit(trial_spec("big", 4))
    yard.do(e.LaunchFailed(cause="provider", machine=yard.own[-1], detail="no"))
    again = thaw(freeze(yard.state), {})
    assert (again.machines, again.setbacks, again.gone_machines) == (
        yard.state.machines,
        yard.state.setbacks,
        yard.state.gone_machines,
    )
    old = msgspec.msgpack.decode(freeze(yard.state).payload)
    for field in ("machines", "setbacks", "gone_machines"):
        del old[field]
    snapshot = msgspec.structs.replace(freeze(yard.state), version=1, payload=msgspec.msgpack.encode(old))
    assert thaw(snapshot, {}).machines == {}


def test_names_that_are_gone_are_remembered_within_a_bound() -> None:
    yard = Yard()
    for number in range(MACHINES_REMEMBERED + 5):
        stray = Instance(MachineId(f"x-{number}"), "i", POOL, "c")
        yard.tell(e.MachinesListed(cause="p", pool=POOL, instances=(stray,), index=yard.state.index))
        yard.tell(e.MachineDown(cause="p", machine=stray.machine))
    assert len(yard.state.gone_machines) == MACHINES_REMEMBERED
    assert MachineId("x-4") not in yard.state.gone_machines


def test_a_machine_has_a_view_while_it_lives_and_after() -> None:
    yard = Yard()
    yard.submit(trial_spec("t"))
    (name,) = yard.own
    assert machine_view(yard.state.machines[name]).state == "asked"
    yard.tell(e.LaunchFailed(cause="provider", machine=name, detail="no room"))
    yard.tell(e.MachineDown(cause="provider", machine=name))
    views = [view for view in project(yard.state, yard.state.touched) if isinstance(view, MachineView)]
    assert [(v.key, v.state, v.reason, v.detail) for v in views] == [(name, "gone", "launch_failed", "no room")]


class Walker:
    """Does one thing after the other to a yard, as chance has it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.yard = Yard(msgspec.structs.replace(SCALE, nodes_min=seed % 2, nodes_max=3))
        self.submitted = 0

    def step(self) -> None:
        verbs = ("submit", "up", "fail", "join", "down", "exit", "time", "time", "vanish", "cut", "mend")
        getattr(self, self.chance.choice(verbs))()

    def one(self, *states: MachineState) -> MachineId | None:
        found = [m.machine for m in self.yard.state.machines.values() if m.state in states]
        return self.chance.choice(found) if found else None

    def submit(self) -> None:
        if self.submitted < 25:
            self.submitted += 1
            self.yard.submit(trial_spec(f"t{self.submitted}", self.chance.choice((1, 2, 4))))

    def up(self) -> None:
        if name := self.one(*MachineState):
            self.yard.launched(name)

    def fail(self) -> None:
        if name := self.one(*MachineState):
            self.yard.do(e.LaunchFailed(cause="provider", machine=name, detail="no"))

    def join(self) -> None:
        if name := self.one(MachineState.ASKED, MachineState.LAUNCHED):
            self.yard.add_node(name, 4)

    def down(self) -> None:
        if name := self.one(MachineState.STOPPING):
            self.yard.terminated(name)

    def exit(self) -> None:
        for task in list(self.yard.state.allocations)[:1]:
            if self.yard.machines[self.yard.node_of(task)].linked:
                self.yard.up(task)
                self.yard.exit(self.yard.m(task), Exit(0))

    def time(self) -> None:
        self.yard.pass_time(self.chance.choice((1.0, 30.0, 61.0, 301.0)))

    def vanish(self) -> None:
        """The provider loses one of those it has, and lists the others."""
        has = [m.machine for m in self.yard.state.machines.values() if m.launched_at is not None]
        if has and self.chance.random() < 0.5:
            lost = has.pop(self.chance.randrange(len(has)))
            if self.yard.machine(lost) is not MachineState.STOPPING:
                self.yard.machines.pop(NodeId(lost), None)
        self.yard.listed(*has)

    def cut(self) -> None:
        if name := self.one(MachineState.SERVING):
            self.yard.cut(name)

    def mend(self) -> None:
        if name := self.one(MachineState.SERVING):
            self.yard.machines[NodeId(name)].linked = True
            self.yard.hear(name)


@pytest.mark.parametrize("seed", range(12))
def test_walks(seed: int) -> None:
    """Whatever happens in whatever order: the outbox follows the state (``settle``), there are no more machines than
    allowed, none is stopped for want of work with work on it, and the rows fold to the same state."""
    walker = Walker(seed)
    yard = walker.yard
    for _ in range(150):
        walker.step()
        assert len(yard.state.machines) <= 3
        for machine in yard.state.machines.values():
            if machine.reason in (StopReason.IDLE, StopReason.OVER_MAX):
                assert not yard.state.members_on.get(NodeId(machine.machine))
    assert freeze(yard.refold()).payload == freeze(yard.state).payload


def test_the_walks_go_everywhere() -> None:
    seen: set[str] = set()
    for seed in range(12):
        walker = Walker(seed)
        for _ in range(150):
            walker.step()
        seen.update(type(recorded.fact).__name__ for recorded in walker.yard.history)
    missing = [kind.__name__ for kind in f.FACTS.values() if kind.__name__.startswith("Machine")]
    assert [name for name in missing if name not in seen and name != "MachineStray"] == []
