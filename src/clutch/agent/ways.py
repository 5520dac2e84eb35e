"""The ways in which this machine can run members: as plain processes always, in containers where an engine is."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from clutch.agent import shim
from clutch.agent.directory import MemberDirectories
from clutch.agent.hands import Way
from clutch.agent.launch import DOCKER, PROCESS
from clutch.agent.settings import AgentSettings
from clutch.backends.containers.process import ProcessContainers

ASK_EVERY_S = 15.0

Ask = Callable[[], Awaitable[str | None]]


async def open_ways(settings: AgentSettings, stack: AsyncExitStack) -> dict[str, Way]:
    """All that this machine has. Docker's is opened where its socket is, or where containers of ours may still be."""
    here = Path(shim.__file__)
    directories = MemberDirectories(settings.data / "members")
    process = ProcessContainers(directories, here)
    stack.push_async_callback(process.close)
    ways = {PROCESS: Way(process, directories, _always)}
    socket = settings.docker_socket
    if socket is not None and (socket.exists() or any((settings.data / "containers").glob("*"))):
        docker = _docker(settings, socket, here, stack)
        if docker is not None:
            ways[DOCKER] = docker
    return ways


def _docker(settings: AgentSettings, socket: Path, here: Path, stack: AsyncExitStack) -> Way | None:
    try:
        from clutch.backends.containers.docker import DockerContainers, answers
        from clutch.backends.containers.docker_spec import DockerSettings
    except ImportError as missing:
        structlog.get_logger("clutch.agent").warning("images cannot be run here", reason=str(missing))
        return None
    directories = MemberDirectories(settings.data / "containers")
    docker = DockerContainers(directories, here, socket, DockerSettings(network=settings.docker_network))
    stack.push_async_callback(docker.close)
    return Way(docker, directories, remembered(lambda: answers(socket)))


async def _always() -> str | None:
    return ""


def remembered(ask: Ask, for_s: float = ASK_EVERY_S) -> Ask:
    """The same question, asked at most so often."""
    last: tuple[float, str | None] | None = None

    async def answer() -> str | None:
        nonlocal last
        now = time.monotonic()
        if last is None or now - last[0] > for_s:
            last = (now, await ask())
        return last[1]

    return answer
