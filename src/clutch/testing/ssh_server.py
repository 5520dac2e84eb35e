"""A real ``sshd`` on loopback, as whoever runs the tests: own keys, own port, nothing of the machine's own settings."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

START_S = 20.0


class SshServer(msgspec.Struct, frozen=True):
    port: int
    user: str
    identity_file: Path
    known_hosts: Path


def found() -> str | None:
    """Where ``sshd`` is, if it is."""
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """One server, until the context ends."""
    binary = found()
    assert binary is not None
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=START_S
        )
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    key = (folder / "host.pub").read_text().split()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PubkeyAuthentication yes\nStrictModes no\nPermitRootLogin prohibit-password\nMaxStartups 100\n"
    )
    if getpass.getuser() == "root":
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd separates privileges there, and starts only if it exists
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [binary, "-D", "-e", "-f", str(folder / "config")], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        _await(server, port, folder / "log")
        yield SshServer(port, getpass.getuser(), folder / "user", folder / "known")
    finally:
        server.terminate()
        server.wait(START_S)


def _await(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"sshd did not start: {log.read_text()}")
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.02)
