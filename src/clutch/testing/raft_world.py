"""A whole group in one seed: the production member on machines that fail, clients that ask, checks after every step.

    python -m clutch.testing.raft_world --seeds 0-499 --jobs 2

A run has two parts. While faults last, everything that must always hold is checked after every event. Then the faults
end, and what must hold eventually is checked: a leader, an append that succeeds, every member with the same state. A
failure names its seed and tells its story; the same seed always gives the same run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise

import msgspec

from clutch.consensus import configuration as configurations
from clutch.consensus.member import Member
from clutch.consensus.rules import Rules
from clutch.consensus.state import Limits, Role
from clutch.testing.network import FAIR, FOUL, Network
from clutch.testing.raft_checks import Checks, History, Violation
from clutch.testing.raft_clients import Administrator, Client
from clutch.testing.raft_faults import Faults
from clutch.testing.raft_machine import Machine
from clutch.testing.world import World
from clutch.wire.raft import Address, Configuration, RaftId

SMALL = Limits(
    heartbeat_ticks=1,
    election_ticks=5,
    max_append_bytes=2_000,
    max_inflight_messages=4,
    max_inflight_bytes=8_000,
    max_apply_bytes=4_000,
    promote_lag=20,
    keep_entries=4,
    keep_bytes=2_000,
    key_window=48,
    segment_bytes=8_192,
    max_segment_bytes=32_768,
    chunk_bytes=400,
    chunks_inflight=3,
)
"""Limits so small that each is reached."""
NARROW = msgspec.structs.replace(SMALL, max_append_bytes=1, max_inflight_messages=1)
"""One entry a message, one message at a time: what is replicated and what is not yet lie far apart."""


class Settings(msgspec.Struct, frozen=True):
    """How hard and how long a run is."""

    limits: Limits = SMALL
    tick_s: float = 0.05
    faults_s: float = 8.0
    rest_s: float = 25.0
    think_s: float = 0.05
    fault_every_s: float = 0.25
    clients: int = 4
    machines: tuple[int, ...] = (1, 2, 3, 3, 3, 3, 3, 4, 5, 5)
    """How many there are at first, one of these drawn."""
    menu: str = "mixed"
    encode: bool = False
    """Whether messages are written and read as bytes on their way."""


MIXED = Settings()
ELECTIONS = Settings(limits=NARROW, fault_every_s=0.15, faults_s=7.0, machines=(3, 5, 5), menu="elections")
"""Leaders come and go as fast as they can."""
MEMBERS = Settings(fault_every_s=0.2, machines=(3, 4, 5), menu="members")
"""The group changes all the time, also at the hand of leaders that are cut off."""
PROFILES = (MIXED, ELECTIONS, MIXED, MEMBERS)


class Outcome(msgspec.Struct, frozen=True):
    """What one seed saw."""

    seed: int
    steps: int
    acknowledged: int
    reads: int
    terms: int
    deaths: int
    changes: int
    faults: dict[str, int]
    violation: str = ""
    story: list[str] = []


class RaftWorld:
    """One seed's machines, clients and bad luck."""

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        rules: Rules | None = None,
        member_type: type[Member] = Member,
        prepare: Callable[[RaftWorld], None] | None = None,
    ) -> None:
        self.world = World(seed)
        self.settings = settings or msgspec.structs.replace(PROFILES[seed % len(PROFILES)], encode=seed % 16 < 2)
        self.rules = rules or Rules()
        self.member_type = member_type
        self.group = "simulated"
        self.generation = 1
        self.network = Network(self.world, FAIR if seed % 2 else FOUL)
        self.checks = Checks()
        self.history = History()
        self.acknowledged: dict[str, int] = {}
        self.introductions = 0
        self.machines: dict[str, Machine] = {}
        self.story: list[str] | None = None
        self.healing = False
        self.over = False
        chance = self.world.chance("shape")
        count = chance.choice(self.settings.machines)
        first = configurations.first(Address(RaftId(1, f"n{i}", 1)) for i in range(count))
        self.prepare = prepare
        for _ in range(count):
            self.add_machine(first)
        self.clients = [Client(self, f"c{i}") for i in range(self.settings.clients)]
        self.administrator = Administrator(self)
        self.faults = Faults(self)

    # ---------------------------------------------------------------------------------------------- the cast

    def add_machine(self, configuration: Configuration | None = None) -> Machine:
        machine = Machine(self, f"n{len(self.machines)}", configuration or Configuration())
        self.machines[machine.name] = machine
        if self.prepare is not None:
            self.prepare(self)
        return machine

    def machines_up(self) -> list[Machine]:
        return [m for m in self.machines.values() if m.member is not None]

    def leader(self) -> Machine | None:
        """Whoever leads in the highest term."""
        leading = [m for m in self.machines_up() if m.member and m.member.raft.state.role is Role.LEADER]
        return max(leading, key=lambda m: m.member.raft.state.term if m.member else 0, default=None)

    def voters(self) -> list[RaftId]:
        leader = self.leader()
        if leader is None or leader.member is None:
            return []
        return list(leader.member.raft.state.log.configuration.voters)

    def look(self, member: Member) -> None:
        leaders = [m.member for m in self.machines_up() if m.member and m.member.raft.state.role is Role.LEADER]
        self.checks.look(member, leaders)
        if self.settings.menu == "elections" and not self.healing and member.raft.state.role is Role.LEADER:
            self.faults.ambush(member)

    def on_death(self, machine: Machine) -> None:
        if machine.wants_up:
            self.faults.on_death(machine)

    def tell(self, *words: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.world.now - 1_000_000:9.4f}  {'  '.join(words)}")

    # ----------------------------------------------------------------------------------------------- the run

    def run(self) -> None:
        """Faults, then rest. Raises Violation."""
        for machine in list(self.machines.values()):
            machine.start()
        for client in self.clients:
            client.begin()
        self.administrator.begin()
        self.faults.begin()
        self.world.run_until(self.world.now + self.settings.faults_s)
        self.healing = True
        self.tell("heal")
        self.faults.heal()
        before = len(self.acknowledged)
        deadline = self.world.now + self.settings.rest_s
        while self.world.now < deadline and not self._at_rest(before):
            self.world.run_until(self.world.now + 0.25)
        self.over = True
        if not self._at_rest(before):
            raise Violation(f"liveness: {self.settings.rest_s:.0f} s after the last fault: {self._restless(before)}")
        self._check_end()

    def _at_rest(self, acknowledged_before: int) -> bool:
        return not self._restless(acknowledged_before)

    def _restless(self, acknowledged_before: int) -> str:
        """What is still missing, in words."""
        leader = self.leader()
        if leader is None or leader.member is None:
            return "nobody leads"
        if len(self.acknowledged) <= acknowledged_before:
            return "nothing was acknowledged"
        if self.administrator.wishes:
            wish = self.administrator.wishes[0]
            return f"{wish.verb} of {wish.member} is not done"
        commit = leader.member.raft.state.log.commit
        for member in leader.member.raft.state.log.configuration.members:
            machine = self.machines[member.member]
            if machine.member is None or machine.id != member:
                return f"{member} is down"
            if machine.upto < commit - 20:
                return f"{member} has applied {machine.upto} of {commit}"
        return ""

    def _check_end(self) -> None:
        """Every acknowledged append stands at its index, once, in every member's application."""
        leader = self.leader()
        assert leader is not None and leader.member is not None
        for member in leader.member.raft.state.log.configuration.members:
            machine = self.machines[member.member]
            if any(a >= b for (a, _), (b, _) in pairwise(machine.application)):
                raise Violation(f"{member} applied out of order")
            seen = {key: index for index, key in machine.application}
            if len(seen) != len(machine.application):
                raise Violation(f"{member} applied a key twice")
            for key, index in self.acknowledged.items():
                if index <= machine.upto and seen.get(key) != index:
                    raise Violation(f"lost: {key} was acknowledged at {index}, {member} has it at {seen.get(key)}")


