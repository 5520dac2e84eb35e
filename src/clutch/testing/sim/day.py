"""One simulated day, hour by hour: for people to watch."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from clutch.core import story
from clutch.testing.sim.cluster import Cluster
from clutch.testing.sim.plan import make_plan
from clutch.testing.sim.promises import PromiseBroken
from clutch.testing.sim.run import advance, at_rest, story_of
from clutch.wire.messages import MemberStatus
from clutch.wire.outcomes import EndReason


class NodeGlance(msgspec.Struct, frozen=True):
    node: str
    state: str
    slots: tuple[str, ...]
    """Who occupies each slot; empty: nobody."""
    residents: tuple[str, ...]
    """Members that hold no slots of their own: replicas, actors, commands."""


class TaskGlance(msgspec.Struct, frozen=True):
    task: str
    kind: str
    state: str
    priority: int
    epoch: int
    step: int
    why: str
    """Why it waits, if it does."""


class Day:
    """A simulation that can be looked at while it runs."""

    def __init__(self, seed: int, *, nodes: int = 3, hour_s: float = 1.0) -> None:
        plan = make_plan(seed, nodes=nodes)
        self.cluster = Cluster(msgspec.structs.replace(plan, slots=4, masters=2, tasks=26, fair_share=False))
        self.hour_s = hour_s
        self.broken = ""
        self._start = self.cluster.world.now

    def hours(self) -> Iterator[int]:
        """Let the day happen; yields after each hour, until everything has ended."""
        world, plan = self.cluster.world, self.cluster.plan
        hour = 0
        try:
            while not (hour * self.hour_s >= plan.work_s and at_rest(self.cluster)):
                if hour * self.hour_s >= plan.work_s:
                    if not self.cluster.winding_up:
                        self.cluster.mend_everything()
                    if hour % 5 == 0:
                        self.cluster.people.wind_up()
                hour += 1
                advance(self.cluster, self._start + hour * self.hour_s)
                yield hour
                if world.now - self._start > plan.work_s + plan.settle_s:
                    break
            self.cluster.promises.settled()
            if self.cluster.promises.broken is not None:
                raise self.cluster.promises.broken
        except PromiseBroken as error:
            self.broken = str(error)
        finally:
            self.cluster.close()

    def story(self, subject: str) -> list[str]:
        """Let the whole day happen, then tell what happened to one thing."""
        for _ in self.hours():
            pass
        return story_of(self.cluster.truth.history, subject)

    @property
    def clock_s(self) -> float:
        return self.cluster.world.now - self._start

    def nodes(self) -> list[NodeGlance]:
        found = []
        for node, machine in self.cluster.machines.items():
            known = self.cluster.truth.state.nodes.get(node)
            state = str(known.state) if known is not None else "joining"
            in_use = machine.in_use()
            residents = tuple(
                str(member)
                for (member, _), directory in machine.directories.items()
                if directory.status is not MemberStatus.EXITED and not directory.wanted.slots
            )
            slots = tuple(in_use.get(slot.index, "") for slot in machine.capacity.slots)
            found.append(NodeGlance(node, state if machine.up else "down", slots, residents))
        return found

    def tasks(self) -> list[TaskGlance]:
        state = self.cluster.truth.state
        reasons = self._reasons()
        return [
            TaskGlance(
                task=task.task,
                kind=task.spec.kind,
                state=str(state.allocations[task.task].state) if task.task in state.allocations else str(task.state),
                priority=task.priority or task.spec.priority,
                epoch=task.epoch,
                step=task.step,
                why=reasons.get(task.task, ""),
            )
            for task in state.tasks.values()
        ]

    def _reasons(self) -> dict[str, str]:
        """What the leading master says of those who wait."""
        for master in self.cluster.masters.values():
            loop = master.production
            if loop is not None and loop.serving.is_set():
                return {
                    waiting.request: f"{waiting.code} (#{waiting.position})"
                    for plan in loop.plans.values()
                    for waiting in plan.waiting()
                }
        return {}

    def masters(self) -> list[str]:
        found = []
        for host, master in self.cluster.masters.items():
            loop = master.production
            if loop is None or master.loop is None:
                found.append(f"{host} down")
            elif master.loop.stopped:
                found.append(f"{host} stopped")
            else:
                found.append(f"{host} leads" if loop.serving.is_set() else f"{host} stands by")
        return found

    def news(self, count: int) -> list[str]:
        """The latest faults and facts, newest last."""
        facts = [(r.at, story.tell(r.fact)) for r in self.cluster.truth.history[-count:]]
        faults = [(at, f"!! {text}") for at, text in self.cluster.notes[-3:]]
        merged = sorted([*facts, *faults])[-count:]
        return [f"{at - self._start:7.1f}  {text}" for at, text in merged]

    def ended(self) -> dict[EndReason, int]:
        found: dict[EndReason, int] = {}
        for reason in self.cluster.truth.ended.values():
            found[reason] = found.get(reason, 0) + 1
        return found
