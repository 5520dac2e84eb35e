"""A real agent and a real master run real commands: codes, output, reasons, ends."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from agent_cluster import Cluster, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = "import sys\nfor i in range({n}): sys.stdout.write('%09d ' % i + 'x' * 89 + '\\n')"


def numbered(count: int) -> bytes:
    """What ``COUNT`` prints: 100 bytes a line."""
    return b"".join(b"%09d " % i + b"x" * 89 + b"\n" for i in range(count))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """One master and one agent for all: what these tests run does not harm them."""
    async with Cluster(tmp_path_factory.mktemp("runs")) as made:
        made.agent("n1", environment={"FROM_OPERATOR": "yes"})
        yield made


async def test_a_command_runs_and_everything_it_wrote_arrives(cluster: Cluster) -> None:
    script = (
        "echo hello $CLUTCH_TASK $CLUTCH_ROLE $CLUTCH_RANK $CLUTCH_FENCE $SECRET; echo oops >&2; printf end; pwd >&2"
    )
    await cluster.master.run("first", "sh", "-c", script, program={"environment": {"SECRET": "overlaid"}})
    await cluster.master.ended("first")
    assert await cluster.master.output("first") == b"hello first main 0 g1e1i1 s3cret\nend"
    said = (await cluster.master.output("first", "stderr")).decode().splitlines()
    assert said[0] == "oops" and said[1].startswith(str(cluster.folder / "n1" / "work"))
    await until_forgotten(cluster, "first")


async def until_forgotten(cluster: Cluster, task: str) -> None:
    """Until the agent has removed all that a task left on its machine."""

    async def look() -> bool:
        return not [*(cluster.folder / "n1").glob(f"*/{task}~*")]

    await until(look, "directories stay though the master has everything")


@pytest.mark.parametrize(("task", "command", "verdict", "reason"), [
    ("three", "exit 3", "3", "exited with code 3"),
    ("killed", "kill -9 $$", "-9", "killed by signal 9"),
])  # fmt: skip
async def test_how_it_ended_is_known(cluster: Cluster, task: str, command: str, verdict: str, reason: str) -> None:
    await cluster.master.run(task, "sh", "-c", command)
    await cluster.master.ended(task)
    story = await cluster.master.ask("story", task=task)
    assert any(f"code {verdict} " in line for line in story), story
    assert any(reason in found for found in await cluster.master.ask("reasons", task=task))


async def test_fifty_megabytes_arrive_byte_for_byte(cluster: Cluster) -> None:
    before = (await cluster.master.ask("lane"))["carried"]
    await cluster.master.run("big", sys.executable, "-c", COUNT.format(n=500_000))
    await cluster.master.ended("big")
    assert await cluster.master.output("big") == numbered(500_000)
    assert (await cluster.master.ask("lane"))["carried"] - before < 50_100_000, "bytes were sent twice"


async def test_why_it_could_not_start(cluster: Cluster) -> None:
    master = cluster.master
    wishes: dict[str, tuple[list[str], dict[str, object], str]] = {
        "missing": (["/no/such/command"], {}, "No such file"),
        "image": (["true"], {"image": {"name": "busybox"}}, "no Docker engine answers"),
        "refused": (["true"], {}, "no secret named moon"),
        "mount": (["true"], {"mounts": [{"source": "/no/such/place", "target": "data"}]}, "/no/such/place"),
        "absolute": (["true"], {"mounts": [{"source": "/tmp", "target": "/mnt/clutch"}]}, "cannot have /tmp mounted"),
        "escape": (["true"], {"mounts": [{"source": "/tmp", "target": "../x"}]}, "leaves the working directory"),
        "cap": (["true"], {"output_cap_bytes": 1}, "too small"),
        "nul": (["true"], {"mounts": [{"source": "/tmp", "target": "a\0b"}]}, "null"),
    }
    for task, (argv, program, _) in wishes.items():
        await master.run(task, *argv, program=program)
    for task, (_, _, reason) in wishes.items():

        async def told(task: str = task, reason: str = reason) -> bool:
            return any(reason in found for found in await master.ask("reasons", task=task))

        await until(told, f"nobody says why {task} did not start")

        async def exited(task: str = task) -> bool:
            cause = "(no_data)" if task == "mount" else "(refused)"
            return any(cause in line for line in await master.ask("story", task=task))

        await until(exited, f"{task} has no exit")


async def test_mounts_ports_and_the_base_environment(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("mounted")
    program = {
        "mounts": [{"source": str(tmp_path / "data"), "target": "in/data"}],
        "ports": [0, 8888, 0],
        "environment": {"MINE": "1"},
    }
    script = "cat in/data/file; env | sort >&2; sleep 600"
    await cluster.master.run("mounts", "sh", "-c", script, program=program)
    await cluster.master.running("mounts")
    use = await until(lambda: member_use(cluster, "mounts"), "its use is not told")
    assert any("read-only" in notice for notice in use[8])
    ports = use[9]
    assert ports[1] == 8888 and ports[0] != ports[2] and min(ports[0], ports[2]) >= 20000

    async def seen() -> dict[str, str]:
        text = (await cluster.master.output("mounts", "stderr")).decode()
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line) if "PWD=" in text else {}

    environment = await until(seen, "its environment is not told")
    assert await cluster.master.output("mounts") == b"mounted"
    assert environment["CLUTCH_PORT_0"] == str(ports[0]) and environment["CLUTCH_PORT_1"] == "8888"
    assert environment["FROM_OPERATOR"] == "yes" and environment["MINE"] == "1"
    assert environment["TMPDIR"].startswith(str(cluster.folder)) and environment["CLUTCH_NODE"] == "n1"
    assert environment["CLUTCH_MASTERS"] == f"http://127.0.0.1:{cluster.master.port}"


async def member_use(cluster: Cluster, task: str) -> list[object] | None:
    use = await cluster.master.ask("use", node="n1")
    members = [one for one in (use or {}).get("members", []) if one[0][0] == task]
    return members[0] if members and members[0][7] else None


@contextmanager
def open_folder() -> Iterator[Path]:
    """One that others may enter; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start something as somebody else")
