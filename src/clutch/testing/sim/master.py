"""One master's host in a simulated cluster: its process, its clock that is a little off, its disk that fails."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import msgspec

from clutch.backends.journal.memory import MemoryJournal
from clutch.core.controller import Controller
from clutch.master.effects import Effect
from clutch.master.loop import Loop, LoopSettings
from clutch.master.provisioner import ProvisionerSettings
from clutch.testing.sim.calls import Call, Reply
from clutch.testing.sim.cloud import CLUSTER, SimMachines
from clutch.testing.sim.sweep import SweepController
from clutch.testing.sim.users import POOL
from clutch.testing.virtual_loop import VirtualLoop
from clutch.wire import events as e
from clutch.wire.errors import ClutchError, DiskFull, NotFound, Stale, Unavailable
from clutch.wire.experiment_words import RELEASE, WEBHOOK, PinCheckpoints, Release, say
from clutch.wire.experiments import KIND
from clutch.wire.ids import NodeId
from clutch.wire.journal import Batch, OutboxItem
from clutch.wire.messages import Hello, Refusal, Report, Wanted

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster


class Master:
    """One master's host: its process is a ``VirtualLoop`` that can be killed at any point and started again."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self.cluster = cluster
        self.host = host
        self.loop: VirtualLoop | None = None
        self.production: Loop | None = None
        self.disk_full = False
        self.cut_from_journal = False
        self.chance = cluster.world.chance(f"disk-{host}")
        self.skew_s = self.chance.uniform(-2.0, 2.0)
        self._starts = 0

    def start(self) -> None:
        if self.loop is not None:
            return
        self._starts += 1
        name = f"{self.host}.{self._starts}"
        loop = self.loop = VirtualLoop(self.cluster.world, name)
        self.cluster.loops.append(loop)
        self.cluster.network.attach(self.host, lambda sender, message: self._arrived(loop, sender, message))
        journal = MemoryJournal(self.cluster.store, hook=_Disk(self))
        settings = LoopSettings(
            holder=name,
            snapshot_rows=self.chance.choice((40, 200, 10_000)),
            rows_kept=self.chance.choice((0, 100)),
        )
        loop.call_soon(lambda: self._begin(loop, journal, settings))

    def _begin(self, loop: VirtualLoop, journal: MemoryJournal, settings: LoopSettings) -> None:
        links = _Links(self)
        rng = Random(self._starts)
        controllers: dict[str, Controller] = {"sweep": SweepController(), KIND: self.cluster.kit.experiments()}
        production = self.cluster.kit.loop(journal, self, links, controllers, rng, settings)
        self.production = production
        loop.start(self._run(production, journal)).add_done_callback(lambda task: self._ended(loop, task))

    async def _run(self, production: Loop, journal: MemoryJournal) -> None:
        """A master's process. What it does for the outside ends with its loop."""
        cluster = self.cluster
        if cluster.plan.machines is None and not cluster.plan.experiments:
            await production.run()
            return
        effects = {WEBHOOK: Effect(perform=self._webhook), RELEASE: Effect(perform=partial(self._release, production))}
        async with asyncio.TaskGroup() as group:
            group.create_task(production.run())
            if cluster.plan.machines is not None:
                settings = ProvisionerSettings(CLUSTER, look_s=5.0, launch_s=20.0, give_up_s=15.0, terminate_s=20.0)
                provisioner = cluster.kit.provisioner(production, {POOL: SimMachines(cluster.cloud)}, settings)
                group.create_task(provisioner.run())
                effects |= provisioner.effects()
            group.create_task(cluster.kit.performer(production, journal, effects).run())

    async def _webhook(self, item: OutboxItem) -> e.Event:
        """Tell somebody outside, who may hear it twice."""
        await asyncio.sleep(self.chance.uniform(0.01, 0.5))
        delivered = self.cluster.experiment_promises.delivered
        delivered[item.token] = delivered.get(item.token, 0) + 1
        return e.SettleEffect(cause="webhook", token=item.token)

    async def _release(self, production: Loop, item: OutboxItem) -> e.Event:
        """Let go of what an experiment that is over began from; a lender that is over keeps what it keeps."""
        said = msgspec.msgpack.decode(item.payload, type=Release)
        for name, workload in production.state.workloads.items():
            if workload.kind == KIND and said.checkpoint in workload.own.exp.checkpoints:
                word = say(PinCheckpoints((said.checkpoint,), said.by, hold=False))
                with suppress(NotFound):  # it has been put away meanwhile
                    await production.ask(e.TellController(cause="release", controller=name, payload=word))
                break
        self.cluster.experiment_promises.delivered[item.token] = 1
        return e.SettleEffect(cause="release", token=item.token)

    def now(self) -> float:
        """This machine's clock, which is a little off."""
        return self.cluster.world.now + self.skew_s

    def crash(self) -> None:
        if self.loop is not None:
            self.loop.kill()
            self.loop = self.production = None
            self.cluster.network.detach(self.host)

    def _ended(self, loop: VirtualLoop, task: asyncio.Task[None]) -> None:
        """The process ended by itself: replaced, or its disk failed. Anything else is a bug."""
        error = task.exception() if not task.cancelled() else None
        for one in _leaves(error):
            if not isinstance(one, Stale | DiskFull | Unavailable):
                trace = "".join(traceback.format_exception(one))
                self.cluster.promises.break_("P5", f"master {loop.name} ended: {one!r}\n{trace}", "master")
        if self.loop is loop:
            self.crash()
            self.cluster.world.after(1.0, self.start)

    def _arrived(self, loop: VirtualLoop, sender: str, message: Report | Call) -> None:
        loop.call_soon(lambda: self._take(loop, sender, message))

    def _take(self, loop: VirtualLoop, sender: str, message: Report | Call) -> None:
        production = self.production
        if production is None or self.loop is not loop:
            return
        if isinstance(message, Report):
            production.hear(message)
        elif not production.serving.is_set():
            self.cluster.network.send(self.host, sender, Reply(message.number, error="not_leader"))
        else:
            loop.start(self._answer(production, sender, message))

    async def _answer(self, production: Loop, sender: str, call: Call) -> None:
        try:
            answer, error = await production.ask(call.event), ""
        except ClutchError as refused:
            answer, error = None, refused.code
        self.cluster.network.send(self.host, sender, Reply(call.number, answer, error))


class _Links:
    def __init__(self, master: Master) -> None:
        self.master = master

    def say(self, node: NodeId, message: Hello | Wanted | Refusal) -> None:
        self.master.cluster.network.send(self.master.host, node, message)


class _Disk:
    """Between a master and the journal: slow, sometimes full, sometimes out of reach; and the truth's ear."""

    def __init__(self, master: Master) -> None:
        self.master = master

    async def before_commit(self, batch: Batch) -> None:
        master = self.master
        await asyncio.sleep(master.chance.uniform(0.0002, 0.004))
        if master.cluster.power_fails_for_s:
            master.cluster.power_cut(batch)
            await asyncio.Event().wait()  # this process is no more
        if master.disk_full:
            raise DiskFull("no space left", object="journal", next_step="Free some.")
        if master.cut_from_journal:
            raise Unavailable("the database does not answer", object="journal", next_step="Look at its machine.")

    async def after_commit(self, batch: Batch) -> None:
        cluster = self.master.cluster
        cluster.truth.commit(batch, before=cluster.promises.deciding)
        cluster.promises.committed()
        await asyncio.sleep(self.master.chance.uniform(0.0, 0.002))


def _leaves(error: BaseException | None) -> list[BaseException]:
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
