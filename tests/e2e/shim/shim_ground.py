"""A place for real members in a test's folder, and ways to look at and harm what is there."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from clutch.agent import shim, spool
from clutch.agent.directory import MemberDirectories, Record
from clutch.backends.containers.base import Key
from clutch.backends.containers.cgroups import Cgroups
from clutch.backends.containers.process import ProcessContainers
from clutch.wire.containers import ContainerSpec
from clutch.wire.ids import Fence, MemberId, TaskId

FIRST = Fence(0, 1, 1)
PATH = "/usr/local/bin:/usr/bin:/bin"


class ShimGround:
    def __init__(self, folder: Path, groups: Cgroups | None = None) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(exist_ok=True)
        self.directories = MemberDirectories(folder / "members")
        self.groups = groups if groups is not None else Cgroups.detect()
        self._opened: list[ProcessContainers] = []

    def open(self, shim_file: str = shim.__file__, python: str = sys.executable) -> ProcessContainers:
        self._opened.append(ProcessContainers(self.directories, Path(shim_file), self.groups, python))
        return self._opened[-1]

    def spec(self, name: str, *argv: str) -> ContainerSpec:
        return ContainerSpec(MemberId(TaskId(name), "main", 0), FIRST, argv, str(self.folder), {"PATH": PATH})

    def sh(self, name: str, script: str) -> ContainerSpec:
        return self.spec(name, "sh", "-c", script)

    def path(self, key: Key) -> Path:
        return self.directories.path(key)

    def pieces(self, key: Key, stdout: int = 0) -> list[spool.Piece | spool.Gap]:
        return spool.read(self.path(key) / "output", spool.Cursor(stdout=stdout), 2**40)[0]

    def stdout(self, key: Key) -> bytes:
        return b"".join(p.data for p in self.pieces(key) if isinstance(p, spool.Piece) and p.stream == "stdout")

    def record(self, key: Key, name: str) -> Record:
        return Record(self.path(key) / name)

    def kill_shim(self, key: Key) -> None:
        pid = self.record(key, shim.STARTED).number("shim")
        assert shim.start_ticks(pid) == self.record(key, shim.STARTED).number("shim_ticks")
        os.kill(pid, signal.SIGKILL)

    def edit(self, key: Key, name: str, **changes: str) -> None:
        """Change fields of a record on disk."""
        fields = shim.unpack((self.path(key) / name).read_bytes())
        assert fields is not None and all(change in dict(fields) for change in changes)
        changed = [(field, os.fsencode(changes.get(field, os.fsdecode(value)))) for field, value in fields]
        shim.write_record(str(self.path(key)), name, changed, durable=False)

    async def close(self) -> None:
        containers = self.open()
        for seen in await containers.found():
            key = Key(seen.member, seen.fence)
            await containers.end(key)
            await containers.wait(key, 30.0)
            await containers.forget(key)
        for opened in self._opened:
            await opened.close()


def key_of(spec: ContainerSpec) -> Key:
    return Key(spec.member, spec.fence)
