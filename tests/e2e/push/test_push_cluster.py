"""The whole way once, with nothing stood in for: a master, an agent, two members booted with code of their user's."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from clutch.testing.cluster import Cluster, until
from clutch.wire.api import SubmitTask
from clutch.wire.programs import Program
from clutch.wire.resources import Resources

SCRIPT = """
import json, os, sys
from clutch.runtime.client import PushClient
from clutch.runtime.info import read_info
from clutch.runtime.preempt import PreemptionWatch
from clutch.wire.metrics import MetricBatch, MetricPoint
from clutch.wire.push import CheckpointFile, CommitManifest

info = read_info()
voice = PushClient.open(info)
gathered = voice.all_gather(1, os.environ["RANK"].encode())
with PreemptionWatch(info) as watch:
    point = MetricPoint("training", 1, {"loss": 0.5}, 1.0)
    sequence = voice.metrics((MetricBatch(1, (point,)),))
    if info.rank == 0:
        begun = voice.begin_checkpoint(1)
        voice.commit_checkpoint(begun.id, CommitManifest(step=1, files=(CheckpointFile("w", 1, "0" * 64),)))
    said = {"rank": os.environ["RANK"], "size": os.environ["WORLD_SIZE"], "gathered": [g.decode() for g in gathered]}
    said |= {"sequence": sequence, "chief": os.environ["MASTER_ADDR"], "here": os.path.basename(__file__)}
    print(json.dumps(said), flush=True)
    assert watch.wait(60), "nobody asked it to leave"
    print(json.dumps({"reason": watch.reason, "checkpoint": voice.info().checkpoint}), flush=True)
    voice.acknowledge()
voice.close()
"""


def test_two_members_from_submit_to_leaving(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "work.py").write_text(SCRIPT)
    with Cluster(tmp_path / "cluster") as cluster:
        client = cluster.start()
        cluster.add_agent("n1", slots=2)
        cluster.wait_nodes("n1")
        program = Program(argv=(sys.executable, "work.py"), code=client.upload(code), leave_signal=0)
        wish = SubmitTask(program=program, name="pair", count=2, resources=Resources(1, "artificial"))
        task = client.submit(wish)

        def lines() -> list[dict[str, object]]:
            found = [line.text for line in task.output() if line.text.startswith("{")]
            return [msgspec.json.decode(text) for text in found]

        began = until(lambda: (found := lines()) and len(found) == 2 and found, "both members have met", 60)
        assert sorted(str(line["rank"]) for line in began) == ["0", "1"]
        for line in began:
            assert line["size"] == "2" and line["gathered"] == ["0", "1"] and line["sequence"] == 1
            assert line["chief"] == "127.0.0.1" and line["here"] == "work.py"
        task.stop()
        detail = task.wait(60)
        left = [line for line in lines() if "reason" in line]
        assert [line["reason"] for line in left] == ["cancelled", "cancelled"]
        assert all(line["checkpoint"] for line in left)
        assert (detail.task.state, detail.task.reason) == ("ended", "cancelled")
