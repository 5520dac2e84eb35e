"""Members in containers of a Docker engine, each looked after by its keeper.

As with plain processes, this object holds nothing that a second one over the same directories would miss. What runs is
the engine's; what is known of it is in the members' directories; a keeper that is gone is replaced by the next look.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp
from msgspec.structs import replace

from clutch.backends.containers import docker_groups
from clutch.backends.containers.base import Claim, Directories, Key
from clutch.backends.containers.docker_spec import (
    DIRECTORY_LABEL,
    ROOT_LABEL,
    DockerSettings,
    container_name,
    create_body,
)
from clutch.backends.containers.shims import ORDERS, WAKE, Shims, not_here
from clutch.wire.containers import ContainerSpec, ExitRecord, Observed, Usage
from clutch.wire.errors import BadRequest, Conflict, Unavailable
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.messages import ExitCause, MemberStatus

LOCK, STARTED, DOING = "lock", "started", "doing"
SIGNAL_MAX = 64
ANSWERS_WITHIN_S = 2.0
ENGINE_TIMEOUT_S = 30.0
KEEPER_AGAIN_S = 0.5
NO_CONNECTION = 900
"""What aiodocker calls the status of an answer that never came."""
SOCKET = Path("/var/run/docker.sock")
_SOURCE = Path(__file__).parents[3]
_KEEPER_CODE = (
    "import sys; sys.path += [sys.argv.pop(1), sys.argv.pop(1)]; import shim; "
    "from clutch.backends.containers import docker_keeper; docker_keeper.main(shim)"
)


async def answers(socket: Path = SOCKET) -> str | None:
    """The version of the engine behind this socket; None, after two seconds at most, if none answers."""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            async with aiodocker.Docker(url=f"unix://{socket}") as engine:
                return str((await engine.version())["Version"])
    except (OSError, TimeoutError, ValueError, KeyError, aiohttp.ClientError, aiodocker.DockerError):
        return None


class DockerContainers:
    """Implements ``Containers``, ``Wakes``, ``Doing`` and ``Addresses``. Call ``close`` when done.

    ``shim`` is the shim's file, whose records and spool the keepers write. The directories must be of this way alone:
    over those of plain processes it would look for containers that never were.
    """

    def __init__(
        self,
        directories: Directories,
        shim: Path,
        socket: Path = SOCKET,
        settings: DockerSettings | None = None,
        python: str = sys.executable,
    ) -> None:
        self._directories = directories
        self._shim = shim
        self._socket = socket
        self._settings = settings if settings is not None else DockerSettings()
        self._python = python
        self._shims = Shims(directories)
        self._engine: aiodocker.Docker | None = None
        self._kept_at: dict[Key, float] = {}

    # -- start ---------------------------------------------------------------------------------------------------

    async def start(self, spec: ContainerSpec) -> Observed:
        key = Key(spec.member, spec.fence)
        known = await self.observe(key)
        if known is not None:
            return known
        path = self._directories.path(key)
        body = create_body(spec, path, self._settings)
        claim = self._directories.claim(spec, (), ())
        if claim is not None:
            launch = {
                "body": json.dumps(body),
                "pull": spec.pull.value,
                "auth": spec.registry_auth,
                "cap_bytes": str(spec.output_cap_bytes),
            }
            self._keep(key, claim, launch)
        observed = await self.observe(key)
        if observed is None:
            raise Unavailable("it was forgotten while it was being started", object=str(spec.member))
        return observed

    def _keep(self, key: Key, claim: Claim, launch: dict[str, str]) -> None:
        """Start a keeper; if that cannot be, its end is recorded only if nothing can have been executed."""
        words = {"socket": str(self._socket), "name": container_name(claim.path), **launch, "end": ""}
        packed = b"".join(os.fsencode(f"{name}={word}") + b"\0" for name, word in words.items())
        folders = (str(self._shim.parent), str(_SOURCE))
        command = (self._python, "-I", "-S", "-c", _KEEPER_CODE, *folders, str(claim.path))
        self._kept_at[key] = time.monotonic()
        try:
            self._shims.spawn(key, claim, command, packed)
        except OSError as failed:
            if not launch:
                return  # the next look tries again
            reason = f"its keeper could not be started: {failed.strerror or failed}"
            self._directories.settle(key, ExitRecord(127, ExitCause.NEVER_STARTED, reason, ended_at=time.time()))

    # -- orders --------------------------------------------------------------------------------------------------

    async def signal(self, key: Key, number: int) -> None:
        if not 0 < number <= SIGNAL_MAX:
            raise BadRequest(f"there is no signal {number}", object=str(key.member))
        await self.observe(key)
        self._shims.order(key, b"signal %d\n" % number)

    async def end(self, key: Key) -> None:
        observed = await self.observe(key)
        if observed is None:
            raise not_here(key)
        if observed.status is not MemberStatus.EXITED:
            self._shims.order(key, b"kill\n")

    # -- what is there -------------------------------------------------------------------------------------------

    async def observe(self, key: Key) -> Observed | None:
        lost = self._directories.lost(key)
        if lost is not None:
            self._take_over(key, lost)
        seen = self._directories.observe(key)
        if seen is None or seen.exit is None or self._directories.lost(key) is None:
            return self._with_notices(key, seen)
        # Between two keepers: the container may run, so it has not exited.
        status = MemberStatus.RUNNING if seen.started_at else MemberStatus.STARTING
        return self._with_notices(key, replace(seen, status=status, exit=None))

    def _take_over(self, key: Key, lost: ExitRecord) -> None:
        """Its keeper is gone: start another, unless somebody just does, or one that fails was started just now."""
        path = self._directories.path(key)
        if time.monotonic() - self._kept_at.get(key, -KEEPER_AGAIN_S) < KEEPER_AGAIN_S:
            return
        try:
            claim = _reclaimed(path)
        except OSError:  # half-written or damaged: no keeper was ever started in it
            with suppress(OSError):
                self._directories.settle(key, lost)
            return
        if claim is None:
            return
        self._shims.drop(key)
        self._keep(key, claim, {})

    def _with_notices(self, key: Key, seen: Observed | None) -> Observed | None:
        if seen is None:
            return None
        more = tuple(_fields(self._directories.path(key) / STARTED, "notice"))
        return replace(seen, notices=(*seen.notices, *more)) if more else seen

    async def found(self) -> list[Observed]:
        await self._end_orphans()
        seen = [await self.observe(key) for key in self._directories.found()]
        return [one for one in seen if one is not None]

    async def _end_orphans(self) -> None:
        """Containers made for directories of ours that are no more: nobody could ever ask for them. An engine that says
        nothing must not keep an agent from its other work: then they stay until the next start."""
        if await answers(self._socket) is None:
            return
        nobody = Key(MemberId(TaskId(""), "", 0), Fence(0, 0, 0))
        root = str(self._directories.path(nobody).parent)
        with suppress(Unavailable):
            async with self._asking() as engine:
                filters = json.dumps({"label": [f"{ROOT_LABEL}={root}"]})
                for container in await engine.containers.list(all=True, filters=filters):
                    labels = container._container.get("Labels") or {}
                    if not _stands(labels.get(DIRECTORY_LABEL, root)):
                        await _removed(container)

    async def usage(self, key: Key) -> Usage:
        observed = await self.observe(key)
        if observed is None:
            raise not_here(key)
        if observed.exit is not None:
            return Usage(observed.exit.cpu_s, 0, 0)
        container = next(iter(_fields(self._directories.path(key) / STARTED, "container")), "")
        groups = docker_groups.groups(observed.pid, container)
        cpu_s, memory_bytes = docker_groups.cpu_s(groups), docker_groups.memory_bytes(groups)
        if cpu_s is not None and memory_bytes is not None:
            return Usage(cpu_s, memory_bytes, docker_groups.processes(groups))
        return await self._usage_by_engine(container) if container else Usage(0.0, 0, 0)

    async def _usage_by_engine(self, container: str) -> Usage:
        """For an engine whose control groups cannot be seen from here; it takes its time (1 to 2 s)."""
        async with self._asking() as engine:
            try:
                found = await engine.containers.container(container).stats(stream=False)
            except aiodocker.DockerError:
                found = []
        if not found:  # it has just ended
            return Usage(0.0, 0, 0)
        said = found[0]
        memory = said.get("memory_stats", {})
        inactive = memory.get("stats", {}).get("inactive_file", 0)
        return Usage(
            cpu_s=said.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage", 0) / 1e9,
            memory_bytes=max(memory.get("usage", 0) - inactive, 0),
            processes=said.get("pids_stats", {}).get("current", 0),
        )

    async def wait(self, key: Key, timeout_s: float) -> ExitRecord:
        return await self._shims.wait(key, timeout_s, self.observe)

    async def changed(self, key: Key, timeout_s: float) -> bool:
        return await self._shims.changed(key, timeout_s)

    def doing(self, key: Key) -> str:
        """What happens before it runs, or keeps it from being known: a pull with its progress, an engine awaited."""
        try:
            return (self._directories.path(key) / DOING).read_text()
        except (OSError, UnicodeDecodeError):
            return ""

    async def address(self, key: Key) -> str:
        """Where its ports are, as seen from this node. ``Unavailable`` while it has no address."""
        if self._settings.network == "host":
            return "127.0.0.1"
        name = container_name(self._directories.path(key))
        async with self._asking() as engine:
            try:
                seen = await engine.containers.container(name).show()
            except aiodocker.DockerError as refused:
                raise Unavailable(f"it has no address: {refused.message}", object=str(key.member)) from refused
        networks: dict[str, Any] = seen["NetworkSettings"]["Networks"]
        address = next((one["IPAddress"] for one in networks.values() if one.get("IPAddress")), "")
        if not address:
            raise Unavailable("it has no address (yet)", object=str(key.member))
        return str(address)

    # -- the end -------------------------------------------------------------------------------------------------

    async def forget(self, key: Key) -> None:
        observed = await self.observe(key)
        if observed is None:
            return
        if observed.status is not MemberStatus.EXITED:
            raise Conflict("it still runs", object=f"{key.member} {key.fence}", next_step="End it first.")
        self._shims.drop(key)
        self._kept_at.pop(key, None)
        with suppress(Unavailable):  # then it is an orphan, and a later look takes it away
            async with self._asking() as engine:
                await _removed(engine.containers.container(container_name(self._directories.path(key))))
        self._directories.remove(key)

    async def close(self) -> None:
        """Let go of everything; the containers and their keepers go on."""
        await self._shims.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[aiodocker.Docker]:
        """The engine, for a few questions; ``Unavailable`` if it does not answer them."""
        if self._engine is None:
            timeout = aiohttp.ClientTimeout(total=ENGINE_TIMEOUT_S)
            self._engine = aiodocker.Docker(url=f"unix://{self._socket}", timeout=timeout)
        try:
            yield self._engine
        except (aiohttp.ClientError, TimeoutError, OSError) as gone:
            raise Unavailable(f"the container engine at {self._socket} does not answer: {gone}") from gone
        except aiodocker.DockerError as refused:
            how = "does not answer" if refused.status == NO_CONNECTION else f"answers {refused.status}"
            raise Unavailable(f"the container engine {how}: {refused.message}") from refused


async def _removed(container: aiodocker.containers.DockerContainer) -> None:
    try:
        await container.delete(force=True, v=True)
    except aiodocker.DockerError as refused:
        if refused.status not in (404, 409):  # gone, or just going
            raise Unavailable(f"a container cannot be removed: {refused.message}") from refused


def _stands(directory: str) -> bool:
    return os.path.lexists(directory)


def _reclaimed(path: Path) -> Claim | None:
    """The directory of a keeper that is gone, held again; None if somebody else holds it. ``OSError`` if damaged."""
    descriptors = [os.open(path / LOCK, os.O_RDWR)]
    try:
        fcntl.flock(descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in (WAKE, ORDERS):
            descriptors.append(os.open(path / name, os.O_RDWR | os.O_NONBLOCK))
    except BlockingIOError:
        os.close(descriptors[0])
        return None
    except OSError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return Claim(path, *descriptors)


def _fields(record: Path, name: str) -> list[str]:
    """The values of a field in a record that a keeper wrote."""
    try:
        items = record.read_bytes().split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(item[len(name) + 1 :]) for item in items if item.startswith(name.encode() + b"=")]
