"""Gangs whose ranks talk among themselves: they lose each other, end by themselves, and say so. And what is promised of
that: whoever only lost a peer did not fail.

What really happened is noted where it happens, on the machines, and held against what the masters decide.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from clutch.core.patience import PARTINGS_FREE
from clutch.core.recorded import Recorded
from clutch.testing.sim.processes import Process
from clutch.wire import facts as f
from clutch.wire.ids import TaskId
from clutch.wire.last_words import PEER_LOST_CODE
from clutch.wire.messages import Exit, ExitCause
from clutch.wire.outcomes import TaskWish

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster
    from clutch.testing.sim.machine import Machine

NOTICED_S = (2.0, 4.0)
"""How long it takes ranks to miss one that is cut off and says nothing."""
HEARD_S = (0.001, 0.3)
"""The same for one whose process has ended, which closes its connections."""


class Gangs:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.parted = 0
        self._crashed: dict[tuple[TaskId, int], str] = {}
        """Runs in which the program of a member failed by itself, and which member it was."""
        self._open: dict[tuple[TaskId, int], None] = {}

    # -- what ranks notice ---------------------------------------------------------------------------------------

    def failed(self, process: Process) -> None:
        """A rank of it failed by itself, and may have said so: its peers hear of it while it still ends."""
        member, fence = process.wanted.member, process.wanted.fence
        self._crashed.setdefault((member.task, fence.epoch), str(member))
        said = self.world.chance("gangs").random() < 0.5
        self._lose(process, ExitCause.PEER_FAILED if said else ExitCause.PEER_LOST, HEARD_S)

    def ended(self, process: Process, exit: Exit) -> None:
        """A process is gone. If it did not end well, its peers hear of it."""
        if exit.code == 0 or exit.cause is ExitCause.ENDED or process.leaving:
            return
        if exit.cause is ExitCause.OWN:
            member, fence = process.wanted.member, process.wanted.fence
            self._crashed.setdefault((member.task, fence.epoch), str(member))
        if process.grouped:
            self._lose(process, ExitCause.PEER_LOST, HEARD_S)

    def cut_off(self, machine: Machine, lasts_s: float) -> None:
        """Ranks on both sides of the cut miss the others, if it lasts."""
        if lasts_s < NOTICED_S[0]:
            return
        for directory in list(machine.directories.values()):
            process = directory.process
            if process is not None and process.alive and process.grouped and len(self._peers(process)) > 0:
                self._lose(process, ExitCause.PEER_LOST, NOTICED_S, self_too=True)

    def _peers(self, process: Process) -> list[Process]:
        """Its living peers on other machines."""
        task, epoch = process.wanted.member.task, process.wanted.fence.epoch
        return [
            found
            for machine in self.cluster.machines.values()
            if machine is not process.machine
            for directory in machine.directories.values()
            if (found := directory.process) is not None
            and found.alive
            and (found.wanted.member.task, found.wanted.fence.epoch) == (task, epoch)
        ]

    def _lose(self, gone: Process, cause: ExitCause, within_s: tuple[float, float], *, self_too: bool = False) -> None:
        chance = self.world.chance("gangs")
        for process in [*self._peers(gone), *([gone] if self_too else [])]:
            self.parted += 1
            self.world.after(chance.uniform(*within_s), partial(_leaves, process, cause))

    # -- what is promised ----------------------------------------------------------------------------------------

    def deciding(self, recorded: Recorded) -> None:
        """A run that ended because ranks lost each other counts if, and only if, a program failed by itself; or if
        they part again and again and it never gets on."""
        fact = recorded.fact
        if isinstance(fact, f.AllocationEnding) and fact.open:
            self._open[fact.task, fact.epoch] = None
        if not isinstance(fact, f.AllocationEnded) or (fact.task, fact.epoch) not in self._open:
            return
        promises, state = self.cluster.promises, self.cluster.truth.state
        task, allocation = state.tasks[fact.task], state.allocations[fact.task]
        promises.checks += 1
        run, counts = f"{fact.task} epoch {fact.epoch}", fact.failures > task.failures
        failed = [m for m in state.members_of(fact.task) if m.exit is not None and _failed(m.exit)]
        if allocation.open:
            promises.break_("exit rules", f"{run} ended while its cause was open", fact.task)
        elif counts and (fact.task, fact.epoch) not in self._crashed and task.partings <= PARTINGS_FREE:
            promises.break_("exit rules", f"{run} counts as a failure and no program of it failed", fact.task)
        elif not counts and failed and task.wish in (TaskWish.RUN, TaskWish.PAUSE):
            promises.break_("exit rules", f"{run} is free though {failed[0].member} failed by itself", fact.task)


def _leaves(process: Process, cause: ExitCause) -> None:
    """It was not on its way out anyway."""
    if not process.leaving:
        process.exit(PEER_LOST_CODE, cause)


def _failed(exit: Exit) -> bool:
    return exit.cause is ExitCause.OWN and exit.code != 0
