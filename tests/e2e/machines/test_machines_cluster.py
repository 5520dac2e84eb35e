"""A whole cluster of real processes whose pool has no machines: they come when work needs them, and go when it is done.

The master, its agents and the commands are started as a user starts them. Agents are launched by the master itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clutch.backends.machines import residue
from clutch.sdk import calls
from clutch.sdk.task import Task
from clutch.testing import ssh_server
from clutch.testing.cluster import Cluster, until
from clutch.wire.ids import TaskId
from clutch.wire.output import OutputQuery

READ = """
import os, pathlib, sys
print(os.environ["CLUTCH_NODE"], sum(map(int, pathlib.Path(sys.argv[1]).read_text().split())))
"""
POOLS = """
[pools.elastic]
node_lost_after_s = 5.0

[pools.elastic.autoscale]
nodes_min = 0
nodes_max = 2
slots_per_node = 2
kind = "artificial"
idle_s = 2.0
starting_s = 60.0
disconnected_s = 3.0

[pools.elastic.machines]
way = "{way}"
arguments = ["--artificial-slots", "2"]
stop_s = 5.0
{more}
"""


class Elastic:
    """A cluster with one pool whose nodes come and go."""

    def __init__(self, folder: Path, way: str = "local", more: str = "", options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "pools.toml").write_text(POOLS.format(way=way, more=more))
        (folder / "numbers").write_text("\n".join(map(str, range(1, 101))))
        words = [f"--pools={folder / 'pools.toml'}", "--cluster=lab", *options]
        self.cluster = Cluster(folder / "cluster", options=words)
        try:
            self.client = self.cluster.start()
        except BaseException:
            self.cluster.close()
            raise

    def submit(self, *command: str, name: str, slots: int = 1) -> Task:
        return self.client.run(*command, code=None, name=name, pool="elastic", slots=slots, kind="artificial")

    def read(self, name: str) -> Task:
        return self.submit(sys.executable, "-c", READ, str(self.folder / "numbers"), name=name)

    def ended(self, *tasks: Task) -> None:
        until(lambda: all(self.cluster.state(task.id) == "ended" for task in tasks), "every task ends", 90)

    def nodes(self) -> dict[str, str]:
        return {node.key: node.state for node in self.client.perform(calls.list_nodes()).items}

    def output(self, task: Task) -> str:
        page = self.client.perform(calls.read_output(OutputQuery(task=TaskId(task.id), streams=("stdout",))))
        return "\n".join(line.text for line in page.lines)

    def facts(self) -> list[str]:
        """Kinds of everything that happened to machines, in order."""
        found = self.client.perform(calls.list_events(limit=1000)).items
        kinds = [event.kind for event in sorted(found, key=lambda event: event.index)]
        return [kind for kind in kinds if kind.startswith("machine_") and kind != "machine_idle"]

    def agents(self) -> list[int]:
        """Processes of agents that the provider started, here or over ssh."""
        walked = os.walk(self.folder)  # what vanishes meanwhile is no error to it
        places = [Path(place) for place, _, files in walked if "agent.token" in files and Path(place).name == "data"]
        return [pid for place in places for pid in residue.agents_of(place)]

    def all_gone(self) -> None:
        until(lambda: not self.nodes(), "no node is left", 60)
        until(lambda: not self.agents(), "no agent is left", 30)

    def close(self) -> None:
        self.cluster.close()
        residue.end(self.agents(), signal.SIGKILL)
        residue.end(residue.users_of(self.folder), signal.SIGKILL)


@pytest.fixture
def elastic(tmp_path: Path) -> Iterator[Elastic]:
    made = Elastic(tmp_path / "elastic")
    yield made
    made.close()


def test_agents_come_when_work_needs_them_and_go_when_it_is_done(elastic: Elastic) -> None:
    assert elastic.nodes() == {} and elastic.agents() == []
    tasks = [elastic.read(f"read-{number}") for number in range(5)]
    elastic.ended(*tasks)
    for task in tasks:
        detail = task.detail()
        assert (detail.task.reason, detail.exit_code) == ("done", 0), detail.task.detail
        node, total = elastic.output(task).split()
        assert total == "5050", "the command read the data there"
        assert node.startswith("elastic-")
    elastic.all_gone()
    facts = elastic.facts()
    asked = facts.count("machine_asked")
    assert 1 <= asked <= 2
    assert facts.count("machine_gone") == facts.count("machine_stop_asked") == asked
    left = [place.name for place in (elastic.folder / "cluster" / "master0" / "machines").rglob("machine.json")]
    assert left == [], "nothing of them is left on the disk"


def test_a_killed_master_finds_its_machines_again_and_kills_no_work(elastic: Elastic) -> None:
    mark = elastic.folder / "mark"
    script = f"import time, pathlib; pathlib.Path({str(mark)!r}).open('a').write('x'); time.sleep(6); print('whole')"
    task = elastic.submit(sys.executable, "-c", script, name="long")
    until(mark.exists, "it runs", 60)
    agents = elastic.agents()
    elastic.cluster.masters[0].kill()
    elastic.cluster.masters[0].start()
    elastic.cluster.wait_serving()
    elastic.ended(task)
    assert (mark.read_text(), elastic.output(task)) == ("x", "whole"), "it ran once, through it all"
    assert elastic.facts().count("machine_asked") == 1 and len(agents) == 1
    elastic.all_gone()


def test_an_agent_that_dies_takes_its_machine_with_it_and_the_work_goes_on(elastic: Elastic) -> None:
    first = elastic.read("first")
    elastic.ended(first)
    (pid,) = elastic.agents()
    os.kill(pid, signal.SIGKILL)
    second = elastic.read("second")
    elastic.ended(second)
    assert elastic.output(second).split()[1] == "5050"
    elastic.all_gone()


@pytest.mark.slow
def test_the_same_over_ssh(tmp_path: Path) -> None:
    if ssh_server.found() is None:
        pytest.skip("there is no sshd here: install openssh-server")
    with ssh_server.ssh_server(tmp_path / "sshd") as server:
        agent = [sys.executable, "-m", "clutch.cli.main", "agent"]
        host = f'{{ name = "rack-1", address = "127.0.0.1", port = {server.port}, user = "{server.user}" }}'
        more = f"""
hosts = [{host}]
agent = {agent!r}
folder = "{tmp_path / "hosts"}"
identity_file = "{server.identity_file}"
known_hosts = "{server.known_hosts}"
"""
        made = Elastic(tmp_path, "ssh", more)
        try:
            began = time.monotonic()
            task = made.read("over-ssh")
            made.ended(task)
            assert made.output(task).split()[1] == "5050", f"after {time.monotonic() - began:.1f} s"
            made.all_gone()
        finally:
            made.close()
