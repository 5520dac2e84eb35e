"""What an agent looks at before a start, as whom, on the event loop that agents really have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import uvloop

from clutch.agent.boot import boot_on_node
from clutch.agent.data import check_data
from clutch.wire.containers import ContainerSpec, RunAs
from clutch.wire.errors import DataMissing
from clutch.wire.ids import Fence, MemberId, NodeId, TaskId

NODE, SOMEBODY = NodeId("n1"), RunAs(4242, 4343, (4444,))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may look as somebody else")


@pytest.fixture
def reached(tmp_path: Path) -> Path:
    """A folder that everybody reaches."""
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.geteuid() and above.name.startswith(("pytest-", "popen-", "test_")):
            above.chmod(above.stat().st_mode | 0o055)
    return tmp_path


@pytest.fixture
def data(reached: Path) -> Path:
    """A file that only its owner may read."""
    path = reached / "data"
    path.write_text("here")
    path.chmod(0o600)
    return path


def test_what_is_there_and_what_is_not(data: Path) -> None:
    uvloop.run(check_data([str(data)], None, NODE))
    with pytest.raises(DataMissing, match=f"{data}-not is not there on node n1"):
        uvloop.run(check_data([str(data), f"{data}-not"], None, NODE))


@needs_root
def test_somebody_who_may_not_read_it_is_told_before_the_start(data: Path) -> None:
    with pytest.raises(DataMissing, match=f"{data} may not be read on node n1"):
        uvloop.run(check_data([str(data)], SOMEBODY, NODE))
    os.chown(data, 4242, 0)
    uvloop.run(check_data([str(data)], SOMEBODY, NODE))
    os.chown(data, 0, 4444)
    data.chmod(0o640)
    uvloop.run(check_data([str(data)], SOMEBODY, NODE))  # by a further group of theirs


@needs_root
def test_boot_on_the_node_is_as_whom_the_member_runs(reached: Path) -> None:
    """Its Python is a script that says who it is, in place of a boot that would need a master."""
    python = reached / "python"
    python.write_text("#!/bin/sh\nprintf 'WHO=%s\\0' \"$(id -u):$(id -g):$(id -G)\"\n")
    python.chmod(0o755)
    member = MemberId(TaskId("t"), "main", 0)
    spec = ContainerSpec(member, Fence(1, 1, 1), ("a",), str(reached), run_as=SOMEBODY, image="i")
    after = uvloop.run(boot_on_node(spec, str(python), {"PATH": "/usr/bin:/bin"}, str(reached)))
    assert after.environment["WHO"] == "4242:4343:4343 4444"
