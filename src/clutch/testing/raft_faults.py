"""What goes wrong in a simulated group, drawn from one stream of chance.

Each fault is a method named for what it does. ``Faults.fired`` counts them, so that a run can say which faults it saw;
``heal`` takes everything back, after which the group must come to rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from clutch.consensus.member import Member
from clutch.consensus.state import Role
from clutch.testing.network import FAIR, FOUL, Weather
from clutch.testing.raft_clients import Wish
from clutch.testing.raft_machine import Machine
from clutch.wire.raft import RaftId

if TYPE_CHECKING:
    from clutch.testing.raft_world import RaftWorld

STORM = Weather(delay_min_s=0.0005, delay_max_s=0.12, loss=0.15, duplication=0.1, straggling=0.1)


class Faults:
    """The bad luck of one world."""

    def __init__(self, world: RaftWorld) -> None:
        self.world = world
        self.fired: dict[str, int] = {}
        self._struck: dict[tuple[int, RaftId], bool] = {}
        self._chance = world.world.chance("faults")
        self._menu = self._menus()[world.settings.menu]

    def _menus(self) -> dict[str, list[tuple[int, str, Callable[[], bool]]]]:
        """Which faults a profile draws from, with their weights."""
        mixed: list[tuple[int, str, Callable[[], bool]]] = [
            (10, "crash", self.crash),
            (6, "crash leader", self.crash_leader),
            (4, "crash all", self.crash_all),
            (6, "partition", self.partition),
            (5, "isolate leader", self.isolate_leader),
            (6, "one-way cut", self.one_way_cut),
            (6, "mend", self.mend),
            (4, "weather", self.weather),
            (4, "slow follower", self.slow_follower),
            (4, "slow disk", self.slow_disk),
            (3, "broken connection", self.broken_connection),
            (3, "disk full", self.disk_full),
            (5, "snapshot", self.snapshot),
            (3, "transfer", self.transfer),
            (3, "replace", self.replace),
            (2, "grow", self.grow),
            (2, "shrink", self.shrink),
        ]
        elections: list[tuple[int, str, Callable[[], bool]]] = [
            (10, "crash leader", self.crash_leader),
            (10, "isolate leader", self.isolate_leader),
            (8, "mend", self.mend),
            (5, "half-isolate leader", self.half_isolate_leader),
            (3, "transfer", self.transfer),
            (3, "crash", self.crash),
            (2, "weather", self.weather),
            (2, "slow follower", self.slow_follower),
            (2, "slow disk", self.slow_disk),
        ]
        members: list[tuple[int, str, Callable[[], bool]]] = [
            (8, "coup", self.coup),
            (6, "grow", self.grow),
            (6, "isolate leader", self.isolate_leader),
            (4, "partition", self.partition),
            (8, "mend", self.mend),
            (3, "crash leader", self.crash_leader),
            (3, "snapshot", self.snapshot),
        ]
        return {"mixed": mixed, "elections": elections, "members": members}

    def begin(self) -> None:
        self.world.world.after(self._chance.uniform(0.3, 0.8), self._next)

    def _next(self) -> None:
        if self.world.healing:
            return
        total = sum(weight for weight, _, _ in self._menu)
        draw = self._chance.randrange(total)
        for weight, name, fault in self._menu:
            draw -= weight
            if draw < 0:
                if fault():
                    self.fired[name] = self.fired.get(name, 0) + 1
                    self.world.tell("fault", name)
                break
        self.world.world.after(self._chance.expovariate(1 / self.world.settings.fault_every_s), self._next)

    def heal(self) -> None:
        """No more faults: links, weather, clocks of disks, space, power."""
        self.world.network.mend_all()
        self.world.network.weather = FAIR
        for machine in self.world.machines.values():
            machine.slow_s = machine.sync_s = 0.0
            machine.files.disk.capacity_bytes = None
            machine.files.plan_crash(1 << 60)
            if machine.wants_up:
                machine.start()

    # ------------------------------------------------------------------------------------------- the faults

    def crash(self) -> bool:
        return self._crash(self._anyone())

    def crash_leader(self) -> bool:
        return self._crash(self.world.leader())

    def crash_all(self) -> bool:
        for machine in self.world.machines_up():
            self._crash(machine)
        return True

    def partition(self) -> bool:
        names = list(self.world.machines)
        self._chance.shuffle(names)
        side = names[: self._chance.randint(1, max(1, len(names) // 2))]
        for name in side:
            self.world.network.isolate(name, [n for n in names if n not in side])
        return True

    def isolate_leader(self) -> bool:
        leader = self.world.leader()
        if leader is None:
            return False
        self.world.network.isolate(leader.name, [n for n in self.world.machines if n != leader.name])
        return True

    def half_isolate_leader(self) -> bool:
        """The leader reaches one other machine and no more: what it appends next is held by two."""
        leader = self.world.leader()
        if leader is None:
            return False
        others = [n for n in self.world.machines if n != leader.name]
        self._chance.shuffle(others)
        self.world.network.isolate(leader.name, others[1:])
        return True

    def ambush(self, member: Member) -> None:
        """Strike a leader at its weakest: just elected, or with older entries on a quorum but none of its own term.

        These are the moments of figure 3.7 of the thesis: an entry of an older term is everywhere it must be and still
        not safe, because whoever held a newer one alone may come back and win.
        """
        state = member.raft.state
        log = state.log
        if (state.term, member.me) in self._struck or log.term(log.commit) == state.term:
            return
        matches = [log.stable if v == member.me else state.progress[v].match for v in log.configuration.voters]
        held = sorted(matches, reverse=True)[len(matches) // 2]
        fresh = all(p.match == 0 for p in state.progress.values())
        if not fresh and 0 < held <= state.change_after and self._chance.random() < 0.3:
            name, others = "ambush", [n for n in self.world.machines if n != member.me.member]
        elif fresh and self._chance.random() < 0.02:
            name, others = "strike", [n for n in self.world.machines if n != member.me.member]
        else:
            return
        self._struck[(state.term, member.me)] = True
        self.fired[name] = self.fired.get(name, 0) + 1
        self.world.tell("fault", name, str(member.me))
        self.world.network.mend_all()
        self.world.network.isolate(member.me.member, others)

    def coup(self) -> bool:
        """Everyone who thinks that it leads tries to remove several others at once."""
        if self.world.administrator.wishes:
            return False
        asked = False
        for machine in self.world.machines_up():
            member = machine.member
            if member is None or member.raft.state.role is not Role.LEADER:
                continue
            others = [v for v in member.raft.state.log.configuration.voters if v != member.me]
            if len(others) < 2:
                continue
            asked = True
            self._chance.shuffle(others)
            for victim in others[:3]:
                if machine.member is member:
                    machine.guarded(functools.partial(self._remove, member, victim))
        return asked

    def _remove(self, member: Member, victim: RaftId) -> None:
        member.requests.remove(victim, 20, lambda outcome: None)

    def one_way_cut(self) -> bool:
        names = list(self.world.machines)
        if len(names) < 2:
            return False
        sender, receiver = self._chance.sample(names, 2)
        self.world.network.cut(sender, receiver)
        return True

    def mend(self) -> bool:
        self.world.network.mend_all()
        return True

    def weather(self) -> bool:
        self.world.network.weather = self._chance.choice([FAIR, FOUL, STORM])
        return True

    def broken_connection(self) -> bool:
        """Somebody thinks that its leader is gone, and is wrong."""
        machine = self._anyone()
        if machine is None or machine.member is None:
            return False
        raft = machine.member.raft
        if raft.state.leader is not None:
            raft.report_gone(raft.state.leader)
        return True

    def slow_follower(self) -> bool:
        machine = self._anyone()
        if machine is None:
            return False
        machine.slow_s = self._chance.choice([0.0, 0.05, 0.4])
        return True

    def slow_disk(self) -> bool:
        machine = self._anyone()
        if machine is None:
            return False
        machine.sync_s = self._chance.choice([0.0, 0.005, 0.08])
        return True

    def disk_full(self) -> bool:
        machine = self._anyone()
        if machine is None:
            return False
        disk = machine.files.disk
        disk.capacity_bytes = disk.used_bytes() + self._chance.randint(0, 2000)
        self.world.world.after(self._chance.uniform(0.5, 1.5), lambda: setattr(disk, "capacity_bytes", None))
        return True

    def snapshot(self) -> bool:
        machine = self._anyone()
        if machine is not None:
            machine.save_snapshot()
        return machine is not None

    def transfer(self) -> bool:
        leader = self.world.leader()
        if leader is None or leader.member is None:
            return False
        member = leader.member
        others = [v for v in member.raft.state.log.configuration.voters if v != member.me]
        if not others:
            return False
        target = self._chance.choice(others)

        def ask() -> None:
            member.requests.transfer(target, 20, lambda outcome: None)
            member.pump()

        leader.guarded(ask)
        return True

    def replace(self) -> bool:
        """A machine loses its disk and comes back as another member, while the others go on."""
        world = self.world
        machine = self._anyone()
        voters = world.voters()
        if machine is None or world.administrator.wishes or machine.id not in voters or len(voters) < 3:
            return False
        old = machine.id
        machine.lose_disk()
        for verb, member in (("add", machine.id), ("promote", machine.id), ("remove", old)):
            world.administrator.wishes.append(Wish(verb, member))  # type: ignore[arg-type]
        self._restart_later(machine)
        return True

    def grow(self) -> bool:
        world = self.world
        if world.administrator.wishes or len(world.machines) >= 7:
            return False
        machine = world.add_machine()
        world.administrator.wishes += [Wish("add", machine.id), Wish("promote", machine.id)]
        machine.start()
        return True

    def shrink(self) -> bool:
        world = self.world
        voters = world.voters()
        if world.administrator.wishes or len(voters) < 4:
            return False
        victim = self._chance.choice(voters)
        world.administrator.wishes.append(Wish("remove", victim))
        return True

    def _crash(self, machine: Machine | None) -> bool:
        if machine is None:
            return False
        machine.files.plan_crash(self._chance.choice([1, 1, 2, 3, 4, 5, 6, 8, 12, 20]))
        return True

    def _restart_later(self, machine: Machine) -> None:
        self.world.world.after(self._chance.uniform(0.05, 1.5), machine.start)

    def on_death(self, machine: Machine) -> None:
        for other in self.world.machines_up():
            if other.member is not None and self._chance.random() < 0.5:  # its connection broke, and that was noticed
                other.member.raft.report_gone(machine.id)
        if machine.wants_up:
            self._restart_later(machine)

    def _anyone(self) -> Machine | None:
        up = self.world.machines_up()
        return self._chance.choice(up) if up else None