def run_seed(seed: int, make: Callable[[int], RaftWorld] = RaftWorld) -> Outcome:
    """One seed. A failed one is run again to tell its story."""
    world = make(seed)
    violation = ""
    story: list[str] = []
    try:
        world.run()
    except Violation as error:
        violation = str(error)
        again = make(seed)
        again.story = story
        try:
            again.run()
            violation += " (and the second run of the same seed did not fail: the simulation is not deterministic)"
        except Violation:
            pass
    return Outcome(
        seed,
        world.world.steps,
        sum(c.acknowledged for c in world.clients),
        sum(c.reads for c in world.clients),
        len(world.checks.leaders),
        sum(m.deaths for m in world.machines.values()),
        world.administrator.fulfilled,
        world.faults.fired,
        violation,
        story[-120:],
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m clutch.testing.raft_world", description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="first-last, both included, or one number")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    began = time.monotonic()
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(run_seed, seeds, chunksize=10))
    else:
        outcomes = [run_seed(seed) for seed in seeds]
    return report(outcomes, time.monotonic() - began)


def report(outcomes: list[Outcome], seconds: float) -> int:
    """Say what was seen; the number of failed seeds, at most 1, is the exit code."""
    out = sys.stdout.write
    failed = [o for o in outcomes if o.violation]
    for outcome in failed[:5]:
        out(f"\nseed {outcome.seed} FAILED: {outcome.violation}\n")
        out("".join(f"    {line}\n" for line in outcome.story))
        out(f"    replay: python -m clutch.testing.raft_world --seeds {outcome.seed}\n")
    faults: dict[str, int] = {}
    for outcome in outcomes:
        for name, count in outcome.faults.items():
            faults[name] = faults.get(name, 0) + count
    out(f"{len(outcomes)} seeds in {seconds:.1f} s, {len(failed)} failed\n")
    out(
        f"steps {sum(o.steps for o in outcomes)}, appends {sum(o.acknowledged for o in outcomes)}, "
        f"reads {sum(o.reads for o in outcomes)}, terms {sum(o.terms for o in outcomes)}, "
        f"deaths {sum(o.deaths for o in outcomes)}, changes of members {sum(o.changes for o in outcomes)}\n"
    )
    out("faults: " + ", ".join(f"{name} {faults[name]}" for name in sorted(faults)) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
