"""Clients of a simulated group, and the administrator who changes it.

A client does one thing at a time: append or read, at any machine. Without an answer it asks again, elsewhere, with the
same key. The administrator has a list of wishes; each is asked for again until the group's configuration shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from clutch.testing.raft_machine import Machine
from clutch.wire.errors import ClutchError
from clutch.wire.raft import Address, RaftId

if TYPE_CHECKING:
    from clutch.testing.raft_world import RaftWorld

Verb = Literal["append", "read"]


class Client:
    """One user of the log."""

    def __init__(self, world: RaftWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.acknowledged = 0
        self.reads = 0
        self._count = 0
        self._known = 0
        self._attempt = 0
        self._answered = True
        self._chance = world.world.chance(f"client/{name}")

    def begin(self) -> None:
        self.world.world.after(self._chance.uniform(0.0, 0.5), self._next)

    def _next(self) -> None:
        if self.world.over:
            return
        self._count += 1
        key = f"{self.name}-{self._count}"
        kind: Verb = "read" if self._chance.random() < 0.3 else "append"
        size = 1500 if self._chance.random() < 0.05 else 16
        data = key.encode().ljust(size, b".")
        self._ask(kind, key, data, self.world.world.now, self._known, 1)

    def _ask(self, kind: Verb, key: str, data: bytes, began: float, since: int, tries: int) -> None:
        world = self.world
        up = world.machines_up()
        self._attempt += 1
        attempt = self._attempt
        if tries > 12:
            self._rest()  # its fate stays unknown
            return

        def again() -> None:
            if attempt == self._attempt and not world.over:
                self._ask(kind, key, data, began, since, tries + 1)

        def done(machine: Machine, outcome: int | ClutchError) -> None:
            if attempt != self._attempt:
                return
            if isinstance(outcome, ClutchError):
                self._attempt += 0 if outcome.code != "stale" else 1
                world.world.after(self._chance.uniform(0.02, 0.2), again if outcome.code != "stale" else self._rest)
                return
            self._attempt += 1
            self._take(kind, key, began, outcome, machine)
            self._rest()

        if up:
            machine = up[self._chance.randrange(len(up))]
            machine.guarded(lambda: self._call(machine, kind, key, data, since, done))
        world.world.after(1.0, again)

    def _call(self, machine: Machine, kind: str, key: str, data: bytes, since: int, done: object) -> None:
        member = machine.member
        assert member is not None and callable(done)
        if kind == "append":
            member.requests.append(key, data, since, 30, lambda outcome: done(machine, outcome))
        else:
            member.requests.read(30, lambda outcome: done(machine, outcome))
        member.pump()

    def _take(self, kind: Verb, key: str, began: float, index: int, machine: Machine) -> None:
        world = self.world
        assert machine.member is not None
        now = world.world.now
        if kind == "append":
            world.look(machine.member)
            world.checks.look_at_ack(key, index)
            world.acknowledged[key] = index
            self.acknowledged += 1
        else:
            index = machine.upto  # what a reader of this machine's application sees at this moment
            self.reads += 1
        self._known = max(self._known, index)
        world.history.ended(kind, key, began, now, index)
        world.tell("ack", self.name, kind, key, str(index))

    def _rest(self) -> None:
        self.world.world.after(self._chance.expovariate(1 / self.world.settings.think_s), self._next)


class Wish:
    """A change of the group that the administrator wants to see."""

    def __init__(self, verb: Literal["add", "promote", "remove"], member: RaftId) -> None:
        self.verb = verb
        self.member = member


class Administrator:
    """Asks whoever leads for the first unfulfilled wish."""

    def __init__(self, world: RaftWorld) -> None:
        self.world = world
        self.wishes: list[Wish] = []
        self.fulfilled = 0

    def begin(self) -> None:
        self.world.world.after(0.15, self._look)

    def _look(self) -> None:
        leader = self.world.leader()
        if self.wishes and leader is not None and leader.member is not None:
            wish = self.wishes[0]
            state = leader.member.raft.state
            configuration = state.log.configuration
            committed = state.log.configuration_index <= state.log.commit
            seen = {
                "add": wish.member in configuration.members,
                "promote": wish.member in configuration.voters,
                "remove": wish.member not in configuration.members,
            }[wish.verb]
            if seen and committed:
                self.wishes.pop(0)
                self.fulfilled += 1
                self.world.tell("wish", wish.verb, str(wish.member))
            elif not seen:
                leader.guarded(lambda: self._ask(leader, wish))
        self.world.world.after(0.15, self._look)

    def _ask(self, leader: Machine, wish: Wish) -> None:
        member = leader.member
        assert member is not None

        def ignore(outcome: int | ClutchError) -> None:
            return None

        if wish.verb == "add":
            member.requests.add_learner(Address(wish.member), 30, ignore)
        elif wish.verb == "promote":
            member.requests.promote(wish.member, 30, ignore)
        else:
            member.requests.remove(wish.member, 30, ignore)
        member.pump()
