"""A simulated node: a machine with directories, processes and devices, and an agent that may die without them.

Everything but the agent's brain is a stand-in. What is on the machine outlives the agent; a reboot ends the processes
but keeps their directories, so the records tell that the machine went down under them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from clutch.agent import brain as b
from clutch.testing.sim.calls import Caller
from clutch.testing.sim.processes import Process
from clutch.testing.sim.trials import make_program
from clutch.wire import events as e
from clutch.wire.ids import LeaseId, NodeId, PoolName
from clutch.wire.messages import (
    Exit,
    ExitCause,
    Hello,
    MemberStatus,
    ObservedLease,
    Refusal,
    Wanted,
    WantedLease,
    WantedMember,
)
from clutch.wire.programs import program_in
from clutch.wire.resources import Capacity

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster

BEAT_S = 1.0


class Directory:
    """One incarnation's folder: its process while it lives, its exit record afterwards."""

    def __init__(self, wanted: WantedMember) -> None:
        self.wanted = wanted
        self.status = MemberStatus.STARTING
        self.exit: Exit | None = None
        self.process: Process | None = None


class Machine:
    def __init__(self, cluster: Cluster, node: NodeId, pool: PoolName, capacity: Capacity) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.node = node
        self.pool = pool
        self.capacity = self.whole = capacity
        self.directories: dict[b.Key, Directory] = {}
        self.leases: dict[LeaseId, WantedLease] = {}
        self.agent: Agent | None = None
        self.up = True
        self.mute = False
        """Its agent never starts: a machine that came up wrong, or is no more."""
        self._agents = 0

    # -- the agent's life ----------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        if self.up and self.agent is None and not self.mute:
            self._agents += 1
            self.agent = Agent(self, f"{self.node}-{self._agents}")

    def crash_agent(self) -> None:
        if self.agent is not None:
            self.agent.die()
            self.agent = None

    def reboot(self) -> None:
        """Power off: every process ends with the machine. ``power_on`` brings the agent back."""
        self.crash_agent()
        self.up = False
        for key in list(self.directories):
            self._end(key, Exit(-1, ExitCause.MACHINE))
        self.leases.clear()

    def scrap(self) -> None:
        """The machine is no more, and nothing of it comes back."""
        self.reboot()
        self.directories.clear()
        self.mute = True

    def power_on(self) -> None:
        self.up = True
        self.start_agent()

    def lose_slot(self) -> None:
        """A device falls off the bus; the agent notices when it looks again, which is when it starts."""
        if self.capacity == self.whole and len(self.whole.slots) > 1:
            self.capacity = msgspec.structs.replace(self.whole, slots=self.whole.slots[:-1])
            self.crash_agent()
            self.start_agent()

    def repair(self) -> None:
        """Every device is there again."""
        if self.capacity != self.whole:
            self.capacity = self.whole
            self.crash_agent()
            self.start_agent()

    # -- what is physically so -----------------------------------------------------------------------------------

    def in_use(self) -> dict[int, str]:
        """Which slot is occupied by what, right now. Two occupants of one slot are a broken promise."""
        found: dict[int, str] = {}
        for (member, fence), directory in self.directories.items():
            if directory.status is not MemberStatus.EXITED:
                for slot in directory.wanted.slots:
                    self.cluster.promises.slot_taken(self.node, slot, f"{member} {fence}", found)
        for lease, held in self.leases.items():
            for slot in held.slots:
                self.cluster.promises.slot_taken(self.node, slot, f"lease {lease} #{held.number}", found)
        return found

    def begin(self, wanted: WantedMember) -> None:
        """Make the directory, which can be made only once, and start the process a little later."""
        key = (wanted.member, wanted.fence)
        if key in self.directories:
            return
        self.cluster.promises.starting(self.node, wanted)
        self.directories[key] = Directory(wanted)
        self.in_use()
        chance = self.world.chance("starts")
        self.world.after(chance.uniform(0.02, 0.5), lambda: self._up(key))

    def _up(self, key: b.Key) -> None:
        directory = self.directories.get(key)
        if directory is None or directory.status is not MemberStatus.STARTING or not self.up:
            return
        luck = self.world.chance("starts").random()
        if luck < 0.02:
            cause, why = (ExitCause.NO_DATA, "no data") if luck < 0.005 else (ExitCause.NEVER_STARTED, "no image")
            self.ended(key, Exit(126, cause, reason=why))
            return
        directory.status = MemberStatus.RUNNING
        program = program_in(directory.wanted.payload)
        wanted = directory.wanted
        directory.process = make_program(self, wanted, program) if program is not None else Process(self, wanted)
        if self.agent is not None:
            self.agent.do(self.agent.brain.started(*key))

    def ended(self, key: b.Key, exit: Exit) -> None:
        """A process is gone, and with it what it held."""
        if not self._end(key, exit):
            return
        for lease, held in list(self.leases.items()):
            if (held.member, held.fence) == key:
                self.give_back(lease, held.number)
        if self.agent is not None:
            recorded = self.directories[key].exit
            assert recorded is not None
            self.agent.do(self.agent.brain.exited(key[0], key[1], recorded))
            self.agent.ship(key)

    def _end(self, key: b.Key, exit: Exit) -> bool:
        directory = self.directories.get(key)
        if directory is None or directory.status is MemberStatus.EXITED:
            return False
        if directory.process is not None:
            if directory.process.failed and exit.cause is ExitCause.ENDED:
                exit = Exit(1)
            exit = msgspec.structs.replace(exit, output_offset=directory.process.output, metrics_sequence=1)
            directory.process.die()
            self.cluster.gangs.ended(directory.process, exit)
        directory.status, directory.exit = MemberStatus.EXITED, exit
        return True

    def hand_over(self, lease: WantedLease) -> None:
        self.cluster.promises.handing(self.node, lease)
        self.leases[lease.lease] = lease
        self.in_use()
        self.cluster.lease_handed(lease, self)

    def give_back(self, lease: LeaseId, number: int) -> None:
        held = self.leases.get(lease)
        if held is None or held.number != number:
            return
        del self.leases[lease]
        self.cluster.lease_gone(lease)
        if self.agent is not None:
            self.agent.do(self.agent.brain.freed(lease, number))