async def test_a_member_runs_as_its_kit_says_in_a_folder_of_its_own(cluster: Cluster) -> None:
    with open_folder() as folder:
        data = folder / "agent"
        agent = cluster.agent("open", data=str(data), artificial=20)
        await cluster.master.node_is("open", "ready")
        script = "id -u; touch here $TMPDIR/there && echo wrote; ls /root 2>/dev/null || echo closed"
        await cluster.master.run("nobody", "sh", "-c", script, slots=20)
        await cluster.master.ended("nobody")
        assert await cluster.master.output("nobody") == b"65534\nwrote\nclosed\n"
        agent.kill()  # it clears up in the folder that goes now


async def test_asked_to_leave_it_gets_a_signal_and_its_window(cluster: Cluster) -> None:
    polite = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    await cluster.master.run("polite", "sh", "-c", polite)
    deaf = {"leave_signal": 0}
    await cluster.master.run("deaf", "sh", "-c", "echo up; sleep 600", program=deaf, leave_s=1.0)
    for task in ("polite", "deaf"):

        async def is_up(task: str = task) -> bool:
            return await cluster.master.output(task) == b"up\n"

        await until(is_up, f"{task} is not up")
        await cluster.master.running(task)
        await cluster.master.ask("cancel", task=task)
    await cluster.master.ended("polite")
    assert await cluster.master.output("polite") == b"up\nsaved\n"
    await cluster.master.ended("deaf")
    story = await cluster.master.ask("story", task="deaf")
    assert any("member exited" in line and "ended" in line for line in story), "\n".join(story)


async def test_killed_while_it_waits_for_its_kit_it_never_starts(cluster: Cluster) -> None:
    await cluster.master.run("slowkit", "sh", "-c", "echo started")
    await until(lambda: doing(cluster, "slowkit"), "it does not say what it is at")
    await cluster.master.ask("kill", task="slowkit")
    await cluster.master.ended("slowkit")
    assert await cluster.master.output("slowkit") == b""
    await until_forgotten(cluster, "slowkit")


async def doing(cluster: Cluster, task: str) -> bool:
    use = await cluster.master.ask("use", node="n1")
    return any(one[0][0] == task and one[3] == "asking for its kit" for one in (use or {}).get("members", []))


async def test_a_tunnel_carries_ten_megabytes_both_ways(cluster: Cluster) -> None:
    server = (
        "import os, socket\n"
        "s = socket.create_server(('127.0.0.1', int(os.environ['CLUTCH_PORT_0'])))\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    c, _ = s.accept()\n"
        "    while data := c.recv(65536): c.sendall(data)\n"
        "    c.close()\n"
    )
    await cluster.master.run("echo", sys.executable, "-c", server, program={"ports": [0]})

    async def is_up() -> bool:
        return await cluster.master.output("echo") == b"up\n" and bool(await member_use(cluster, "echo"))

    await until(is_up, "the server is not up")
    for _ in range(2):
        answer = await cluster.master.ask("echo", task="echo", size=10 * 2**20)
        assert answer["same"], answer
    await cluster.master.run("silent", "sleep", "600", program={"ports": [0]})
    await until(lambda: member_use(cluster, "silent"), "its port is not told")
    with pytest.raises(AssertionError, match="does not answer"):
        await cluster.master.ask("echo", task="silent", size=65536)
