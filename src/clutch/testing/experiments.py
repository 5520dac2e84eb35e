"""A real cluster on which experiments run, and what a test asks of them: submit, look, wait.

A ground of a kind of its own says which nodes it has (``join``) and how its experiments are configured. Whatever is
waited for in vain is told with what a person would look at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from clutch.sdk import calls, experiment_calls
from clutch.sdk.call import Call, rebuild
from clutch.sdk.client import Client
from clutch.testing.cluster import Cluster, until
from clutch.wire.experiment_api import ExperimentSubmitted, SubmitExperiment
from clutch.wire.experiment_views import CheckpointRow, ExperimentView, TrialView
from clutch.wire.ids import TaskId
from clutch.wire.output import OutputQuery

ENDED = ("completed", "cancelled", "failed")
WAIT_S = 60.0
DOWNLOAD_S = 30.0
LINES_SHOWN = 12

T = TypeVar("T")
Own = TypeVar("Own", bound="Experiments")


class Experiments(ABC):
    """Used as a ``with`` block: the cluster is up in it."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.cluster = cluster

    @abstractmethod
    def join(self) -> tuple[str, ...]:
        """Start its nodes; their names."""

    def __enter__(self: Own) -> Own:
        self.cluster.__enter__()
        try:
            self.cluster.start()
            self.cluster.wait_nodes(*self.join())
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

    # -- submitting ----------------------------------------------------------------------------------------------

    def submit(self, config: dict[str, Any], **more: Any) -> ExperimentSubmitted:
        return self.client.perform(experiment_calls.submit_experiment(SubmitExperiment(config=config, **more)))

    def move(self, experiment: str, move: str) -> None:
        self.client.perform(experiment_calls.move_experiment(experiment, move))

    # -- looking -------------------------------------------------------------------------------------------------

    def view(self, experiment: str) -> ExperimentView:
        return self.client.perform(experiment_calls.get_experiment(experiment)).view

    def trials(self, experiment: str) -> list[TrialView]:
        return list(self.client.items(experiment_calls.list_trials(experiment, limit=1000)))

    def trial(self, trial: str) -> TrialView:
        return self.client.perform(experiment_calls.get_trial(trial)).view

    def checkpoints(self, experiment: str, **filters: Any) -> list[CheckpointRow]:
        return list(self.client.items(experiment_calls.list_checkpoints(experiment, limit=1000, **filters)))

    def curve(self, trial: str, group: str, name: str, **more: Any) -> list[tuple[int, Any]]:
        """Every step and value that counts; a step that counts twice is there twice. ``more``: of an epoch, and with
        ``superseded`` also what no longer counts."""
        fields = {"superseded": False, **more}
        call = experiment_calls.trial_metrics(trial, group=group, name=name, points=100_000, **fields)
        return sorted((point.step, point.value) for each in self.client.perform(call).items for point in each.points)

    def output(self, task: str) -> list[str]:
        return [line.text for line in self.client.perform(calls.read_output(OutputQuery(task=TaskId(task)))).lines]

    def download(self, call: Call[None]) -> bytes:
        """The whole body of an answer; the error that it says, raised."""
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=self.cluster.urls[0], trust_env=False, timeout=DOWNLOAD_S) as client:
            answer = client.get(call.target, headers=headers)
        if answer.status_code >= 400:
            raise rebuild(answer.status_code, answer.content, call)
        return answer.content

    def why(self, experiment: str) -> str:
        """What ``clutch why`` says of it and of its trials."""
        found = self.client.perform(experiment_calls.why_experiment(experiment))
        return "\n".join((found.sentence, *found.story))

    def story(self, experiment: str) -> str:
        """What a person would look at when a test fails."""
        found = [f"{experiment}: {self.view(experiment).state}: {self.why(experiment)}"]
        for trial in self.trials(experiment):
            found.append(f"{trial.key} {trial.state} {trial.detail} step {trial.last_step} epoch {trial.epoch}")
            found += [f"    {line}" for line in self.output(trial.task)[-LINES_SHOWN:]]
        for child in (*self.cluster.masters, *self.cluster.agents.values()):
            found += [f"{child.log.name} ends:", child.last_lines(8)]
        return "\n".join(found)

    # -- waiting -------------------------------------------------------------------------------------------------

    def until_state(self, experiment: str, *states: str, within_s: float = WAIT_S) -> ExperimentView:
        def look() -> ExperimentView | None:
            view = self.view(experiment)
            return view if view.state in states else None

        return self.waited(look, experiment, f"{experiment} {' or '.join(states)}", within_s)

    def until_ended(self, experiment: str, within_s: float = WAIT_S) -> ExperimentView:
        """However it ends."""
        return self.until_state(experiment, *ENDED, within_s=within_s)

    def ended(self, experiment: str, state: str = "completed", within_s: float = WAIT_S) -> ExperimentView:
        """When it is over, as it shall be."""
        view = self.until_ended(experiment, within_s)
        assert view.state == state, self.story(experiment)
        return view

    def until_trial(
        self, trial: str, holds: Callable[[TrialView], bool], what: str, within_s: float = WAIT_S
    ) -> TrialView:
        def look() -> TrialView | None:
            view = self.trial(trial)
            return view if holds(view) else None

        return self.waited(look, trial.rpartition(".")[0], f"trial {trial} {what}", within_s)

    def reached(self, trial: str, step: int) -> TrialView:
        return self.until_trial(trial, lambda view: view.last_step >= step, f"at step {step}")

    def waited(self, look: Callable[[], T | None], experiment: str, what: str, within_s: float = WAIT_S) -> T:
        """What ``look`` finds. An ``AssertionError`` with the experiment's story when it finds nothing in time."""
        try:
            return until(look, what, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(experiment)}") from None