class Agent:
    """One start of the agent: a brain, and hands that do what it says."""

    def __init__(self, machine: Machine, session: str) -> None:
        self.machine = machine
        self.world = machine.world
        self.session = session
        self.alive = True
        found = [
            (member, fence, b.Record(directory.status, directory.exit))
            for (member, fence), directory in machine.directories.items()
        ]
        leases = [ObservedLease(lease, held.number) for lease, held in machine.leases.items()]
        self.brain = machine.cluster.make_brain(machine, session, found, leases)
        machine.cluster.network.attach(machine.node, self._arrived)
        self.lanes = Caller(machine.cluster, f"{machine.node}/lanes-{session}")
        self._asked_back: dict[tuple[LeaseId, int], None] = {}
        for member, fence, record in found:
            if record.status is MemberStatus.EXITED:
                self.ship((member, fence))
        self._beat()

    def die(self) -> None:
        self.alive = False
        self.lanes.close()
        self.machine.cluster.network.detach(self.machine.node)

    def _beat(self) -> None:
        if self.alive:
            self.do(self.brain.beat())
            self.world.after(BEAT_S, self._beat)

    def _arrived(self, sender: str, message: Hello | Wanted | Refusal) -> None:
        if not self.alive:
            return
        match message:
            case Hello():
                self.do(self.brain.greeted(message))
            case Wanted():
                self.do(self.brain.ordered(message))
            case Refusal():
                self.do(self.brain.refused(message))

    def do(self, effects: list[b.Effect]) -> None:
        for effect in effects:
            if not self.alive:
                return
            self._do(effect)

    def _do(self, effect: b.Effect) -> None:
        machine, cluster = self.machine, self.machine.cluster
        match effect:
            case b.Say(report):
                for master in cluster.master_hosts:
                    cluster.network.send(machine.node, master, report)
            case b.Start(wanted):
                machine.begin(wanted)
            case b.AskLeave(wanted):
                directory = machine.directories.get((wanted.member, wanted.fence))
                if directory is not None and directory.process is not None:
                    directory.process.asked_to_leave(wanted)
            case b.End(member, fence, stray):
                cluster.promises.ending(machine.node, member, fence, stray)
                self._later(0.0, 0.05, lambda: machine.ended((member, fence), Exit(-9, ExitCause.ENDED)))
            case b.Forget(member, fence):
                machine.directories.pop((member, fence), None)
            case b.HandOver(lease):
                machine.hand_over(lease)
            case b.Complain(refusal):
                cluster.notes.append((self.world.now, f"{machine.node} is refused: {refusal.error.cause}"))
            case b.TakeBack(lease, number, deadline):
                self._take_back(lease, number, deadline)

    def _take_back(self, lease: LeaseId, number: int, deadline: float) -> None:
        """The interpreter brings its tensors to the host, or is ended: either way the slots are free soon."""
        if (lease, number) in self._asked_back and self.world.now < deadline:
            return
        self._asked_back[lease, number] = None
        self._later(0.01, 0.3, lambda: self.machine.give_back(lease, number))

    def _later(self, least_s: float, most_s: float, action: object) -> None:
        assert callable(action)
        self.world.after(self.world.chance("hands").uniform(least_s, most_s), action)

    def ship(self, key: b.Key) -> None:
        """Send what the dead member had spooled; the store then says how far it got. Now and then that never works."""
        directory = self.machine.directories.get(key)
        if directory is None or directory.exit is None or self.world.chance("lanes").random() < 0.05:
            return
        member, fence = key
        reached = e.ReachLanes(
            cause=f"lanes:{member}",
            member=member,
            fence=fence,
            metrics_sequence=directory.exit.metrics_sequence,
            output_offset=directory.exit.output_offset,
        )
        self._later(0.01, 1.0, lambda: self.lanes.ask(reached, lambda answer, error: None))
