"""A real cluster for stories: nodes with artificial slots, trials that do what a few words say, and what is asked."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from clutch.sdk import calls, experiment_calls
from clutch.sdk.call import rebuild
from clutch.sdk.client import Client
from clutch.testing import noop_trial
from clutch.testing.cluster import Cluster, until
from clutch.wire.errors import NotFound
from clutch.wire.experiment_api import ExperimentSubmitted, SubmitExperiment
from clutch.wire.experiment_views import CheckpointRow, ExperimentView, TrialView, WorkloadView
from clutch.wire.output import OutputQuery

PROGRAM = Path(noop_trial.__file__)
ENDED = ("completed", "cancelled", "failed")
WAIT_S = 40.0


class Ground:
    """A cluster with nodes ``n1``, ``n2`` ... of so many slots each."""

    def __init__(self, folder: Path, *slots: int, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.cluster = Cluster(folder / "cluster", options=options)
        self.slots = slots
        self._gates = 0

    def __enter__(self) -> Ground:
        self.cluster.__enter__()
        try:
            self.cluster.start()
            names = [f"n{number}" for number in range(1, len(self.slots) + 1)]
            for name, slots in zip(names, self.slots, strict=True):
                self.cluster.add_agent(name, slots)
            self.cluster.wait_nodes(*names)
        except BaseException:
            self.cluster.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.close()

    @property
    def client(self) -> Client:
        return self.cluster.client

    @property
    def token(self) -> str:
        return (self.cluster.folder / "master0" / "local.token").read_text().strip()

    def environment(self) -> dict[str, str]:
        """Of somebody who uses this cluster from elsewhere."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("CLUTCH_")}
        home = {"HOME": str(self.folder), "TMPDIR": str(self.folder)}
        return {**plain, **home, "CLUTCH_MASTER": self.cluster.urls[0], "CLUTCH_TOKEN": self.token}

    def restart_master(self) -> None:
        """Killed at once, and up again."""
        self.cluster.masters[0].kill()
        self.cluster.masters[0].start()
        self.cluster.wait_serving()

    # -- submitting ----------------------------------------------------------------------------------------------

    def gate(self) -> Path:
        """The path of a file that is not there yet."""
        self._gates += 1
        return self.folder / f"gate{self._gates}"

    def config(self, do: list[str], steps: int = 4, **more: Any) -> dict[str, Any]:
        """``more``: anything of a configuration; ``hparams`` are laid over what the trial does."""
        hparams = more.pop("hparams", {})
        return {
            "name": "story",
            "entrypoint": [sys.executable, str(PROGRAM)],
            "hyperparameters": {"do": do, "steps": steps, **hparams},
            "searcher": {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": 1},
            "max_restarts": 0,
            "preemption_timeout": 60,
            **more,
        }

    def submit(self, config: dict[str, Any], **more: Any) -> ExperimentSubmitted:
        return self.client.perform(experiment_calls.submit_experiment(SubmitExperiment(config=config, **more)))

    def start(self, do: list[str], steps: int = 4, **more: Any) -> str:
        """A submitted experiment's id."""
        return self.submit(self.config(do, steps, **more)).experiment

    def move(self, experiment: str, move: str) -> None:
        self.client.perform(experiment_calls.move_experiment(experiment, move))

    # -- looking -------------------------------------------------------------------------------------------------

    def view(self, experiment: str) -> ExperimentView:
        return self.client.perform(experiment_calls.get_experiment(experiment)).view

    def trials(self, experiment: str) -> list[TrialView]:
        return list(self.client.items(experiment_calls.list_trials(experiment, limit=1000)))

    def trial(self, trial: str) -> TrialView:
        return self.client.perform(experiment_calls.get_trial(trial)).view

    def workloads(self, trial: str) -> list[WorkloadView]:
        return list(self.client.items(experiment_calls.list_workloads(trial, limit=1000)))

    def kinds(self, trial: str) -> list[str]:
        """What happened to a trial, in order, without what it trained and validated."""
        return [row.kind for row in self.workloads(trial) if row.kind not in ("train", "validate")]

    def checkpoints(self, experiment: str, **filters: Any) -> list[CheckpointRow]:
        return list(self.client.items(experiment_calls.list_checkpoints(experiment, limit=1000, **filters)))

    def curve(self, trial: str, group: str, name: str) -> list[tuple[int, Any]]:
        """Every step and value of a metric that counts; a step that counts twice is there twice."""
        call = experiment_calls.trial_metrics(trial, group=group, name=name, points=100_000, superseded=False)
        found = [(point.step, point.value) for series in self.client.perform(call).items for point in series.points]
        return sorted(found)

    def output(self, task: str) -> list[str]:
        page = self.client.perform(calls.read_output(OutputQuery(task=task)))
        return [line.text for line in page.lines]

    def file(self, checkpoint: str, name: str = "state") -> bytes:
        """One file of a checkpoint, through the master; the error that it says, raised."""
        call = experiment_calls.get_checkpoint_file(checkpoint, name)
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=self.cluster.urls[0], trust_env=False, timeout=30.0) as client:
            answer = client.get(call.target, headers=headers)
        if answer.status_code >= 400:
            raise rebuild(answer.status_code, answer.content, call)
        return answer.content

    def files_of(self, *checkpoints: str) -> list[Path]:
        """What the blobs' folder holds of them."""
        found = (self.cluster.folder / "blobs").rglob("*")
        return [path for path in found if any(each in path.name for each in checkpoints) and "push" not in path.parts]

    def held(self) -> int:
        """Slots that somebody holds."""
        return sum(pool.slots_held for pool in self.client.perform(calls.list_pools()).items)

    def story(self, experiment: str) -> str:
        """What a person would look at when a test fails."""
        why = self.client.perform(experiment_calls.why_experiment(experiment))
        found = [f"{experiment}: {why.state}: {why.sentence}", *why.story]
        for trial in self.trials(experiment):
            found.append(f"{trial.key} {trial.state} {trial.detail} step {trial.last_step} epoch {trial.epoch}")
            found += [f"    {line}" for line in self.output(trial.task)[-12:]]
        return "\n".join(found)

    # -- waiting -------------------------------------------------------------------------------------------------

    def until(self, experiment: str, *states: str, within_s: float = WAIT_S) -> ExperimentView:
        def look() -> ExperimentView | None:
            view = self.view(experiment)
            return view if view.state in states else None

        return self._waited(look, experiment, f"{experiment} {' or '.join(states)}", within_s)

    def ended(self, experiment: str, state: str = "completed", within_s: float = WAIT_S) -> ExperimentView:
        """When it is over, as it shall be."""
        view = self.until(experiment, *ENDED, within_s=within_s)
        assert view.state == state, self.story(experiment)
        return view

    def until_trial(self, trial: str, holds: Callable[[TrialView], bool], what: str) -> TrialView:
        def look() -> TrialView | None:
            view = self.trial(trial)
            return view if holds(view) else None

        return self._waited(look, trial.rpartition(".")[0], f"trial {trial} {what}", WAIT_S)

    def reached(self, trial: str, step: int) -> TrialView:
        return self.until_trial(trial, lambda view: view.last_step >= step, f"at step {step}")

    def gone(self, experiment: str) -> None:
        """Returns when nobody knows it any more."""

        def look() -> bool:
            try:
                self.view(experiment)
            except NotFound:
                return True
            return False

        until(look, f"{experiment} to be gone", WAIT_S)

    def _waited(self, look: Callable[[], Any], experiment: str, what: str, within_s: float) -> Any:
        try:
            return until(look, what, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(experiment)}") from None


def process_of(task: str, program: str) -> int | None:
    """The process that runs a program for a task; None while there is none."""
    mark = f"CLUTCH_TASK={task}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            around = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if program.encode() in command and mark in around:
            return int(entry.name)
    return None


def linger(seconds: float) -> None:
    """The moment is the point of a test that kills: nothing is waited for."""
    time.sleep(seconds)
