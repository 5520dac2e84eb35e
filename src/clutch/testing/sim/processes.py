"""Stand-ins for what users run: trials that checkpoint, replicas that wait, workers that come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from clutch.testing.sim.calls import Caller
from clutch.wire import events as e
from clutch.wire.messages import Exit, ExitCause, WantedMember

if TYPE_CHECKING:
    from clutch.testing.sim.machine import Machine


class Work(msgspec.Struct, frozen=True):
    """What a simulated program does; the payload of its spec."""

    steps: int = 0
    """0: it serves until it is told to leave."""
    step_s: float = 1.0
    checkpoint_every: int = 5
    stubborn: float = 0.0
    """The chance that it ignores being asked to leave."""
    failing: float = 0.0
    """The chance, at each step, that it crashes."""


def encode_work(work: Work) -> bytes:
    return msgspec.msgpack.encode(work)


def checkpoint_step(checkpoint: str) -> int:
    """The step in a simulated checkpoint's name, which is ``FENCE:STEP`` or ``FENCE:TASK:STEP``."""
    return int(checkpoint.rpartition(":")[2]) if checkpoint else 0


PLAIN = 0.1
"""The chance that a program knows nothing of us, and dies of the signal that asks it to leave."""


class Process:
    """One running incarnation. Rank 0 is the chief: it alone checkpoints and acknowledges."""

    plain = PLAIN

    def __init__(self, machine: Machine, wanted: WantedMember, work: Work | None = None) -> None:
        self.machine = machine
        self.world = machine.world
        self.wanted = wanted
        self.work = work or msgspec.msgpack.decode(wanted.payload, type=Work)
        self.alive = True
        self.output = 0
        self.step = checkpoint_step(wanted.checkpoint)
        self.saved = self.step
        self.leaving = False
        self.failed = False
        self.chief = wanted.member.rank == 0 and wanted.member.role in ("main", "trainer", "replica")
        self.caller = Caller(machine.cluster, f"{machine.node}/{wanted.member}-{wanted.fence}")
        self._next()

    def die(self) -> None:
        self.alive = False
        self.caller.close()

    def exit(self, code: int, cause: ExitCause = ExitCause.OWN) -> None:
        if self.alive:
            self.machine.ended((self.wanted.member, self.wanted.fence), Exit(code, cause))

    @property
    def grouped(self) -> bool:
        """Whether its ranks talk among themselves, and notice when one is gone."""
        return self.wanted.members > 1 and self.wanted.member.role == "main"

    def _next(self) -> None:
        chance = self.world.chance("processes")
        pause = self.work.step_s * chance.uniform(0.8, 1.2)
        self.world.after(pause, self._one_step)

    def _one_step(self) -> None:
        if not self.alive or self.leaving:
            return
        self.output += 80
        if self.work.failing and self.world.chance("processes").random() < self.work.failing:
            self._fail()
            return
        if not self.works:
            self._next()
            return
        self.step += 1
        self._trained()

    def _fail(self) -> None:
        """A member of several ranks is not gone at once when one of them fails: the others of it end first. Whatever
        ends it then, its record tells of the failure."""
        if not self.grouped:
            self.exit(1)
            return
        self.failed = self.leaving = True
        self.world.after(self.world.chance("gangs").uniform(0.0, 2.0), lambda: self.exit(1))
        self.machine.cluster.gangs.failed(self)

    def _trained(self) -> None:
        """A step is done."""
        if self.step >= self.work.steps:
            self._finish()
        elif self.chief and self.step % self.work.checkpoint_every == 0:
            self._checkpoint(self._next)
        else:
            self._next()

    @property
    def works(self) -> bool:
        """Whether it counts steps towards an end, or serves until it is told to leave."""
        return bool(self.work.steps) and self.wanted.member.role in ("main", "trainer")

    def _finish(self) -> None:
        if not self.chief:
            self.exit(0)
            return
        finished = e.DeclareFinished(
            cause="program", task=self.wanted.member.task, member=self.wanted.member, fence=self.wanted.fence
        )
        self.caller.ask(finished, lambda answer, error: self.exit(0 if not error else 3))

    def name(self, step: int) -> str:
        """Of the checkpoint it saves at a step."""
        return f"{self.wanted.fence}:{step}"

    def _checkpoint(self, then: object) -> None:
        """Commit, and go on only when the master has acknowledged it. A stale writer stops here."""
        assert callable(then)
        step = self.step
        commit = e.CommitCheckpoint(
            cause="program",
            task=self.wanted.member.task,
            member=self.wanted.member,
            fence=self.wanted.fence,
            checkpoint=self.name(step),
            step=step,
        )

        def answered(answer: object, error: str) -> None:
            if error:
                self.exit(3)
                return
            self.saved = step
            self.machine.cluster.promises.checkpoint_acknowledged(self.wanted.member.task, step)
            if self.alive:
                then()

        self.caller.ask(commit, answered)

    def asked_to_leave(self, wanted: WantedMember) -> None:
        chance = self.world.chance("processes")
        if self.leaving or (self.work.stubborn and chance.random() < self.work.stubborn):
            return
        self.leaving = True
        if chance.random() < self.plain:
            self.world.after(chance.uniform(0.01, 0.3), lambda: self.exit(-15))
            return
        if not self.chief:
            self.world.after(chance.uniform(0.1, 0.6), lambda: self.exit(0))
            return
        ack = e.AckLeave(
            cause="program", task=self.wanted.member.task, member=self.wanted.member, fence=self.wanted.fence
        )

        def acknowledged(answer: object, error: str) -> None:
            if error:
                self.exit(3)
            elif self.works and self.step > self.saved:
                self._checkpoint(lambda: self.exit(0))
            else:
                self.exit(0)

        self.caller.ask(ack, acknowledged)
