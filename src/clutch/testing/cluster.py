"""A real cluster of real processes on this machine, made to be killed: masters, agents, and a client of theirs.

Every process is started as a user would start it, through the command line. ``kill`` is ``kill -9``, ``stop`` is
polite. Nothing outlives ``close``, members included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from clutch.sdk import calls
from clutch.sdk.client import Client
from clutch.testing.ports import free_port
from clutch.wire.errors import ClutchError, NotFound

WAIT_S = 30.0
LOOK_S = 0.02
KEY = "k" * 64
"""The master key of every test cluster: standbys must share it."""
T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, within_s: float = WAIT_S) -> T:
    """The first answer that is not None or False. ``AssertionError`` naming what was waited for."""
    deadline, last = time.monotonic() + within_s, ""
    while True:
        try:
            found = look()
        except ClutchError as error:
            found, last = None, f" ({error})"
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {what}{last}")
        time.sleep(LOOK_S)


class Child:
    """One process of the cluster, with its log."""

    def __init__(self, arguments: Sequence[str], log: Path, prefix: Sequence[str] = ()) -> None:
        self.log = log
        self.prefix = tuple(prefix)
        """What it is started with, such as ``ip netns exec NAME``."""
        self.arguments = tuple(arguments)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "clutch.cli.main", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """At once, without a chance to say goodbye."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """Politely; its exit code."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(WAIT_S)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.pid, number)

    def last_lines(self, count: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Cluster:
    """Masters and agents under one folder. Use it as a context manager."""

    def __init__(
        self, folder: Path, db: str = "", masters: int = 1, options: Sequence[str] = (), blobs: str = ""
    ) -> None:
        """``blobs``: where the masters keep them; a folder that they share unless told."""
        self.folder = folder
        self._blobs = blobs or str(folder / "blobs")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "key").write_text(KEY)
        self.ports = [free_port() for _ in range(masters)]
        self.urls = tuple(f"http://127.0.0.1:{port}" for port in self.ports)
        self.masters = [self._master(n, db, options) for n in range(masters)]
        self.agents: dict[str, Child] = {}
        self._client: Client | None = None

    def _master(self, number: int, db: str, options: Sequence[str]) -> Child:
        arguments = ["master", f"--port={self.ports[number]}", f"--data={self.folder / f'master{number}'}"]
        arguments += [f"--master-key-file={self.folder / 'key'}", f"--blobs={self._blobs}"]
        arguments += [f"--db={db}"] if db else []
        return Child([*arguments, *options], self.folder / f"master{number}.log")

    def start(self) -> Client:
        """The first master up and a client of it; standbys follow."""
        self.masters[0].start()
        self.wait_serving()
        for standby in self.masters[1:]:
            standby.start()
        return self.client

    def wait_serving(self, within_s: float = WAIT_S) -> None:
        """Returns when one of the masters serves."""

        def look() -> bool:
            with Client(self.urls, "", patience_s=0.1) as nobody:
                return nobody.perform(calls.get_health()).status == "serving"

        until(look, f"a master that serves; the log ends: {self.masters[0].last_lines()}", within_s)

    @property
    def client(self) -> Client:
        """An administrator's."""
        if self._client is None:
            path = self.folder / "master0" / "local.token"
            until(path.exists, "the administrator's token")
            self._client = Client(self.urls, path.read_text().strip())
        return self._client

    def add_agent(self, name: str, slots: int = 0, *, prefix: Sequence[str] = (), masters: Sequence[str] = ()) -> Child:
        """A node of this name, started; it has joined when ``wait_nodes`` says so. ``masters``: as it reaches them."""
        path = self.folder / f"{name}.enrol"
        path.write_text(self._enrolment())
        arguments = [
            "agent",
            *(f"--master={url}" for url in masters or self.urls),
            f"--name={name}",
            f"--token-file={path}",
        ]
        arguments += [f"--data={self.folder / name}", f"--artificial-slots={slots}"]
        child = self.agents[name] = Child(arguments, self.folder / f"{name}.log", prefix)
        child.start()
        return child

    def _enrolment(self) -> str:
        from clutch.sdk import access_calls
        from clutch.wire.access import NewToken, TokenKind

        return self.client.perform(access_calls.make_token(NewToken("tests", TokenKind.ENROL))).token

    def wait_nodes(self, *names: str, state: str = "ready", within_s: float = WAIT_S) -> None:
        def look() -> bool:
            found = {node.key: node.state for node in self.client.perform(calls.list_nodes()).items}
            return all(found.get(name) == state for name in names)

        until(look, f"nodes {', '.join(names)} {state}", within_s)

    def state(self, task: str) -> str:
        """Of a task; empty when it is not known."""
        try:
            return self.client.perform(calls.get_task(task)).task.state
        except NotFound:
            return ""

    def close(self) -> None:
        """End every process, and every member that its agent left behind."""
        if self._client is not None:
            self._client.close()
        for child in [*self.agents.values(), *self.masters]:
            if child.runs:
                child.signal(signal.SIGCONT)
                child.kill()
        for name in self.agents:
            end_members(self.folder / name)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def end_members(data: Path) -> None:
    """Kill every process that was started under an agent's folder: a test leaves nothing behind."""
    mark = str(data).encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            around = (entry / "environ").read_bytes()
        except OSError:
            continue
        if (mark in command or mark in around) and int(entry.name) != os.getpid():
            try:
                os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue
