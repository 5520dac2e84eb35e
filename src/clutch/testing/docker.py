"""A real container engine for tests: a private ``dockerd`` in a temporary folder, or the one ``DOCKER_HOST`` names.

The private one has its own data, state, socket and pid file, makes no network devices and changes no packet filter: the
machine's own engine, if it has one, does not notice. Images are made here from what the machine has; nothing is
fetched. It needs root and an installed ``dockerd`` (Debian: ``apt-get install docker.io busybox-static``).
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clutch.backends.containers import proc
from clutch.backends.containers.docker_http import Engine, EngineGone, Refused

ADDRESS_VARIABLE = "DOCKER_HOST"
BUSYBOX = "clutch-busybox:test"
_START_S, _STOP_S = 60.0, 60.0
_BUSYBOX_PATHS = ("/bin/busybox", "/usr/bin/busybox")
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PR_SET_PDEATHSIG = 1
_PREFIX, _HELD = "clutch-docker-", "held"
"""A private engine's folder, and the file in it that its owner has locked: with a killed owner goes the lock."""


def missing() -> str:
    """Why there can be no engine here, or nothing."""
    if given_socket() is not None:
        return ""
    if os.geteuid() != 0:
        return f"a private Docker engine needs root; or name a running one in {ADDRESS_VARIABLE}=unix:///path"
    absent = [name for name in ("dockerd", "containerd", "runc") if shutil.which(name, path=_SEARCH) is None]
    if absent:
        return f"{', '.join(absent)} is not installed (Debian: apt-get install docker.io)"
    return "" if _busybox() else "there is no static busybox to make an image of (Debian: busybox-static)"


def given_socket() -> Path | None:
    """The socket in ``DOCKER_HOST``, if it names one and not an address."""
    given = os.environ.get(ADDRESS_VARIABLE, "")
    return Path(given.removeprefix("unix://")) if given.startswith("unix://") else None


def _busybox() -> Path | None:
    return next((Path(path) for path in _BUSYBOX_PATHS if Path(path).exists()), None)


