"""The agent: composed by hand, once, and run until it is told to stop. Its members go on without it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from uuid import uuid4

import msgspec

import clutch
from clutch.agent import metric_spool, slots
from clutch.agent.brain import Brain
from clutch.agent.directory import as_found
from clutch.agent.folders import TMP, WorkFolders
from clutch.agent.hands import Ground, Hands, Way
from clutch.agent.holders import Holders, NoHolders
from clutch.agent.launch import Surroundings
from clutch.agent.link import Link, LinkSettings
from clutch.agent.monitor import Monitor, MonitorSettings
from clutch.agent.ports import Ports
from clutch.agent.relay import Relay
from clutch.agent.settings import HOST_NETWORK, AgentSettings
from clutch.agent.shelf import ShelfDoor
from clutch.agent.ways import open_ways
from clutch.backends.containers.base import Key
from clutch.wire.containers import RunAs
from clutch.wire.errors import BadRequest, Conflict
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.resources import Capacity

__all__ = ["AgentSettings", "run"]

BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class _StopRequested(Exception):
    """Somebody asked this agent to stop."""


async def run(settings: AgentSettings, holders: Holders | None = None, stop: asyncio.Event | None = None) -> None:
    """Be this machine's agent until ``stop`` is set; without one, until SIGTERM or SIGINT. Members go on either way.
    ``Conflict`` when another agent has the same folder."""
    if not settings.masters:
        raise BadRequest("no master is named", object="agent", next_step="Give the address of at least one.")
    settings.data.mkdir(mode=0o711, parents=True, exist_ok=True)
    with _only_agent_of(settings.data), _stopped(stop) as stopped:
        async with AsyncExitStack() as stack:
            ways = await open_ways(settings, stack)
            try:
                await _run(settings, ways, holders or NoHolders(), stopped)
            except* _StopRequested:
                pass


async def _run(settings: AgentSettings, ways: Mapping[str, Way], holders: Holders, stopped: asyncio.Event) -> None:
    node, session = NodeId(settings.node or socket.gethostname()), uuid4().hex
    capacity = _capacity(settings)
    here = [(name, seen) for name, way in ways.items() for seen in await way.containers.found()]
    keys = [Key(seen.member, seen.fence) for _, seen in here]
    folders = WorkFolders(settings.data / "work")
    folders.clear_all_but(keys)
    relay = Relay()
    link_settings = LinkSettings(
        masters=settings.masters, node=node, session=session, token=settings.token, ca_file=settings.ca_file
    )
    link = Link(link_settings, relay, Random(), ShelfDoor(settings.data / "blobs"))
    async with asyncio.TaskGroup() as group:
        ground = Ground(
            ways=ways,
            folders=folders,
            ports=Ports(port for key in keys for port in folders.note(key).ports),
            holders=holders,
            relay=relay,
            monitor=Monitor(_monitor_settings(settings, node, capacity, ways), link.use),
            around=_surroundings(settings, node, capacity),
            kit_timeout_s=settings.kit_timeout_s,
        )
        spooled = await asyncio.to_thread(_spooled, folders, [Key(s.member, s.fence) for _, s in here if s.exit])
        found = as_found((seen for _, seen in here), spooled.__getitem__)
        brain = Brain(node, PoolName(settings.pool), session, capacity, found, await holders.held())
        hands = Hands(brain, ground, link, group)
        for name, seen in here:
            hands.adopt(name, seen)
        group.create_task(hands.beats(settings.beat_s))
        group.create_task(ground.monitor.run(hands))
        group.create_task(link.run(hands, hands))
        await stopped.wait()
        raise _StopRequested  # the only way to end a group whose tasks would go on for ever


def _spooled(folders: WorkFolders, keys: list[Key]) -> dict[Key, int]:
    """The last batch of metrics that each of these dead members left; the first report must say it."""
    return {key: left.last if (left := metric_spool.look(folders.path(key) / TMP, key)) else 0 for key in keys}


def _capacity(settings: AgentSettings) -> Capacity:
    """What this machine offers, without what is kept back; devices keep the places they had."""
    path = settings.data / "places.json"
    known = slots.load_places(path)
    whole = slots.capacity(slots.look(), settings.slots, known)
    slots.save_places(path, slots.places(whole, known))
    return msgspec.structs.replace(
        whole,
        millicpus=max(0, whole.millicpus - settings.reserve_millicpus),
        memory_bytes=max(0, whole.memory_bytes - settings.reserve_memory_bytes),
    )


def _surroundings(settings: AgentSettings, node: NodeId, capacity: Capacity) -> Surroundings:
    base = {"PATH": f"{Path(sys.executable).parent}:{BASE_PATH}", "LANG": "C.UTF-8"}
    return Surroundings(
        node=node,
        pool=PoolName(settings.pool),
        masters=settings.masters,
        ca_file=str(settings.ca_file.absolute()) if settings.ca_file is not None else "",
        address=settings.address,
        capacity=capacity,
        python=sys.executable,
        environment={**base, **settings.environment},
        open_files=settings.open_files,
        core_bytes=settings.core_bytes,
        on_host_network=settings.docker_network == HOST_NETWORK,
        allowed_mounts=tuple(map(str, settings.allowed_mounts)),
        own=RunAs(os.geteuid(), os.getegid(), tuple(os.getgroups())) if os.geteuid() else None,
    )


def _monitor_settings(
    settings: AgentSettings, node: NodeId, capacity: Capacity, ways: Mapping[str, Way]
) -> MonitorSettings:
    async def backends() -> tuple[str, ...]:
        said = [
            f"{name} {version}".strip() for name, way in ways.items() if (version := await way.version()) is not None
        ]
        return tuple(said)

    return MonitorSettings(
        node=node,
        capacity=capacity,
        data=settings.data,
        address=settings.address,
        labels=settings.labels,
        version=clutch.__version__,
        backends=backends,
        measure_s=settings.measure_s,
    )


@contextmanager
def _only_agent_of(data: Path) -> Iterator[None]:
    """Hold the folder's lock; it goes with the process, however that ends."""
    descriptor = os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "another agent uses this folder",
                object=str(data),
                next_step="Stop that agent, or give this one a folder and a name of its own.",
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _stopped(stop: asyncio.Event | None) -> Iterator[asyncio.Event]:
    if stop is not None:
        yield stop
        return
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in numbers:
            with suppress(ValueError):
                loop.remove_signal_handler(number)
