"""A place for members in containers of a real engine, and ways to look at and harm what is there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from clutch.agent import shim, spool
from clutch.agent.directory import MemberDirectories, Record
from clutch.backends.containers import proc
from clutch.backends.containers.base import Key
from clutch.backends.containers.docker import DockerContainers
from clutch.backends.containers.docker_http import Engine, Refused
from clutch.backends.containers.docker_spec import DockerSettings, Gpus, container_name
from clutch.testing.containers_suite import eventually
from clutch.testing.docker import BUSYBOX
from clutch.wire.containers import ContainerSpec, Pull
from clutch.wire.ids import Fence, MemberId, TaskId

FIRST = Fence(0, 1, 1)
PATIENCE_S = 30.0


class DockerGround:
    """Implements the suite's ``Ground``. GPUs are told by environment: the engines of tests have none to request."""

    def __init__(self, folder: Path, socket: Path, settings: DockerSettings | None = None) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket = socket
        self.engine = Engine(str(socket))
        self.settings = settings if settings is not None else DockerSettings(gpus=Gpus.ENVIRONMENT)
        self.directories = MemberDirectories(folder / "members")
        self._opened: list[DockerContainers] = []

    def open(self) -> DockerContainers:
        directories = MemberDirectories(self.directories.root)
        self._opened.append(DockerContainers(directories, Path(shim.__file__), self.socket, self.settings))
        return self._opened[-1]

    def base(self) -> ContainerSpec:
        return self.spec("base", "true")

    def spec(self, name: str, *argv: str) -> ContainerSpec:
        member = MemberId(TaskId(name), "main", 0)
        return ContainerSpec(member, FIRST, argv, str(self.folder), {"PATH": "/bin"}, image=BUSYBOX, pull=Pull.NEVER)

    def sh(self, name: str, script: str) -> ContainerSpec:
        return self.spec(name, "sh", "-c", script)

    def pieces(self, key: Key) -> list[spool.Piece | spool.Gap]:
        return spool.read(self.directories.path(key) / shim.OUTPUT, spool.Cursor(), 2**40)[0]

    def output(self, key: Key) -> tuple[bytes, bytes]:
        """All of both streams; that no piece is missing or doubled is checked on the way."""
        streams: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        sizes = {"stdout": 0, "stderr": 0}
        for piece in self.pieces(key):
            assert isinstance(piece, spool.Piece) and piece.offset == sizes[piece.stream]
            streams[piece.stream].append(piece.data)
            sizes[piece.stream] += len(piece.data)
        return b"".join(streams["stdout"]), b"".join(streams["stderr"])

    def move_away(self, key: Key) -> None:
        """From now on its processes cannot be seen from here, as if its engine ran on another machine."""
        path = self.directories.path(key) / shim.STARTED
        fields = shim.unpack(path.read_bytes())
        assert fields is not None
        kept = [(name, b"0" if name == "pid" else value) for name, value in fields]
        shim.write_record(str(path.parent), path.name, kept, durable=False)

    # -- harm ----------------------------------------------------------------------------------------------------

    def keeper(self, key: Key) -> int:
        """The pid of its keeper if one lives, else 0."""
        started = Record(self.directories.path(key) / shim.STARTED)
        pid = started.number("shim")
        return pid if proc.is_process(pid, started.number("shim_ticks")) else 0

    def kill_keeper(self, key: Key) -> None:
        pid = self.keeper(key)
        assert pid, "it has no keeper"
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while self.keeper(key) == pid:
            assert time.monotonic() < deadline, "the keeper does not die"
            time.sleep(0.001)

    def inspect(self, key: Key) -> dict[str, Any]:
        """Its container as the engine sees it."""
        seen: dict[str, Any] = self.engine.ask("GET", f"/containers/{container_name(self.directories.path(key))}/json")
        return seen

    def exists(self, key: Key) -> bool:
        """Whether the engine still knows its container."""
        try:
            self.inspect(key)
        except Refused:
            return False
        return True

    async def until_container_ended(self, key: Key) -> None:
        await eventually(lambda: not self.inspect(key)["State"]["Running"])

    # -- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End what a test left, through the same verbs, and let go."""
        containers = self.open()
        try:
            for seen in await containers.found():
                key = Key(seen.member, seen.fence)
                await containers.end(key)
                await containers.wait(key, PATIENCE_S)
                await containers.forget(key)
        finally:
            for opened in self._opened:
                await opened.close()


def key_of(spec: ContainerSpec) -> Key:
    return Key(spec.member, spec.fence)