class DockerEngine:
    """An engine of our own in a folder: ``start``, ``stop``, ``kill`` and start again as you like."""

    def __init__(self, folder: Path, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        self._clear_leftovers()
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "docker.pid"}
        words = [word for name, place in places.items() for word in (f"--{name}", str(self.folder / place))]
        untouched = ("--iptables=false", "--ip-forward=false", "--ip-masq=false", "--bridge=none")
        program = shutil.which("dockerd", path=_SEARCH)
        assert program is not None, missing()
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [program, *words, "--host", f"unix://{self.socket}", *untouched, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PATH": _SEARCH},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + _START_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dockerd did not start:\n{self.output()[-4000:]}")
            time.sleep(0.02)

    def _clear_leftovers(self) -> None:
        """A killed engine's pid files. It would take its dead containerd for alive where nobody waits for orphans."""
        self.socket.unlink(missing_ok=True)
        for path in (self.folder / "docker.pid", self.folder / "exec" / "containerd" / "containerd.pid"):
            if path.exists() and not proc.alive([int(path.read_text())]):
                path.unlink()

    def answers(self) -> bool:
        try:
            Engine(str(self.socket)).ask("GET", "/version", None, 5.0)
        except (EngineGone, Refused):
            return False
        return True

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def stop(self) -> None:
        """As a service is stopped: containers end too, unless it was started with ``--live-restore``."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """The engine is gone at once, and its containerd with it; the containers go on."""
        self._end(signal.SIGKILL)
        deadline = time.monotonic() + _STOP_S
        while any(proc.name(pid) == "containerd" for pid in proc.alive(self._helpers())):
            if time.monotonic() > deadline:
                raise RuntimeError("containerd outlives its engine")
            time.sleep(0.01)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(_STOP_S)

    def remove(self) -> None:
        """End it with everything it runs, and take its folder and its network devices away."""
        with suppress(EngineGone):  # one that a thread started ends with that thread
            self._empty()
        self.stop()
        self._end_containerd()
        with (Path("/proc/self/mountinfo")).open() as mounts:
            points = [line.split()[4] for line in mounts]
        for point in sorted((point for point in points if point.startswith(f"{self.folder}/")), reverse=True):
            ctypes.CDLL(None).umount2(os.fsencode(point), 2)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _empty(self) -> None:
        engine = Engine(str(self.socket))
        for container in engine.ask("GET", "/containers/json?all=1"):
            with suppress(Refused):
                engine.ask("DELETE", f"/containers/{container['Id']}?force=1&v=1")
        for network in engine.ask("GET", "/networks"):
            with suppress(Refused):  # it keeps those it was born with
                engine.ask("DELETE", f"/networks/{network['Id']}")

    def _end_containerd(self) -> None:
        """A killed engine leaves helpers behind, each with our folder in its command line, and what they run."""
        deadline = time.monotonic() + _STOP_S
        while helpers := proc.alive(self._helpers()):
            for pid in [*(one for helper in helpers for one in proc.tree(helper)), *helpers]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"these helpers of an engine cannot be ended: {helpers}")
            time.sleep(0.02)

    def _helpers(self) -> list[int]:
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and int(path.name) != os.getpid():
                try:
                    line = (path / "cmdline").read_bytes()
                    name = (path / "comm").read_text()
                except OSError:
                    continue
                if name.startswith(("containerd", "dockerd")) and os.fsencode(self.folder) in line:
                    found.append(int(path.name))
        return found


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def temporary_engine(options: tuple[str, ...] = ()) -> Iterator[DockerEngine]:
    """A private engine with the busybox image, there for the length of a ``with`` block."""
    sweep()
    engine = DockerEngine(Path(tempfile.mkdtemp(prefix=_PREFIX)), options)
    with _holding(engine.folder):
        try:
            engine.start()
            import_image(engine.socket, BUSYBOX, busybox_root())
            yield engine
        finally:
            engine.remove()


def sweep() -> None:
    """Remove the engines of owners that were killed: what is left of their containers, their mounts, their folders."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            with (folder / _HELD).open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                DockerEngine(folder).remove()
        except OSError:
            continue  # its owner lives, or has not come to say so


@contextmanager
def _holding(folder: Path) -> Iterator[None]:
    """Locked before it has its name, so that nobody can come in between."""
    aside = folder / f".{_HELD}"
    with aside.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        aside.rename(folder / _HELD)
        yield


@contextmanager
def any_engine() -> Iterator[Path]:
    """The socket of an engine with the busybox image: yours, or a private one."""
    given = given_socket()
    if given is not None:
        import_image(given, BUSYBOX, busybox_root())
        yield given
        return
    with temporary_engine() as engine:
        yield engine.socket


def busybox_root(passwd: bytes = b"root:x:0:0:root:/root:/bin/sh\n") -> bytes:
    """A file system of one static program and its names, as a tar."""
    program = _busybox()
    assert program is not None, missing()
    names = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for folder in ("bin", "dev", "etc", "proc", "root", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        archive.add(program, "bin/busybox")
        for name in sorted(set(names) - {"busybox"}):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(passwd)
        archive.addfile(entry, io.BytesIO(passwd))
    return packed.getvalue()


def import_image(socket: Path, name: str, root: bytes, changes: tuple[str, ...] = ()) -> None:
    """Make an image of a file system."""
    client = docker_client()
    words = [word for change in changes for word in ("--change", change)]
    command = [client, "--host", f"unix://{socket}", "import", *words, "-", name]
    done = subprocess.run(command, input=root, check=False, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"the image {name} could not be made: {done.stderr.decode(errors='replace')}")


def docker_client() -> str:
    """The ``docker`` command. The engine's own is preferred: a newer one may not speak to it."""
    found = next((path for path in ("/usr/bin/docker", shutil.which("docker")) if path and Path(path).exists()), None)
    if found is None:
        raise RuntimeError("there is no docker command (Debian: docker.io)")
    return found
