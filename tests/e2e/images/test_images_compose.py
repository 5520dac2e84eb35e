"""The images are built without a network and make a cluster: PostgreSQL, masters, an agent, a member in a container."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clutch import __version__
from clutch.testing import docker, docker_images
from clutch.testing.ports import free_ports

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def missing() -> str:
    if docker.missing() or docker.given_socket() is not None:
        return docker.missing() or "these tests need a private engine, not DOCKER_HOST"
    return "" if compose() else "there is no docker compose (Debian: apt-get install docker-compose)"


def compose() -> list[str]:
    """``docker-compose`` or ``docker compose``, whichever is here."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = subprocess.run([docker.docker_client(), "compose", "version"], capture_output=True, check=False)
    return [docker.docker_client(), "compose"] if plugin.returncode == 0 else []


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerEngine]:
    """With base images of this machine's own Python and PostgreSQL, and ours built on them."""
    if missing():
        pytest.skip(missing())
    with docker.temporary_engine() as made:
        docker.import_image(
            made.socket, docker_images.PYTHON, docker_images.python_root(), docker_images.python_changes()
        )
        build = subprocess.run(
            [ROOT / "images" / "build", "test"],
            env={
                **os.environ,
                "DOCKER_HOST": f"unix://{made.socket}",
                "DOCKER": docker.docker_client(),
                "BASE_IMAGE": docker_images.PYTHON,
                "PYTHON_VERSION": PYTHON_VERSION,
                "PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert build.returncode == 0, build.stdout + build.stderr
        yield made


def run_in(engine: docker.DockerEngine, image: str, *words: str) -> str:
    command = [docker.docker_client(), "--host", f"unix://{engine.socket}", "run", "--rm", "--network", "none"]
    done = subprocess.run([*command, image, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_images_hold_clutch(engine: docker.DockerEngine) -> None:
    assert run_in(engine, "clutch-server:test", "--version").split()[-1] == __version__
    assert run_in(engine, "clutch-task:test", "python3", "-c", "import clutch; print(clutch.__version__)").strip() == (
        __version__
    )
    identity = "import os; print(os.getuid(), os.access('/var/lib/clutch', os.W_OK))"
    command = ["--entrypoint", "python3"]
    client = [docker.docker_client(), "--host", f"unix://{engine.socket}", "run", "--rm", "--network", "none"]
    said = subprocess.run(
        [*client, *command, "clutch-server:test", "-c", identity], capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["10001", "True"]  # not root, and it can write its data


class Cluster:
    def __init__(self, engine: docker.DockerEngine, folder: Path) -> None:
        self.ports = free_ports(2)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "DOCKER_HOST": f"unix://{engine.socket}",
            "CLUTCH_DOCKER_SOCKET": str(engine.socket),
            "CLUTCH_DB_PASSWORD": "pass word",
            "POSTGRES_IMAGE": docker_images.POSTGRES,
            "CLUTCH_IMAGE": "clutch-server:test",
            "CLUTCH_PORT": str(self.ports[0]),
            "CLUTCH_STANDBY_PORT": str(self.ports[1]),
            "CLUTCH_AGENT_DATA": str(folder / "agent"),
            "CLUTCH_CPU_SLOTS": "2",
        }

    def compose(self, *words: str) -> str:
        command = [*compose(), "--file", str(ROOT / "images" / "compose.yaml"), "--project-name", "clutchtest", *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def health(self, number: int) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[number]}/health", timeout=5) as answer:
                return str(json.load(answer)["status"])
        except OSError:
            return ""

    def token(self) -> str:
        """The administrator's, from whichever master leads or led."""
        for service in ("master", "standby"):
            said = self.compose("exec", "-T", service, "sh", "-c", "cat /var/lib/clutch/local.token || true").strip()
            if said:
                return said
        return ""

    def clutch(self, *words: str, timeout_s: float = PATIENCE_S) -> tuple[int, str]:
        """The command on this machine, as the administrator of the cluster in the containers."""
        token = self.token()
        masters = ",".join(f"http://127.0.0.1:{port}" for port in self.ports)
        done = subprocess.run(
            [Path(sys.executable).parent / "clutch", "--master", masters, *words],
            env={**self.environment, "CLUTCH_TOKEN": token},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        return done.returncode, done.stdout + done.stderr


def until(what: Callable[[], bool], cluster: Cluster) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, cluster.compose("logs", "--no-color", "--tail", "60")
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(engine: docker.DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = docker_images.postgres_root()
    docker.import_image(engine.socket, docker_images.POSTGRES, root, docker_images.postgres_changes())
    made = Cluster(engine, tmp_path_factory.mktemp("cluster"))
    try:
        made.compose("--profile", "standby", "up", "--detach")
        yield made
    finally:
        made.compose("--profile", "standby", "down", "--volumes", "--timeout", "5")


def test_a_whole_cluster_of_containers(cluster: Cluster) -> None:
    until(lambda: "serving" in (cluster.health(0), cluster.health(1)), cluster)
    until(lambda: "ready" in cluster.clutch("agent", "list")[1], cluster)
    code, said = cluster.clutch(
        "run", "--no-code", "--image", docker.BUSYBOX, "--", "sh", "-c", "echo from a box; exit 3"
    )
    assert (code, "a box" in said) == (3, True), said
    script = "import clutch, os; print('task', clutch.__version__, os.getpid() < 20)"
    code, said = cluster.clutch("run", "--no-code", "--image", "clutch-task:test", "--", "python3", "-c", script)
    assert code == 0 and f"task {__version__} True" in said, said


def test_the_standby_takes_over(cluster: Cluster) -> None:
    until(lambda: "serving" in (cluster.health(0), cluster.health(1)), cluster)
    until(lambda: "ready" in cluster.clutch("agent", "list")[1], cluster)
    leader, other = ("master", 1) if cluster.health(0) == "serving" else ("standby", 0)
    until(lambda: cluster.health(other) == "standby", cluster)
    cluster.compose("kill", leader)
    until(lambda: cluster.health(other) == "serving", cluster)
