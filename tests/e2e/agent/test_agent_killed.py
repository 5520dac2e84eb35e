"""Agents and masters killed with -9, links cut, in the middle of work: nothing is lost, nothing comes twice, no work
ends for it (P1, P2, P5)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from random import Random

from agent_cluster import Cluster, until

LINES = 4000
TICKING = (
    "import sys, time\n"
    f"for i in range({LINES}):\n"
    "    sys.stdout.write('%06d ' % i + 'x' * 92 + '\\n')\n"
    "    sys.stdout.flush()\n"
    "    if i % 10 == 0: time.sleep(0.004)\n"
)
"""Some seconds of lines, each flushed."""


def ticked() -> bytes:
    return b"".join(b"%06d " % i + b"x" * 92 + b"\n" for i in range(LINES))


async def shown(cluster: Cluster, task: str, size: int) -> None:
    """Until so much of a task's output is in the store."""

    async def look() -> bool:
        return len(await cluster.master.output(task)) >= size

    await until(look, f"{task} does not get on")


async def test_an_agent_killed_again_and_again_in_mid_output(cluster: Cluster) -> None:
    chance = Random(3)
    agent = cluster.agent("n1")
    await cluster.master.run("t", sys.executable, "-c", TICKING, on_lost="wait")
    for number in range(4):
        await shown(cluster, "t", 40_000 * (number + 1) + chance.randrange(20_000))
        agent.kill()
        agent = cluster.agent("n1")
    await cluster.master.ended("t")
    assert await cluster.master.output("t") == ticked()
    story = await cluster.master.ask("story", task="t")
    assert sum("allocation granted" in line for line in story) == 1, "it ran once, under five agents"


async def test_an_agent_told_to_stop_leaves_its_members_alone(cluster: Cluster) -> None:
    agent = cluster.agent("n1")
    await cluster.master.run("t", "sh", "-c", "echo begun; sleep 1.5; echo done", on_lost="wait")
    await shown(cluster, "t", 6)
    assert agent.stop() == 0
    cluster.agent("n1")
    await cluster.master.ended("t")
    assert await cluster.master.output("t") == b"begun\ndone\n"


async def test_what_ended_while_no_agent_was_there_is_told_by_the_next(cluster: Cluster) -> None:
    agent = cluster.agent("n1")
    await cluster.master.run("t", "sh", "-c", "echo begun; sleep 0.3; echo done; exit 7", on_lost="wait")
    await shown(cluster, "t", 6)
    agent.kill()
    records = cluster.folder / "n1" / "members"

    async def has_exited() -> bool:
        return any((path / "exit").exists() for path in records.iterdir())

    await until(has_exited, "it does not end without its agent")
    cluster.agent("n1")
    await cluster.master.ended("t")
    assert await cluster.master.output("t") == b"begun\ndone\n"
    assert any("code 7" in line for line in await cluster.master.ask("story", task="t"))


async def test_a_master_killed_in_mid_output_goes_on_where_it_was(cluster: Cluster) -> None:
    cluster.agent("n1")
    await cluster.master.run("t", sys.executable, "-c", TICKING, on_lost="wait")
    await cluster.master.run("short", "sh", "-c", "echo begun; sleep 1; echo done", on_lost="wait")
    for number in range(3):
        await shown(cluster, "t", 60_000 * (number + 1))
        await cluster.master.kill()
        await cluster.master.start()
    for task in ("t", "short"):
        await cluster.master.ended(task)
    assert await cluster.master.output("t") == ticked()
    assert await cluster.master.output("short") == b"begun\ndone\n"


async def test_members_go_on_while_no_master_is_there(cluster: Cluster) -> None:
    cluster.agent("n1")
    await cluster.master.run("t", "sh", "-c", "echo begun; sleep 1; echo done > finished; echo done", on_lost="wait")
    await shown(cluster, "t", 6)
    await cluster.master.kill()
    work = cluster.folder / "n1" / "work"

    async def has_finished() -> bool:
        return any((path / "cwd" / "finished").exists() for path in work.iterdir())

    await until(has_finished, "the member stopped with its master")
    await cluster.master.start()
    await cluster.master.ended("t")
    assert await cluster.master.output("t") == b"begun\ndone\n"


async def test_a_member_replaced_elsewhere_is_ended_when_its_node_returns(cluster: Cluster) -> None:
    """P2: a cut-off copy ends as soon as its agent is told, before anything new runs there."""
    lost = cluster.agent("n1")
    await cluster.master.run("t", "sh", "-c", "echo $CLUTCH_NODE $CLUTCH_FENCE; sleep 600")
    await shown(cluster, "t", 8)
    os.kill(lost.process.pid, signal.SIGSTOP)  # a machine that is cut off: connected, silent, its members alive
    cluster.agent("n2")
    await shown(cluster, "t", 16)
    assert await cluster.master.output("t") == b"n1 g1e1i1\nn2 g1e2i1\n"
    first = cluster.folder / "n1" / "members"
    assert len(list(first.iterdir())) == 1
    os.kill(lost.process.pid, signal.SIGCONT)

    async def is_gone() -> bool:
        return not list(first.iterdir())

    await until(is_gone, "the stale copy stays")
    await cluster.master.node_is("n1", "ready")
    reasons = await cluster.master.ask("reasons", task="t")
    assert "it was told to end" in reasons


async def test_a_cut_link_is_made_again_and_nothing_is_missing(cluster: Cluster) -> None:
    port = cluster.master.port
    wire = Wire(port)
    await wire.open()
    cluster.agent("n1", masters=[f"http://127.0.0.1:{wire.port}"])
    await cluster.master.run("t", sys.executable, "-c", TICKING, on_lost="wait")
    for number in range(4):
        await shown(cluster, "t", 50_000 * (number + 1))
        wire.cut()
    await cluster.master.ended("t")
    await wire.close()
    assert await cluster.master.output("t") == ticked()
    assert wire.cuts == 4 and wire.connections >= 10


async def test_an_agent_tries_each_master_until_one_leads(cluster: Cluster) -> None:
    nobody = "http://127.0.0.1:9"
    cluster.agent("n1", masters=[nobody, f"http://127.0.0.1:{cluster.master.port}"])
    await cluster.master.run("t", "echo", "here")
    await cluster.master.ended("t")
    assert await cluster.master.output("t") == b"here\n"


async def test_a_second_agent_of_the_same_name_is_refused_while_the_first_lives(cluster: Cluster) -> None:
    first = cluster.agent("n1")
    await cluster.master.node_is("n1", "ready")
    second = cluster.agent("n1", folder="elsewhere")

    async def complains() -> bool:
        return "another agent of this name is connected and alive" in second.log.read_text()

    await until(complains, "the second one is let in")
    await cluster.master.run("t", "sh", "-c", "echo mine; sleep 600")
    await shown(cluster, "t", 5)
    assert len(list((cluster.folder / "n1" / "members").iterdir())) == 1
    assert not list((cluster.folder / "elsewhere" / "members").iterdir())
    first.kill()

    async def is_in() -> bool:
        return "connected" in second.log.read_text().split("another agent of this name")[-1]

    await until(is_in, "the second one is not let in after the first is gone")


async def test_a_second_agent_on_the_same_folder_is_a_typed_error(cluster: Cluster) -> None:
    cluster.agent("n1")
    await cluster.master.node_is("n1", "ready")
    second = cluster.agent("n2", folder="n1")
    assert await asyncio.to_thread(second.process.wait, 30) == 3
    assert "conflict: " in second.log.read_text()


async def test_a_token_of_another_node_is_refused(cluster: Cluster) -> None:
    agent = cluster.agent("n1", token="node-n2")

    async def complains() -> bool:
        return "its token is that of node n2" in agent.log.read_text()

    await until(complains, "it is let in")
    assert "n1" not in (await cluster.master.ask("state"))["nodes"]


class Wire:
    """A relay between agent and master that can be cut at any moment."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.port = 0
        self.cuts = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self.cuts += 1
        for writer in list(self._open):
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self.cuts -= 1
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.to)
        self._open |= {writer, up_writer}
        for source, target in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(self._pump(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._open.discard(writer)
