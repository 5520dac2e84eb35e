"""A real server of Azure's blob API for tests: Azurite in a temporary folder, or a container in ``CLUTCH_TEST_AZURE``.

``CLUTCH_TEST_AZURE=az://ACCOUNT:KEY@CONTAINER/PREFIX`` names a container of your own, in which the tests write and
delete below that prefix. The temporary server needs Node 20; npm fetches Azurite once into ``~/.cache/clutch``.
Whatever cannot be had is said by ``Missing``, with what to run. It listens on loopback only and dies with the thread
that started it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

from clutch.runtime.info import inherited
from clutch.testing.ports import free_ports
from clutch.testing.seaweed import _die_with_parent

ADDRESS_VARIABLE = "CLUTCH_TEST_AZURE"
ACCOUNT, CONTAINER = "clutchtest", "clutch"
KEY = base64.b64encode(b"a key for tests that opens nothing else").decode()
_PACKAGE = "azurite@3.35.0"
"""The newest that runs on Node 20."""
_VERSION = "2021-12-02"
_START_S = 60.0


class Missing(Exception):
    """Something that Azurite needs is not on this machine; says what, and how to get it."""


def prepare() -> Path:
    """Azurite's main script; fetches it if need be."""
    base = inherited().get("XDG_CACHE_HOME", "") or str(Path.home() / ".cache")
    home = Path(base) / "clutch" / _PACKAGE.replace("@", "-")
    script = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Missing("Azurite needs Node 20 and npm; install them, or set " + ADDRESS_VARIABLE)
    if not script.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            ready = Path(scratch) / "home"
            ready.mkdir()
            command = ["npm", "install", "--prefix", str(ready), "--no-audit", "--no-fund", _PACKAGE]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode:
                raise Missing(f"Azurite is not installed; `{' '.join(command)}` says:\n{done.stderr[-500:]}")
            try:
                ready.rename(home)
            except OSError:
                if not script.exists():  # another process was quicker
                    raise
    return script


class Server:
    """A server with its folder. ``start``, ``kill`` and start again as you like."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._script = prepare()
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, prefix: str = "", *, key: str = KEY, container: str = CONTAINER) -> str:
        endpoint = f"http://127.0.0.1:{self._port}/{ACCOUNT}"
        return f"az://{ACCOUNT}:{quote(key, safe='')}@{container}/{prefix}?endpoint={endpoint}"

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-4_000:]

    def start(self) -> None:
        """Returns when the container is there."""
        command = [
            "node", str(self._script), "--blobHost", "127.0.0.1", "--blobPort", str(self._port),
            "--location", str(self.folder), "--skipApiVersionCheck", "--silent", "--disableTelemetry",
        ]  # fmt: skip
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    "PATH": inherited().get("PATH", "/usr/bin:/bin"),
                    "HOME": str(self.folder),
                    "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}",
                },
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + _START_S
        while not self._make_container():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Azurite did not start:\n{self.output()}")
            time.sleep(0.05)

    def _make_container(self) -> bool:
        """Whether there is one now. The client library can only use what exists."""
        date = formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": _VERSION}
        resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        said = "\n".join(["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{_VERSION}", resource])
        signed = hmac.new(base64.b64decode(KEY), said.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5.0)
        try:
            link.request("PUT", f"/{ACCOUNT}/{CONTAINER}?restype=container", headers=headers)
            return link.getresponse().status in (201, 409)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            link.close()

    def stop(self) -> None:
        """End it politely: killed, it forgets what it acknowledged in the last seconds, as Azure itself does not."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_START_S)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_START_S)


@contextmanager
def temporary_server() -> Iterator[Server]:
    """A server that is there for the length of a ``with`` block."""
    folder = Path(tempfile.mkdtemp(prefix="clutch-azure-"))
    try:
        server = Server(folder)
        try:
            server.start()
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    prepare()  # what is fetched once, fetched now: a test has less time
