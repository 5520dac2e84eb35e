"""A real agent and a real master run real commands: codes, output, reasons, ends."""

from __future__ import annotations

import hashlib

from agent_cluster import Cluster, until


async def test_a_command_runs_and_everything_it_wrote_arrives(cluster: Cluster) -> None:
    cluster.agent("n1")
    script = "echo hello $CLUTCH_TASK $CLUTCH_RANK; echo oops >&2; printf end; exit 0"
    await cluster.master.run("first", "sh", "-c", script)
    await cluster.master.ended("first")
    assert cluster.master.output("first") == b"hello first 0\nend"
    assert cluster.master.output("first", "stderr") == b"oops\n"
