"""A cluster whose node runs images, for trials in containers of a real engine.

The image is busybox; its Python is this machine's, mounted read-only by the configuration, as is the code. So nothing
is built, and mounts are tried in every test.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import clutch
from clutch.backends.containers.docker_http import Engine
from clutch.sdk import calls, experiment_calls
from clutch.sdk.client import Client
from clutch.testing import noop_trial
from clutch.testing.cluster import Cluster, until
from clutch.testing.docker import BUSYBOX
from clutch.wire.errors import Conflict
from clutch.wire.experiment_api import SubmitExperiment
from clutch.wire.experiment_views import CheckpointRow, ExperimentView, TrialView
from clutch.wire.output import OutputQuery

NODE = "n1"
PROGRAM = str(noop_trial.__file__)
ENDED = ("completed", "cancelled", "failed")
WAIT_S = 60.0
SOURCE = Path(clutch.__file__).parents[1]
PYTHON_FOLDERS = tuple(
    dict.fromkeys(map(str, (SOURCE, Path(sys.prefix), Path(sys.base_prefix), *map(Path, ("/usr", "/lib", "/lib64")))))
)
"""What a container needs of this machine to run its Python, and ours in it."""
SEARCH = f"{sys.prefix}/bin:{sys.base_prefix}/bin:/usr/bin:/bin"


class DockerCluster:
    """A master, and a node ``n1`` with artificial slots and this engine."""

    def __init__(self, folder: Path, socket: Path, slots: int = 4, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.socket = socket
        self.engine = Engine(str(socket))
        self.slots = slots
        self.cluster = Cluster(folder / "cluster")
        self._options = options
        self._codes = 0

    def __enter__(self) -> DockerCluster:
        self.cluster.__enter__()
        try:
            self.cluster.start()
            self.add_agent(NODE, self.slots, *self._options)
            self.cluster.wait_nodes(NODE)
        except BaseException:
            self.cluster.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.close()

    def add_agent(self, name: str, slots: int, *options: str) -> None:
        child = self.cluster.add_agent(name, slots, prefix=("env", f"DOCKER_HOST=unix://{self.socket}"))
        if options:
            child.kill()
            child.arguments += options
            child.start()

    @property
    def client(self) -> Client:
        return self.cluster.client

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
        submitted = SubmitExperiment(config=self.config(do, steps, **more), code=code)
        return self.client.perform(experiment_calls.submit_experiment(submitted)).experiment

    def move(self, experiment: str, move: str) -> None:
        self.client.perform(experiment_calls.move_experiment(experiment, move))

    def end(self, experiment: str) -> None:
        """However it ends."""
        with suppress(Conflict):  # it has ended already
            self.move(experiment, "kill")
        self._waited(lambda: self.view(experiment).state in ENDED, experiment, f"{experiment} over")

    # -- looking ---------------------------------------------------------------------------------------------------

    def view(self, experiment: str) -> ExperimentView:
        return self.client.perform(experiment_calls.get_experiment(experiment)).view

    def trials(self, experiment: str) -> list[TrialView]:
        return list(self.client.items(experiment_calls.list_trials(experiment, limit=1000)))

    def trial(self, trial: str) -> TrialView:
        return self.client.perform(experiment_calls.get_trial(trial)).view

    def checkpoints(self, experiment: str) -> list[CheckpointRow]:
        return list(self.client.items(experiment_calls.list_checkpoints(experiment, limit=1000)))

    def curve(self, trial: str, group: str, name: str, **more: Any) -> list[tuple[int, Any]]:
        """Every step and value that counts; ``more``: of an epoch, of those that no longer count."""
        fields = {"superseded": False, **more}
        call = experiment_calls.trial_metrics(trial, group=group, name=name, points=100_000, **fields)
        return sorted((point.step, point.value) for each in self.client.perform(call).items for point in each.points)

    def output(self, task: str) -> list[str]:
        return [line.text for line in self.client.perform(calls.read_output(OutputQuery(task=task))).lines]

    def why(self, experiment: str) -> str:
        found = self.client.perform(experiment_calls.why_experiment(experiment))
        return "\n".join((found.sentence, *found.story))

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

    def story(self, experiment: str) -> str:
        """What a person would look at when a test fails."""
        found = [f"{experiment}: {self.view(experiment).state}: {self.why(experiment)}"]
        for trial in self.trials(experiment):
            found.append(f"{trial.key} {trial.state} {trial.detail} step {trial.last_step} epoch {trial.epoch}")
            found += [f"    {line}" for line in self.output(trial.task)[-12:]]
        for child in (*self.cluster.masters, *self.cluster.agents.values()):
            found += [f"{child.log.name} ends:", child.last_lines(8)]
        return "\n".join(found)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def ended(self, experiment: str, state: str = "completed") -> ExperimentView:
        def look() -> ExperimentView | None:
            view = self.view(experiment)
            return view if view.state in ENDED else None

        view = self._waited(look, experiment, f"{experiment} over")
        assert view.state == state, self.story(experiment)
        return view

    def until_trial(self, trial: str, holds: Callable[[TrialView], bool], what: str) -> TrialView:
        def look() -> TrialView | None:
            view = self.trial(trial)
            return view if holds(view) else None

        return self._waited(look, trial.rpartition(".")[0], f"trial {trial} {what}")

    def reached(self, trial: str, step: int) -> TrialView:
        return self.until_trial(trial, lambda view: view.last_step >= step, f"at step {step}")

    def until_why(self, experiment: str, words: str) -> None:
        """Until ``clutch why`` says so, of the experiment or of its trial."""
        self._waited(lambda: words in self.why(experiment), experiment, f"why {experiment}: {words}")

    def _waited(self, look: Callable[[], Any], experiment: str, what: str) -> Any:
        try:
            return until(look, what, WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(experiment)}") from None


def mount(source: Path | str, target: str, read_only: bool = True) -> dict[str, object]:
    return {"host_path": str(source), "container_path": target, "read_only": read_only}


def open_folder(path: Path) -> Path:
    """Made, with all above it passable: a container may run as anybody."""
    path.mkdir(parents=True, exist_ok=True)
    os.chmod(path, 0o777)  # noqa: PTH101
    return path
