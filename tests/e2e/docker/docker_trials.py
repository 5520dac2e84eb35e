"""A cluster whose node runs images, for trials in containers of a real engine.

The image is busybox; its Python is this machine's, mounted read-only by the configuration, as is the code. So nothing
is built, and mounts are tried in every test.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import clutch
from clutch.backends.containers.docker_http import Engine
from clutch.testing import noop_trial
from clutch.testing.cluster import Cluster
from clutch.testing.docker import BUSYBOX
from clutch.testing.experiments import Experiments
from clutch.wire.errors import Conflict

NODE = "n1"
PROGRAM = str(noop_trial.__file__)
SOURCE = Path(clutch.__file__).parents[1]
PYTHON_FOLDERS = tuple(
    dict.fromkeys(map(str, (SOURCE, Path(sys.prefix), Path(sys.base_prefix), *map(Path, ("/usr", "/lib", "/lib64")))))
)
"""What a container needs of this machine to run its Python, and ours in it."""
SEARCH = f"{sys.prefix}/bin:{sys.base_prefix}/bin:/usr/bin:/bin"


class DockerCluster(Experiments):
    """A master, and a node ``n1`` with artificial slots and this engine."""

    def __init__(self, folder: Path, socket: Path, slots: int = 4, options: tuple[str, ...] = ()) -> None:
        super().__init__(folder, Cluster(folder / "cluster"))
        self.socket = socket
        self.engine = Engine(str(socket))
        self.slots = slots
        self._options = options
        self._codes = 0

    def join(self) -> tuple[str, ...]:
        self.add_agent(NODE, self.slots, *self._options)
        return (NODE,)

    def add_agent(self, name: str, slots: int, *options: str) -> None:
        child = self.cluster.add_agent(name, slots, prefix=("env", f"DOCKER_HOST=unix://{self.socket}"))
        if options:
            child.kill()
            child.arguments += options
            child.start()

    # -- submitting ------------------------------------------------------------------------------------------------

    def config(self, do: list[str], steps: int = 4, **more: Any) -> dict[str, Any]:
        """``mounts`` besides Python's; ``variables`` besides PATH; anything else of a configuration."""
        mounts = [mount(path, path) for path in PYTHON_FOLDERS]
        variables = {"PATH": SEARCH, "PYTHONPATH": str(SOURCE), **more.pop("variables", {})}
        return {
            "name": "in a container",
            "entrypoint": ["python3", PROGRAM],
            "hyperparameters": {"do": do, "steps": steps, **more.pop("hparams", {})},
            "searcher": {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": 1},
            "environment": {"image": BUSYBOX, "environment_variables": variables},
            "bind_mounts": [*mounts, *more.pop("mounts", [])],
            "max_restarts": 0,
            "preemption_timeout": 60,
            **more,
        }

    def start(self, do: list[str], steps: int = 4, **more: Any) -> str:
        """A submitted experiment's id. ``files``: its code."""
        files, code = more.pop("files", {}), ""
        if files:
            self._codes += 1
            folder = self.folder / f"code{self._codes}"
            folder.mkdir()
            for name, text in files.items():
                (folder / name).write_text(text)
            code = self.client.upload(folder)
        return self.submit(self.config(do, steps, **more), code=code).experiment

    def end(self, experiment: str) -> None:
        """However it ends."""
        with suppress(Conflict):  # it has ended already
            self.move(experiment, "kill")
        self.until_ended(experiment)

    # -- looking ---------------------------------------------------------------------------------------------------

    def containers(self, task: str = "") -> list[str]:
        """Those of the engine that run (for a task)."""
        found = self.engine.ask("GET", "/containers/json")
        mine = [one["Id"] for one in found if str(self.folder) in one["Labels"].get("clutch.root", "")]
        return [one for one in mine if not task or f"CLUTCH_TASK={task}" in self.environment_of(one)]

    def environment_of(self, container: str) -> list[str]:
        found: list[str] = self.engine.ask("GET", f"/containers/{container}/json")["Config"]["Env"]
        return found

    def kill_container(self, container: str) -> None:
        """``docker kill``."""
        self.engine.ask("POST", f"/containers/{container}/kill?signal=KILL")

    # -- waiting ---------------------------------------------------------------------------------------------------

    def until_why(self, experiment: str, words: str) -> None:
        """Until ``clutch why`` says so, of the experiment or of its trial."""
        self.waited(lambda: words in self.why(experiment), experiment, f"why {experiment}: {words}")


def mount(source: Path | str, target: str, read_only: bool = True) -> dict[str, object]:
    return {"host_path": str(source), "container_path": target, "read_only": read_only}


def open_folder(path: Path) -> Path:
    """Made, with all above it passable: a container may run as anybody."""
    path.mkdir(parents=True, exist_ok=True)
    os.chmod(path, 0o777)  # noqa: PTH101
    return path
