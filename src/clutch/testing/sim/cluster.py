"""Masters, machines and people in one world, wired together by hand."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from clutch.agent.brain import Brain, Record
from clutch.backends.journal.memory import MemoryStore
from clutch.core.controller import Controller
from clutch.master.effects import Performer
from clutch.master.loop import Loop
from clutch.master.provisioner import Provisioner
from clutch.testing.network import FAIR, Network
from clutch.testing.sim.borrowing import Borrower
from clutch.testing.sim.cloud import MEMORY_BYTES, MILLICPUS, Cloud
from clutch.testing.sim.experiment_promises import ExperimentPromises
from clutch.testing.sim.experiments import Researcher
from clutch.testing.sim.gangs import Gangs
from clutch.testing.sim.machine import Machine
from clutch.testing.sim.machine_promises import MachinePromises
from clutch.testing.sim.master import Master
from clutch.testing.sim.plan import MACHINE_FAULTS, MASTER_FAULTS, Fault, FaultKind, SimPlan
from clutch.testing.sim.promises import Promises
from clutch.testing.sim.sweep import SweepController
from clutch.testing.sim.truth import Truth
from clutch.testing.sim.users import POOL, Person
from clutch.testing.virtual_loop import VirtualLoop
from clutch.testing.world import World
from clutch.wire import events as e
from clutch.wire.experiments import KIND
from clutch.wire.ids import Fence, LeaseId, MemberId, NodeId, TaskId
from clutch.wire.journal import Batch
from clutch.wire.messages import ObservedLease, WantedLease
from clutch.wire.resources import CUDA, Capacity, Slot
from clutch.wire.specs import Autoscale, FairSharePolicy, PoolSpec, PriorityPolicy, Quota
from clutch.workloads.experiment.controller.controller import ExperimentController


class Kit:
    """The parts under test. A mutation test swaps one of them for a broken one."""

    loop: type[Loop] = Loop
    brain: type[Brain] = Brain
    performer: type[Performer] = Performer
    provisioner: type[Provisioner] = Provisioner
    experiments: type[ExperimentController] = ExperimentController
    borrower: type[Borrower] = Borrower


class Cluster:
    def __init__(self, plan: SimPlan, kit: type[Kit] = Kit) -> None:
        self.plan = plan
        self.kit = kit
        self.world = World(plan.seed)
        self.network = Network(self.world, FAIR)
        self.controllers: dict[str, Controller] = {"sweep": SweepController(), KIND: ExperimentController()}
        """What the truth is folded by; masters have their kit's."""
        self.truth = Truth(self.controllers)
        self.promises = Promises(self)
        self.machine_promises = MachinePromises(self)
        self.experiment_promises = ExperimentPromises(self)
        self.gangs = Gangs(self)
        self.cloud = Cloud(self)
        self.acknowledged_tasks: dict[TaskId, None] = {}
        self.acknowledged_steps: dict[TaskId, int] = {}
        self.winding_up = False
        self.loops: list[VirtualLoop] = []
        self.power_fails_for_s = 0.0
        """Above 0: the next commit is cut in the middle, and every master with it."""
        self.fired: dict[FaultKind, int] = {}
        self.notes: list[tuple[float, str]] = []
        """What went wrong when, in words."""
        self.store = MemoryStore(lambda: self.world.now)
        self.master_hosts = [f"m{number}" for number in range(plan.masters)]
        self.masters = {host: Master(self, host) for host in self.master_hosts}
        self.machines: dict[NodeId, Machine] = {}
        for number in range(plan.static_nodes):
            node = NodeId(f"n{number}")
            slots = tuple(Slot(index, CUDA) for index in range(plan.slots))
            capacity = Capacity(slots=slots, millicpus=MILLICPUS, memory_bytes=MEMORY_BYTES)
            self.machines[node] = Machine(self, node, POOL, capacity)
        self.people = Person(self)
        self.researcher = Researcher(self)
        self.borrower = kit.borrower(self) if plan.borrowers else None
        for master in self.masters.values():
            master.start()
        self._set_up()
        for machine in self.machines.values():
            machine.start_agent()
        for fault in plan.faults:
            self.world.after(fault.at_s, partial(self._strike, fault))
        self.network.weather = plan.weather

    def _set_up(self) -> None:
        policy = FairSharePolicy() if self.plan.fair_share else PriorityPolicy()
        pool = PoolSpec(
            name=POOL,
            policy=policy,
            node_lost_after_s=20.0,
            min_run_s=5.0,
            interactive_headroom=1 if self.plan.seed % 3 == 0 else 0,
            autoscale=self._autoscale(),
        )
        self.people.caller.ask(e.PutPool(cause="setup", pool=pool), lambda answer, error: None)
        if self.plan.quotas:
            quota = Quota("user:bob", max(2, self.plan.slots))
            self.people.caller.ask(e.SetQuota(cause="setup", quota=quota), lambda answer, error: None)

    def _autoscale(self) -> Autoscale | None:
        plan = self.plan.machines
        if plan is None:
            return None
        return Autoscale(
            nodes_min=plan.nodes_min,
            nodes_max=plan.nodes_max,
            slots_per_node=self.plan.slots,
            millicpus_per_node=MILLICPUS,
            memory_bytes_per_node=MEMORY_BYTES,
            idle_s=plan.idle_s,
            starting_s=plan.starting_s,
            disconnected_s=plan.disconnected_s,
        )

    def make_brain(
        self,
        machine: Machine,
        session: str,
        found: Iterable[tuple[MemberId, Fence, Record]],
        leases: Iterable[ObservedLease],
    ) -> Brain:
        return self.kit.brain(machine.node, machine.pool, session, machine.capacity, found, leases)

    # -- between machines and sessions ---------------------------------------------------------------------------

    def lease_handed(self, lease: WantedLease, machine: Machine) -> None:
        session = self.people.sessions.get(lease.member.task)
        if session is not None:
            session.handed_over(lease, machine)

    def lease_gone(self, lease: LeaseId) -> None:
        session = self.people.sessions.get(TaskId(lease.partition("/")[0]))
        if session is not None:
            session.gone(lease)

    # -- faults --------------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        self.fired[fault.kind] = self.fired.get(fault.kind, 0) + 1
        if fault.kind in MACHINE_FAULTS:
            self.notes.append((self.world.now, f"{fault.kind} for {fault.lasts_s:g} s"))
            self.fired[fault.kind] -= not self.cloud.strike(fault)
            return
        on_master = fault.kind in MASTER_FAULTS
        machine = self._target(fault.target)
        where = f"m{fault.target}" if on_master else machine.node if machine else "nobody"
        self.notes.append((self.world.now, f"{fault.kind}: {where} for {fault.lasts_s:g} s"))
        after = self.world.after
        master = self.masters.get(f"m{fault.target}")
        match fault.kind:
            case FaultKind.MASTER_CRASH if master:
                master.crash()
                after(fault.lasts_s, master.start)
            case FaultKind.MASTER_STOP if master and master.loop is not None:
                stopped = master.loop
                stopped.stop()
                after(fault.lasts_s, stopped.resume)
            case FaultKind.DISK_FULL if master:
                master.disk_full = True
                after(fault.lasts_s, lambda: setattr(master, "disk_full", False))
            case FaultKind.POWER_CUT:
                self.power_fails_for_s = fault.lasts_s
            case FaultKind.CUT_MASTERS if master:
                master.cut_from_journal = True
                after(fault.lasts_s, lambda: setattr(master, "cut_from_journal", False))
            case FaultKind.AGENT_CRASH if machine:
                machine.crash_agent()
                after(fault.lasts_s, machine.start_agent)
            case FaultKind.REBOOT if machine:
                machine.reboot()
                after(fault.lasts_s, machine.power_on)
            case FaultKind.REIMAGE if machine:
                machine.reboot()
                machine.directories.clear()
                after(fault.lasts_s, machine.power_on)
            case FaultKind.SLOT_LOST if machine:
                machine.lose_slot()
                after(fault.lasts_s + 5.0, machine.repair)
            case FaultKind.CUT_NODE if machine:
                self.network.isolate(machine.node, [*self.master_hosts, "people"])
                after(fault.lasts_s, lambda: self._mend(machine.node))
                self.gangs.cut_off(machine, fault.lasts_s)
            case FaultKind.CUT_ONE_WAY if machine:
                for host in self.master_hosts:
                    self.network.cut(host, machine.node)
                after(fault.lasts_s, lambda: self._mend(machine.node))
            case _:
                self.fired[fault.kind] -= 1

    def _target(self, number: int) -> Machine | None:
        """The node of this number; beyond the static ones, one of those that the provider has made."""
        found = self.machines.get(NodeId(f"n{number}"))
        if found is not None or self.plan.machines is None or not self.machines:
            return found
        return list(self.machines.values())[number % len(self.machines)]

    def power_cut(self, batch: Batch) -> None:
        """The journal's machine goes down while a batch is being written: some of its bytes have reached the disk.
        What was there before must be whole afterwards, and nothing of the batch."""
        lasts_s, self.power_fails_for_s = self.power_fails_for_s, 0.0
        for master in self.masters.values():
            master.crash()
            self.world.after(lasts_s, master.start)
        kept, size = self.store.last_index, len(self.store.serialise())
        self.store.write(batch)
        torn_bytes = self.world.chance("power").randint(1, len(self.store.serialise()) - size)
        self.store.become(self.store.torn(torn_bytes))
        if self.store.last_index != kept:
            self.promises.break_(
                "P1", f"{kept} rows were durable before a power cut, {self.store.last_index} after", ""
            )

    def _mend(self, node: NodeId) -> None:
        for host in [*self.master_hosts, "people"]:
            self.network.mend(node, host)
            self.network.mend(host, node)

    def close(self) -> None:
        """The simulation is over: nothing more is said or heard, and every process is unwound."""
        self.network.close()
        for loop in self.loops:
            loop.bury()

    def mend_everything(self) -> None:
        self.winding_up = True
        self.power_fails_for_s = 0.0
        self.cloud.mend()
        self.network.mend_all()
        self.network.weather = FAIR
        for master in self.masters.values():
            master.disk_full = master.cut_from_journal = False
            if master.loop is not None:
                master.loop.resume()
            master.start()
        for machine in self.machines.values():
            machine.up = True
            machine.repair()
            machine.start_agent()
