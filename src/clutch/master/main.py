"""The master: composed by hand, once, and run until it is told to stop or another master has taken over.

From its first moment it listens, as a standby: its address is known and its health can be asked. When it leads,
``ready`` is run beside it, and everything else that only a leader may do. Whatever ends one of its parts ends the
process: the next one starts from the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import structlog

from clutch.backends.blobs.agents import AgentBlobs
from clutch.backends.blobs.base import FullBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.backends.journal.opening import open_journal
from clutch.core.controller import Controller
from clutch.master.access.door import Access, live_in
from clutch.master.access.usage import Usage
from clutch.master.api.app import make_app
from clutch.master.effects import Effect, Performer
from clutch.master.events import EventFeed
from clutch.master.housekeeping import Ends, Housekeeping
from clutch.master.kits import Kits
from clutch.master.link import AgentLinks
from clutch.master.loop import Loop, LoopSettings
from clutch.master.metrics_lane.opening import open_metrics
from clutch.master.monitor import Monitor
from clutch.master.output.opening import beside, open_output
from clutch.master.parts import Part
from clutch.master.pools import Surroundings, open_pools, read_pools
from clutch.master.provisioner import Provisioner, ProvisionerSettings
from clutch.master.proxy.door import Proxy
from clutch.master.push.service import Push
from clutch.master.resumes import Resumes
from clutch.master.server import HttpServer, listen
from clutch.master.services import Services
from clutch.master.settings import MasterSettings
from clutch.master.shelves import SCHEME, LinkShelves, agent_blobs
from clutch.master.steadiness import steady
from clutch.master.tls import AUTHORITY_FILE, TLS_FOLDER
from clutch.wire import events as e
from clutch.wire.errors import Conflict
from clutch.wire.experiment_api import ConfigProblem
from clutch.wire.ids import Fence, MemberId, PoolName, TaskId
from clutch.wire.specs import PoolSpec
from clutch.workloads.experiment import config as experiment_config
from clutch.workloads.experiment.controller.controller import ExperimentController
from clutch.workloads.experiment.library.opening import open_library
from clutch.workloads.experiment.library.part import library_part
from clutch.workloads.experiment.service.part import experiments_part
from clutch.workloads.experiment.service.service import open_experiments

log = structlog.get_logger("clutch.master")

LEAD_S = 1.8
"""How long the lead lasts unrenewed: a standby takes over within this and a third of it."""


class WallClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()


class Running(msgspec.Struct, frozen=True):
    """A master that leads."""

    services: Services
    url: str
    app: Any
    """For further listeners."""


Ready = Callable[[Running], Awaitable[None]]


class _Extras(msgspec.Struct, frozen=True):
    """What a leader runs besides what every master has."""

    resumes: Resumes
    parts: tuple[Part, ...]
    effects: Mapping[str, Effect]


async def run(settings: MasterSettings, ready: Ready | None = None, stop: asyncio.Event | None = None) -> None:
    """Be a master until ``stop`` is set; without one, until SIGTERM or SIGINT. Raises when another has taken over."""
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _only_master_of(settings.data), _stopped(stop) as stopping:
        async with _services(settings, stopping) as (services, server, extras):
            await _run(services, server, _lead(services, server, extras, ready))


async def _run(services: Services, server: HttpServer, leading: Coroutine[Any, Any, None]) -> None:
    loop, stopping = services.loop, services.stopping
    async with asyncio.TaskGroup() as group:
        working = [
            group.create_task(work) for work in (loop.run(), services.access.run(), services.push.run(), leading)
        ]
        if isinstance(services.blobs, AgentBlobs):
            working.append(group.create_task(services.blobs.run()))
        serving = group.create_task(server.run())
        await stopping.wait()
        services.push.close()  # long polls are answered now, or they would hold the server for its whole grace
        await serving
        for task in working:
            task.cancel()
    await services.journal.resign()


async def _lead(services: Services, server: HttpServer, extras: _Extras, ready: Ready | None) -> None:
    """What only the leading master does."""
    loop = services.loop
    await loop.serving.wait()
    first = await services.access.bootstrap()
    if not loop.state.pools:
        pool = PoolSpec(name=PoolName("default"), node_lost_after_s=services.settings.node_lost_after_s)
        await loop.ask(e.PutPool(cause="master:first start", pool=pool))
    token_file = await services.access.local_token()
    steady()
    log.info(
        "serving",
        url=server.url,
        administrator=str(token_file),
        term=loop.state.term,
        index=loop.state.index,
        first_start=first,
    )
    provisioner = await _provisioner(services, server.url)
    async with contextlib.aclosing(provisioner), asyncio.TaskGroup() as group:
        effects = {**provisioner.effects(), **extras.effects}
        group.create_task(Performer(loop, services.journal, effects).run())
        group.create_task(provisioner.run())
        group.create_task(Housekeeping(services).run())
        group.create_task(services.usage.run(loop.serving))
        group.create_task(extras.resumes.run())
        for part in extras.parts:
            if part.lead is not None:
                group.create_task(_led(part.lead))
        if ready is not None:
            await ready(Running(services, server.url, server.app))


async def _led(lead: Callable[[], Awaitable[None]]) -> None:
    await lead()


async def _provisioner(services: Services, url: str) -> Provisioner:
    """The pools that are written down, put; and where their machines come from."""
    settings = services.settings
    written = read_pools(Path(settings.pools_file)) if settings.pools_file else {}
    for one in written.values():
        await services.loop.ask(e.PutPool(cause="master:pools file", pool=one.pool))
    authority = settings.data / TLS_FOLDER / AUTHORITY_FILE
    around = Surroundings(
        cluster=settings.cluster,
        data=settings.data,
        url=settings.url or url,
        ca_file=authority if await asyncio.to_thread(authority.exists) else None,
    )
    pools = await open_pools(written, around, services.access)
    return Provisioner(services.loop, pools, ProvisionerSettings(cluster=settings.cluster))


@asynccontextmanager
async def _services(
    settings: MasterSettings, stopping: asyncio.Event
) -> AsyncIterator[tuple[Services, HttpServer, _Extras]]:
    """Every part, opened; closed again in the opposite order."""
    clock, address = WallClock(), settings.db or str(settings.data / "journal.db")

    def has_ended(task: TaskId) -> bool:
        return task not in loop.state.tasks and not experiments.detached.has_live(loop.state, task)

    def is_live(member: MemberId, fence: Fence) -> bool:
        return is_member(member, fence) or experiments.detached.is_live(loop.state, member, fence)

    async with AsyncExitStack() as stack:
        listener = listen(settings)
        stack.callback(listener.close)
        journal = await open_journal(address)
        stack.push_async_callback(journal.close)
        blobs, shelves = await _open_blobs(settings, clock, stack)
        output = await stack.enter_async_context(open_output(beside(address, "output"), has_ended))
        metrics = await stack.enter_async_context(open_metrics(beside(address, "metrics")))
        monitor, holder = Monitor(), _holder(settings.data)
        is_member = live_in(lambda: loop.state)
        access = await Access.open(settings, clock, is_live)
        stack.push_async_callback(access.close)
        kits = Kits(access, lambda: loop.settled(), lambda: (settings.url,) if settings.url else ())
        links = AgentLinks(output, kits, monitor, lambda member, fence: push.left.reached(member, fence))
        loop = Loop(journal, clock, links, _controllers(), Random(), LoopSettings(holder=holder, lead_s=LEAD_S))
        links.serve(loop)
        if isinstance(blobs, AgentBlobs) and shelves is not None:
            shelves.serve(loop, links.tunnels, blobs.nudge)
        feed, push = EventFeed(journal, loop), Push(loop, blobs, metrics, clock)
        links.left = push.left
        resumes = Resumes(loop, metrics)
        usage = Usage(access.store.usage, journal, clock, loop.settled, monitor.nodes)
        loop.listeners += [feed.heard, push.heard, usage.hear, Ends(output).heard, resumes.heard]
        services = Services(
            settings=settings,
            clock=clock,
            loop=loop,
            journal=journal,
            blobs=blobs,
            access=access,
            output=output,
            metrics=metrics,
            links=links,
            monitor=monitor,
            feed=feed,
            push=push,
            usage=usage,
            proxy=Proxy(loop, clock, access, links.tunnels, monitor, access.keys),
            stopping=stopping,
        )
        library = await open_library(settings, clock, access.keys, _check_partial)
        stack.push_async_callback(library.close)
        experiments = open_experiments(services, library)
        stack.push_async_callback(experiments.close)
        library.serve(experiments)
        parts = (experiments_part(experiments), library_part(library))
        app = make_app(services, parts=parts)
        extras = _Extras(resumes, parts, library.effects())
        yield services, HttpServer(app, listener, settings, stopping), extras


def _controllers() -> dict[str, Controller]:
    """The brains of every kind of workload that this master knows."""
    return {controller.kind: controller for controller in (ExperimentController(),)}


async def _open_blobs(
    settings: MasterSettings, clock: WallClock, stack: AsyncExitStack
) -> tuple[FullBlobs, LinkShelves | None]:
    """Where code and files live; with ``agents:``, the shelves that are served once there is a loop."""
    blobs: FullBlobs
    shelves: LinkShelves | None = None
    if settings.blobs == SCHEME:
        blobs, shelves = agent_blobs(clock.now)
    else:
        blobs = await open_blobs(settings.blobs or str(settings.data / "blobs"))
    stack.push_async_callback(blobs.close)
    return blobs, shelves


def _check_partial(config: Mapping[str, Any], name: str = "configuration") -> tuple[ConfigProblem, ...]:
    """The check of templates. What it stands on is loaded with the first of them, and not before a master may serve."""
    return experiment_config.check_partial(config, name)


def _holder(data: Path) -> str:
    """Who this master is: the same after a restart in the same folder of the same machine, so that it need not wait for
    its own earlier lead to run out. A copy of the folder elsewhere is another one."""
    path = data / "holder"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    boot = Path("/proc/sys/kernel/random/boot_id")
    booted = boot.read_text().strip()[:8] if boot.exists() else ""
    return f"{socket.gethostname()}:{path.read_text().strip()}:{booted}"


@contextlib.contextmanager
def _only_master_of(data: Path) -> Iterator[None]:
    """Hold the folder's lock; it goes with the process, however that ends."""
    descriptor = os.open(data / "master.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "another master uses this folder",
                object=str(data),
                next_step="Stop that master, or give this one a folder of its own (--data).",
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _stopped(stop: asyncio.Event | None) -> Iterator[asyncio.Event]:
    """``stop``, or an event that SIGTERM and SIGINT set."""
    if stop is not None:
        yield stop
        return
    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        running.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in numbers:
            running.remove_signal_handler(number)
