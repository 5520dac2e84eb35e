"""A group of real member processes, for tests and benchmarks: start, kill -9, restart, look inside.

Each member is ``python -m clutch.consensus.main`` with its own folder, keys, ports and socket. Hosts may be network
namespaces: then a member is started inside its own. Whatever was started here is ended here, by its own process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from clutch.consensus.driver import DriverSettings
from clutch.consensus.replicated_log import ReplicatedLog
from clutch.consensus.state import Limits
from clutch.consensus.transport import KeyPair, new_keys
from clutch.testing.ports import free_port
from clutch.wire.errors import ClutchError
from clutch.wire.raft import Address, RaftId, Status


class MemberProcess:
    """One member: its settings, its folder and, while it runs, its process."""

    def __init__(self, settings: DriverSettings, home: Path, namespace: str = "") -> None:
        self.settings = settings
        self.home = home
        self.namespace = namespace
        self.process: subprocess.Popen[bytes] | None = None
        self.errors = home.with_name(f"{home.name}.stderr")

    @property
    def id(self) -> RaftId:
        return self.settings.me

    @property
    def folder(self) -> Path:
        return Path(self.settings.folder)

    def start(self) -> None:
        file = self.home.with_name(f"{self.home.name}.json")
        file.write_bytes(msgspec.json.encode(self.settings))
        file.chmod(0o600)
        command = [sys.executable, "-m", "clutch.consensus.main", str(file)]
        if self.namespace:
            command = ["ip", "netns", "exec", self.namespace, *command]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, stderr=errors)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def proceed(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float = 20.0) -> int:
        """The exit code, once it has ended by itself."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        self.process = None
        return code

    def last_error(self) -> str:
        lines = self.errors.read_text().strip().splitlines() if self.errors.exists() else []
        return lines[-1] if lines else ""

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            try:
                self.process.wait(20.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20.0)
            self.process = None


class ProcessGroup:
    """Members of one group on this machine."""

    def __init__(self, folder: Path, count: int = 3, limits: Limits | None = None, generation: int = 1) -> None:
        self.folder = folder
        self.group = "session-1"
        self.limits = limits or Limits()
        self.members: dict[str, MemberProcess] = {}
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"r{i}" for i in range(count)]
        self.keys: dict[str, KeyPair] = {name: new_keys() for name in names}
        self.addresses = tuple(self.make_address(RaftId(generation, name, 1), self.keys[name]) for name in names)
        for address in self.addresses:
            self.add(address, self.keys[address.id.member], founder=True)

    def make_address(self, member: RaftId, keys: KeyPair, host: str = "127.0.0.1") -> Address:
        ports = (free_port(), free_port()) if host == "127.0.0.1" else (7001, 7002)
        return Address(member, f"tcp://{host}:{ports[0]}", f"tcp://{host}:{ports[1]}", keys.public)

    def add(self, address: Address, keys: KeyPair, *, founder: bool, namespace: str = "") -> MemberProcess:
        """A member that is not started yet."""
        name = f"{address.id.member}.{address.id.incarnation}"
        home = self.folder / name
        settings = DriverSettings(
            self.group,
            address.id,
            str(home),
            str(self.folder / f"{name}.sock"),
            address.control,
            address.bulk,
            keys,
            self.addresses if founder else (*self.addresses, address),
            founder,
            limits=self.limits,
        )
        member = self.members[name] = MemberProcess(settings, home, namespace)
        return member

    def change_settings(self, **changes: object) -> None:
        """For every member, before it is started (again)."""
        for member in self.members.values():
            member.settings = msgspec.structs.replace(member.settings, **changes)

    def start(self) -> None:
        for member in self.members.values():
            if member.process is None:
                member.start()

    def close(self) -> None:
        for member in self.members.values():
            if member.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    member.proceed()
                member.kill()

    async def connect(self, name: str) -> ReplicatedLog:
        return await ReplicatedLog.connect(self.members[name].settings.socket)

    async def status(self, name: str) -> Status | None:
        """What a member says of itself, or None if it does not answer."""
        member = self.members[name]
        if member.process is None:
            return None
        try:
            log = await ReplicatedLog.connect(member.settings.socket, timeout_s=0.2)
        except (ClutchError, OSError):
            return None
        try:
            return await log.status(1.0)
        except ClutchError:
            return None
        finally:
            await log.close()

    async def leader(self, timeout_s: float = 15.0, among: list[str] | None = None) -> str:
        """The name of the member that leads in the highest term, waited for."""
        deadline = time.monotonic() + timeout_s
        found: list[tuple[str, Status | None]] = []
        while time.monotonic() < deadline:
            found = [(name, await self.status(name)) for name in among or list(self.members)]
            leading = [(s.term, name) for name, s in found if s is not None and s.role == "leader"]
            if leading:
                return max(leading)[1]
            await asyncio.sleep(0.02)
        raise TimeoutError(f"no leader within {timeout_s} s: {[s.reason if s else None for _, s in found]}")

    async def until_applied(self, name: str, index: int, timeout_s: float = 20.0) -> Status:
        """The member's status once it has applied this index."""
        deadline = time.monotonic() + timeout_s
        status = None
        while time.monotonic() < deadline:
            status = await self.status(name)
            if status is not None and status.applied >= index:
                return status
            await asyncio.sleep(0.02)
        raise TimeoutError(f"{name} did not apply {index} within {timeout_s} s: {status}")
