"""A cluster of two unequal nodes, and programs over all five of its slots."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from clutch.sdk.task import Task
from clutch.testing.cluster import Cluster
from clutch.wire.api import SubmitTask, TaskDetail
from clutch.wire.programs import Launching, PlainLaunch, Program
from clutch.wire.specs import RoleSpec, Split

WITHIN_S = 90.0
BIN = str(Path(sys.executable).parent)
PATH = f"{BIN}:{os.environ['PATH']}"
"""Where torchrun and accelerate are."""
TELL = """
import json, os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR",
         "MASTER_PORT", "CLUTCH_WORLD_RANK", "CLUTCH_WORLD_SIZE", "CLUTCH_COMMS_ADDRESS", "CLUTCH_COMMS_PORT",
         "CLUTCH_NODE", "CLUTCH_SLOTS")
found = {name: os.environ.get(name, "") for name in names}
found["peers"] = [len(peer["slots"]) for peer in json.load(open(os.environ["CLUTCH_ROSTER_FILE"]))["peers"]]
print(json.dumps(found), flush=True)
"""


class Ground:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._codes = 0

    def submit(
        self, files: dict[str, str], argv: tuple[str, ...], launch: Launching | None = None, **more: object
    ) -> Task:
        """A program over all slots of both nodes, unless ``roles`` say otherwise."""
        self._codes += 1
        code = self.folder / f"code{self._codes}"
        code.mkdir()
        for name, text in files.items():
            (code / name).write_text(text)
        environment = {"PATH": PATH, **more.pop("environment", {})}  # type: ignore[dict-item]
        program = Program(
            argv=argv,
            code=self.cluster.client.upload(code),
            environment=environment,
            launch=launch or PlainLaunch(),
        )
        roles = more.pop("roles", (RoleSpec(name="main", shape=Split(slots=5, kind="artificial")),))
        return self.cluster.client.submit(SubmitTask(program=program, roles=roles, **more))  # type: ignore[arg-type]

    def run(
        self, files: dict[str, str], argv: tuple[str, ...], launch: Launching | None = None, **more: object
    ) -> TaskDetail:
        return self.submit(files, argv, launch, **more).wait(WITHIN_S)


@contextmanager
def ground(folder: Path) -> Iterator[Ground]:
    with Cluster(folder / "cluster") as cluster:
        cluster.start()
        cluster.add_agent("a", slots=2)
        cluster.add_agent("b", slots=3)
        cluster.wait_nodes("a", "b")
        yield Ground(cluster, folder)


def texts(task: Task) -> list[str]:
    return [line.text for line in task.output()]


def told(task: Task) -> list[dict[str, object]]:
    """What ``TELL`` printed, in the order of ranks."""
    found = [msgspec.json.decode(text[text.index("{") :]) for text in texts(task) if '{"RANK"' in text]
    return sorted(found, key=lambda one: int(one["RANK"]))
