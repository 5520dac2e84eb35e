"""A real cluster for experiments: one master, one agent with artificial slots, and what tests ask of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx

from clutch.sdk import calls, experiment_calls
from clutch.sdk.call import Call, rebuild
from clutch.sdk.client import Client
from clutch.testing.cluster import Cluster, until
from clutch.wire.experiment_api import ExperimentSubmitted, SubmitExperiment
from clutch.wire.experiment_views import ExperimentView, TrialView
from clutch.wire.output import OutputQuery

PROGRAM = Path(__file__).with_name("experiment_trial.py")
ENDED = ("completed", "cancelled", "failed")


class Ground:
    """A cluster with one node ``n1`` of so many slots."""

    def __init__(self, folder: Path, slots: int = 4, db: str = "") -> None:
        self.folder = folder
        self.cluster = Cluster(folder / "cluster", db=db)
        self.slots = slots
        self._gates = 0

    def __enter__(self) -> Ground:
        self.cluster.__enter__()
        try:
            self.cluster.start()
            self.cluster.add_agent("n1", self.slots)
            self.cluster.wait_nodes("n1")
        except BaseException:
            self.cluster.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.close()

    @property
    def client(self) -> Client:
        return self.cluster.client

    # -- submitting ----------------------------------------------------------------------------------------------

    def gate(self) -> Path:
        """A new folder in which steps are let through."""
        self._gates += 1
        path = self.folder / f"gate{self._gates}"
        path.mkdir()
        return path

    def config(self, hparams: dict[str, Any], searcher: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return {
            "name": "test",
            "entrypoint": [sys.executable, str(PROGRAM)],
            "hyperparameters": {"base": 1.0, "steps": 3, **hparams},
            "searcher": searcher or {"name": "single", "metric": "loss"},
            "resources": {"slots_per_trial": 1},
            "max_restarts": 0,
            "preemption_timeout": 60,
            **more,
        }

    def submit(self, config: dict[str, Any], **more: Any) -> ExperimentSubmitted:
        return self.client.perform(experiment_calls.submit_experiment(SubmitExperiment(config=config, **more)))

    def start(self, hparams: dict[str, Any], searcher: dict[str, Any] | None = None, **more: Any) -> str:
        """A submitted experiment's id."""
        return self.submit(self.config(hparams, searcher, **more)).experiment

    # -- looking -------------------------------------------------------------------------------------------------

    def view(self, experiment: str) -> ExperimentView:
        return self.client.perform(experiment_calls.get_experiment(experiment)).view

    def trials(self, experiment: str) -> list[TrialView]:
        return list(self.client.perform(experiment_calls.list_trials(experiment, limit=1000)).items)

    def until_state(self, experiment: str, *states: str, within_s: float = 60.0) -> ExperimentView:
        def look() -> ExperimentView | None:
            view = self.view(experiment)
            return view if view.state in states else None

        try:
            return until(look, f"{experiment} {' or '.join(states)}", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(experiment)}") from None

    def until_ended(self, experiment: str, within_s: float = 60.0) -> ExperimentView:
        return self.until_state(experiment, *ENDED, within_s=within_s)

    def until_trial(self, trial: str, holds: Any, what: str, within_s: float = 60.0) -> TrialView:
        def look() -> TrialView | None:
            view = self.client.perform(experiment_calls.get_trial(trial)).view
            return view if holds(view) else None

        try:
            return until(look, f"trial {trial} {what}", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(trial.rpartition('.')[0])}") from None

    def output(self, task: str) -> list[str]:
        page = self.client.perform(calls.read_output(OutputQuery(task=task)))
        return [line.text for line in page.lines]

    def download(self, call: Call[None]) -> bytes:
        """The whole body of an answer; the error that it says, raised."""
        token = (self.cluster.folder / "master0" / "local.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=self.cluster.urls[0], trust_env=False, timeout=30.0) as client:
            answer = client.get(call.target, headers=headers)
        if answer.status_code >= 400:
            raise rebuild(answer.status_code, answer.content, call)
        return answer.content

    def story(self, experiment: str) -> str:
        """What a person would look at when a test fails."""
        why = self.client.perform(experiment_calls.why_experiment(experiment))
        found = [f"{experiment}: {why.state}: {why.sentence}", *why.story]
        for trial in self.trials(experiment):
            found.append(f"{trial.key} {trial.state} {trial.detail} steps {trial.last_step}")
            found += [f"    {line}" for line in self.output(trial.task)[-12:]]
        return "\n".join(found)
