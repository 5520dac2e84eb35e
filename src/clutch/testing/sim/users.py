"""People: they submit work of three kinds, change their minds, and run cells."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgspec

from clutch.testing.sim.calls import Caller
from clutch.testing.sim.processes import Work, encode_work
from clutch.testing.sim.sweep import SweepSpec
from clutch.wire import events as e
from clutch.wire.ids import LeaseId, MemberId, NodeId, PoolName, TaskId
from clutch.wire.messages import WantedLease
from clutch.wire.outcomes import NodeWish, TaskState, TaskWish
from clutch.wire.resources import ANY, CUDA, Resources
from clutch.wire.specs import Members, OnDeath, OnNodeLost, RoleSpec, Split, Spread, Subscription, TaskSpec

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster
    from clutch.testing.sim.machine import Machine

POOL = PoolName("main")
PEOPLE = ("ada", "bob", "eve")


class Person:
    """One host from which everybody works, so that their messages are lost and repeated like any others."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.chance = self.world.chance("people")
        self.caller = Caller(cluster, "people")
        self.sessions: dict[TaskId, Session] = {}
        self.tasks: list[TaskId] = []
        self.programs: list[TaskId] = []
        plan = cluster.plan
        for number in range(plan.tasks):
            self._at(self.chance.uniform(0.5, plan.work_s * 0.8), lambda number=number: self._submit(number))
        for _ in range(plan.tasks // 2):
            self._at(self.chance.uniform(5.0, plan.work_s), self._change_mind)
        for _ in range(self.chance.randint(0, 2)):
            self._at(self.chance.uniform(5.0, plan.work_s), self._operate)

    def _at(self, after_s: float, action: object) -> None:
        assert callable(action)
        self.world.after(after_s, action)

    # -- submitting ----------------------------------------------------------------------------------------------

    def _submit(self, number: int) -> None:
        kind = self.chance.choice(("trial", "trial", "trial", "gang", "command", "notebook", "rl", "sweep"))
        if kind == "sweep":
            self._sweep(number)
            return
        task = TaskId(f"{kind}-{number}")
        spec = make_spec(kind, task, self.chance, self.cluster.plan.slots * self.cluster.plan.nodes)
        event = e.Submit(cause=f"api:{spec.owner}", task=task, spec=spec, key=f"key-{number}")

        def answered(answer: object, error: str) -> None:
            if error:
                return
            self.cluster.promises.submit_acknowledged(task)
            self.cluster.acknowledged_tasks[task] = None
            self.tasks.append(task)
            if kind in ("rl", "gang"):
                self.programs.append(task)
            if kind == "rl":
                self._at(self.chance.uniform(2.0, 15.0), lambda: self._resize(task))
            if kind == "notebook":
                self.sessions[task] = Session(self.cluster, task, spec)

        self.caller.ask(event, answered)

    def _sweep(self, number: int) -> None:
        name = f"sweep-{number}"
        trial = make_spec("trial", TaskId(f"{name}-trial"), self.chance, self.cluster.plan.slots)
        spec = SweepSpec(
            trials=self.chance.randint(2, 6),
            at_once=2,
            enough=self.chance.randint(1, 4),
            trial=trial,
            patience_s=self.chance.choice((10.0, 60.0)),
        )
        event = e.OpenController(cause="api:ada", controller=name, kind="sweep", spec=msgspec.msgpack.encode(spec))
        self.caller.ask(event, lambda answer, error: None)

    # -- changing one's mind -------------------------------------------------------------------------------------

    def _change_mind(self) -> None:
        if not self.tasks:
            return
        task = self.chance.choice(self.tasks)
        kind = self.chance.choice(("pause", "cancel", "kill", "priority", "resize", "resize", "exclude"))
        if kind == "pause":
            self._wish(e.Pause(cause="api:bob", task=task), TaskWish.PAUSE)
            self._at(
                self.chance.uniform(1.0, 20.0), lambda: self._wish(e.Resume(cause="api:bob", task=task), TaskWish.RUN)
            )
        elif kind == "cancel":
            self._wish(e.Cancel(cause="api:ada", task=task), TaskWish.CANCEL)
        elif kind == "kill":
            self._wish(e.Kill(cause="api:ada", task=task), TaskWish.KILL)
        elif kind == "priority":
            event = e.SetPriority(cause="api:eve", task=task, priority=self.chance.choice((1, 30, 42, 60, 99)))
            self.caller.ask(event, lambda answer, error: None)
        elif kind == "exclude":
            node = NodeId(f"n{self.chance.randrange(self.cluster.plan.nodes)}")
            event_exclude = e.ExcludeNode(cause="api:eve", task=task, node=node)
            if self.cluster.plan.nodes > 3:
                self.caller.ask(event_exclude, lambda answer, error: None)
        else:
            self._resize(self.chance.choice(self.programs or [task]))

    def _resize(self, task: TaskId) -> None:
        """Another size, but none that the cluster could never hold: that would wait for ever, and rightly so."""
        found = self.cluster.truth.state.tasks.get(task)
        role = found.spec.roles[-1] if found is not None else None
        if role is None or not isinstance(role.shape, Members):
            return
        plan, shape = self.cluster.plan, role.shape
        most = max(1, plan.nodes * plan.slots // (2 * shape.each.slots)) if shape.each.slots else 4
        event = e.Resize(cause="api:ada", task=task, role=role.name, count=self.chance.randint(1, min(4, most)))
        self.caller.ask(event, lambda answer, error: None)

    def _wish(self, event: e.Pause | e.Resume | e.Cancel | e.Kill, wish: TaskWish) -> None:
        def answered(answer: object, error: str) -> None:
            if not error and wish is not TaskWish.RUN:
                self.cluster.promises.wish_acknowledged(event.task, wish)

        self.caller.ask(event, answered)

    def _operate(self) -> None:
        """An operator drains a node and opens it again, or disables a slot for a while."""
        node = NodeId(f"n{self.chance.randrange(self.cluster.plan.nodes)}")
        back = self.chance.uniform(5.0, 30.0)
        if self.chance.random() < 0.6:
            self.caller.ask(e.DrainNode(cause="api:ops", node=node), lambda answer, error: None)
            if self.chance.random() < 0.4:  # taken out while its agent runs: it joins again with its next report
                remove = e.RemoveNode(cause="api:ops", node=node)
                self._at(back / 2, lambda: self.caller.ask(remove, lambda answer, error: None))
            self._at(back, lambda: self.open(node))
        else:
            self.caller.ask(e.DisableSlots(cause="api:ops", node=node, slots=(0,)), lambda answer, error: None)
            self._at(back, lambda: self.enable(node))

    def open(self, node: NodeId) -> None:
        self.caller.ask(e.OpenNode(cause="api:ops", node=node), lambda answer, error: None)

    def enable(self, node: NodeId) -> None:
        self.caller.ask(e.DisableSlots(cause="api:ops", node=node, slots=()), lambda answer, error: None)

    # -- the end of the day --------------------------------------------------------------------------------------

    def wind_up(self) -> None:
        """Everything is mended: nodes are opened, paused work resumed, sessions closed, quotas lifted; the rest must
        end by itself."""
        state = self.cluster.truth.state
        for scope in state.quotas:
            self.caller.ask(e.RemoveQuota(cause="api:ops", scope=scope), lambda answer, error: None)
        for node, known in state.nodes.items():
            if known.wish is not NodeWish.OPEN:
                self.open(node)
            if known.disabled:
                self.enable(node)
        self.cluster.researcher.wind_up()
        for task, found in state.tasks.items():
            if found.controller:  # it belongs to a workload, which knows why it rests
                continue
            if found.spec.kind == "notebook" and found.wish in (TaskWish.RUN, TaskWish.PAUSE):
                self.caller.ask(e.Cancel(cause="api:ops", task=task), lambda answer, error: None)
            elif found.wish is TaskWish.PAUSE:
                self.caller.ask(e.Resume(cause="api:ops", task=task), lambda answer, error: None)


class Session:
    """A notebook's user: thinks, runs a cell on whichever replica gets the slots, thinks, runs the next."""

    def __init__(self, cluster: Cluster, task: TaskId, spec: TaskSpec) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.chance = self.world.chance(f"session-{task}")
        self.task = task
        self.spec = spec
        self.caller = Caller(cluster, f"people/{task}")
        self.cell = 0
        self.lease: LeaseId | None = None
        self.handed: WantedLease | None = None
        self.use = 0
        self._think()

    @property
    def over(self) -> bool:
        return self.task in self.cluster.truth.ended or self.cluster.winding_up

    def _think(self) -> None:
        self.world.after(self.chance.uniform(0.5, 6.0), self._next_cell)

    def _next_cell(self) -> None:
        if self.over:
            return
        if self.handed is not None and self.lease is not None:
            self.use += 1
            event = e.ReuseLease(cause="cell", lease=self.lease, number=self.handed.number, use=self.use)
            self.caller.ask(event, lambda answer, error: self._reused(error))
            return
        found = self.cluster.truth.state.tasks.get(self.task)
        if found is None or found.state is not TaskState.RUNNING:
            self._think()
            return
        self.cell = max(self.cell, found.last_cell) + 1
        role = self.spec.roles[0]
        assert isinstance(role.shape, Members) and role.subscribes is not None
        self.lease = LeaseId(f"{self.task}/{self.cell}")
        members = tuple(MemberId(self.task, role.name, rank) for rank in range(role.shape.count))
        event_ask = e.AskLease(
            cause="cell",
            lease=self.lease,
            task=self.task,
            cell=self.cell,
            members=members,
            slots=self.chance.randint(1, role.subscribes.slots),
            kind=CUDA,
            wait_limit_s=self.chance.choice((5.0, 15.0, 60.0)),
            linger_s=self.chance.choice((1.0, 5.0, 20.0)),
        )
        asked = self.lease
        self.caller.ask(event_ask, lambda answer, error: self._asked(asked, error))

    def _asked(self, lease: LeaseId, error: str) -> None:
        if error:
            self.lease = None
            self._think()
        else:
            self.world.after(2.0, lambda: self._still_waiting(lease))

    def _still_waiting(self, lease: LeaseId) -> None:
        """Look whether the lease is still to come; a lost one is given up and the next cell asks again."""
        if self.lease != lease or self.handed is not None:
            return
        if lease in self.cluster.truth.state.leases:
            self.world.after(2.0, lambda: self._still_waiting(lease))
        else:
            self.lease = None
            self._think()

    def _reused(self, error: str) -> None:
        if error or self.handed is None:
            self.lease = self.handed = None
            self._think()
        else:
            self._run()

    def handed_over(self, lease: WantedLease, machine: Machine) -> None:
        if lease.lease == self.lease and self.handed is None:
            self.handed, self.use = lease, 1
            self._run()

    def _run(self) -> None:
        running = self.handed
        self.world.after(self.chance.uniform(0.2, 5.0), lambda: self._ran(running))

    def _ran(self, running: WantedLease | None) -> None:
        if running is None or self.handed is not running:
            return
        event = e.IdleLease(cause="cell", lease=running.lease, number=running.number, use=self.use)
        self.caller.ask(event, lambda answer, error: self._think())

    def gone(self, lease: LeaseId) -> None:
        """The slots were taken back, or died with their machine: the next cell asks anew."""
        if lease == self.lease:
            was_waiting = self.handed is not None
            self.lease = self.handed = None
            if was_waiting:
                self._think()


def make_spec(kind: str, task: TaskId, chance: Random, slots_in_all: int) -> TaskSpec:
    """A task of a kind, of a size that fits somewhere."""
    owner = chance.choice(PEOPLE)
    work = Work(
        steps=chance.randint(3, 40),
        step_s=chance.choice((0.3, 1.0, 2.0)),
        checkpoint_every=chance.choice((2, 5)),
        stubborn=chance.choice((0.0, 0.0, 0.5)),
        failing=chance.choice((0.0, 0.0, 0.02)),
    )
    small = Resources(slots=chance.choice((1, 1, 2)), kind=ANY, millicpus=500, memory_bytes=2**28)
    priority = chance.choice((10, 42, 42, 42, 80))
    on_node_lost = OnNodeLost.RESTART
    roles: tuple[RoleSpec, ...]
    if kind == "trial":
        roles = (RoleSpec(name="main", shape=Members(count=1, each=small)),)
    elif kind == "gang":
        if chance.random() < 0.5:
            most = max(1, min(6, slots_in_all // 2))
            roles = (RoleSpec(name="main", shape=Split(slots=chance.randint(1, most))),)
        else:
            one = Resources(slots=1, millicpus=500)
            roles = (RoleSpec(name="main", shape=Members(count=chance.randint(2, 3), each=one)),)
    elif kind == "command":
        on_node_lost = OnNodeLost.WAIT
        roles = (RoleSpec(name="main", shape=Members(count=1, each=Resources(millicpus=1000))),)
    elif kind == "notebook":
        replica = RoleSpec(
            name="replica",
            shape=Members(count=chance.choice((1, 3)), each=Resources(millicpus=200)),
            spread=Spread.SOFT,
            subscribes=Subscription(slots=chance.choice((1, 2))),
            on_death=OnDeath.RESPAWN,
        )
        roles, work = (replica,), Work(step_s=3.0, failing=work.failing)
    else:
        trainer = RoleSpec(name="trainer", shape=Members(count=1, each=Resources(slots=1, millicpus=500)))
        actor = RoleSpec(
            name="actor",
            shape=Members(count=chance.randint(1, 4), each=Resources(millicpus=500)),
            on_death=OnDeath.RESPAWN,
            count_min=1,
            count_max=6,
        )
        roles, work = (trainer, actor), msgspec.structs.replace(work, stubborn=chance.choice((0.0, 0.6)))
    return TaskSpec(
        kind=kind,
        name=str(task),
        pool=POOL,
        roles=roles,
        owner=owner,
        workspace=chance.choice(("lab", "class")),
        priority=priority,
        preemptible=kind != "notebook" and chance.random() < 0.85,
        leave_within_s=chance.choice((2.0, 8.0, 20.0)),
        max_restarts=chance.choice((0, 2, 8)),
        on_node_lost=on_node_lost,
        flush_deadline_s=5.0,
        payload=encode_work(work),
    )
