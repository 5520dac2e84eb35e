"""The experiment, trial and checkpoint a user holds: to wait for, to look at, to take the best model from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from clutch.sdk import experiment_calls as calls
from clutch.sdk.output import Filters, Follower, output_query
from clutch.sdk.reading import LOOK_FIRST_S, LOOK_MAX_S, follow_lines, read_lines
from clutch.sdk.task import Task
from clutch.wire.api import WhyTask
from clutch.wire.errors import NotFound, TimedOut
from clutch.wire.experiment_api import ChangeMetadata, CheckpointDetail, ExperimentDetail, TrialDetail
from clutch.wire.experiment_views import CheckpointRow, ExperimentView, TrialView, WorkloadView
from clutch.wire.experiment_words import ContinueExperiment, EditExperiment
from clutch.wire.experiments import EXPERIMENT_ENDED, TRIAL_ENDED, CheckpointState
from clutch.wire.metadata import meant
from clutch.wire.metrics import Series
from clutch.wire.output import OutputLine

if TYPE_CHECKING:
    from clutch.sdk.client import Client

Selector = Callable[[str], bool]


class Experiment:
    """One experiment of a cluster, by its id."""

    def __init__(self, client: Client, id: str, name: str = "") -> None:
        self.client = client
        self.id = id
        self.name = name

    def __repr__(self) -> str:
        return f"Experiment({self.id!r}, name={self.name!r})"

    def detail(self) -> ExperimentDetail:
        """Everything the master says about it now."""
        return self.client.perform(calls.get_experiment(self.id))

    @property
    def view(self) -> ExperimentView:
        return self.detail().view

    @property
    def state(self) -> str:
        return self.view.state

    def trials(self, **filters: Any) -> Iterator[TrialView]:
        """Its trials; ``order="best"`` gives the best first."""
        return self.client.items(calls.list_trials(self.id, **filters))

    def trial(self, number: int) -> Trial:
        return Trial(self.client, f"{self.id}.{number}")

    def why(self) -> WhyTask:
        """Where it stands and what it waits for."""
        return self.client.perform(calls.why_experiment(self.id))

    def best_trial(self) -> Trial:
        """The trial with the best validation so far. ``NotFound`` while there is none."""
        best = self.detail().best
        if best is None:
            step = "Wait for the first validation, or see 'clutch experiment show'."
            raise NotFound("no trial has a validation yet", object=f"experiment {self.id}", next_step=step)
        return Trial(self.client, best.key)

    def best_checkpoint(self) -> Checkpoint:
        """The checkpoint that belongs to the best validation. ``NotFound`` while there is none."""
        found = self.view.best_checkpoint
        if not found:
            step = "Does its program write checkpoints? 'clutch checkpoint list' shows those there are."
            raise NotFound("there is no checkpoint of its best trial", object=f"experiment {self.id}", next_step=step)
        return Checkpoint(self.client, found)

    def checkpoints(self, **filters: Any) -> Iterator[CheckpointRow]:
        return self.client.items(calls.list_checkpoints(self.id, **filters))

    def metrics(self, name: str = "", group: str = "validation", points: int = 200) -> tuple[Series, ...]:
        """One metric over all trials (the search's own unless another is named), at most so many points of each."""
        fields = {"name": name or self.view.metric, "group": group, "points": points}
        return self.client.perform(calls.experiment_metrics(self.id, **fields)).items

    def output(
        self, *, follow: bool = False, trials: tuple[int, ...] = (), **filters: Unpack[Filters]
    ) -> Iterator[OutputLine]:
        """What its trials printed, all or these, by time; ``line.member.task`` says which. With ``follow``, lines to
        come too, until it has ended; a master that goes away meanwhile is waited for."""
        query = output_query(self.id, **filters)
        if not follow:
            return read_lines(self.client, query, partial(calls.read_experiment_output, self.id, trials=trials))
        follows = partial(calls.follow_experiment_output, self.id, trials=trials)
        return follow_lines(self.client, Follower(query), follows, partial(self._is_over, trials))

    def _is_over(self, trials: tuple[int, ...]) -> bool:
        return self.state in EXPERIMENT_ENDED or (
            bool(trials) and all(self.trial(number).has_ended for number in trials)
        )

    def wait(
        self, timeout_s: float | None = None, told: Callable[[ExperimentView], None] | None = None
    ) -> ExperimentView:
        """Itself, ended. ``told`` hears of it at every look; ``TimedOut`` when it takes longer than ``timeout_s``."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        pause = LOOK_FIRST_S
        while True:
            view = self.view
            if told is not None:
                told(view)
            if view.state in EXPERIMENT_ENDED:
                return view
            left = LOOK_MAX_S if until is None else until - time.monotonic()
            if left <= 0:
                step = f"Wait longer, or ask 'clutch experiment why {self.id}'."
                raise TimedOut(f"it is still {view.state}", object=f"experiment {self.id}", next_step=step)
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LOOK_MAX_S)

    def pause(self) -> None:
        """Its trials save themselves and give their slots back, until ``resume``."""
        self._move("pause")

    def resume(self) -> None:
        self._move("resume")

    def cancel(self) -> None:
        """Its trials save themselves and leave; then it is over."""
        self._move("cancel")

    def kill(self) -> None:
        self._move("kill")

    def archive(self) -> None:
        self._move("archive")

    def unarchive(self) -> None:
        self._move("unarchive")

    def delete(self) -> None:
        """It, its files, metrics and output. Only when it has ended and none of its checkpoints is held."""
        self._move("delete")

    def edit(self, **changes: Any) -> None:
        """Name, description, notes, labels, project, priority, max_slots, what is kept; see ``EditExperiment``."""
        self.client.perform(calls.edit_experiment(self.id, msgspec.convert(changes, EditExperiment)))

    def go_on(self, **more: Any) -> None:
        """More work for it when it is over; see ``ContinueExperiment``."""
        self.client.perform(calls.continue_experiment(self.id, msgspec.convert(more, ContinueExperiment)))

    def _move(self, move: str) -> None:
        self.client.perform(calls.move_experiment(self.id, move))


class Trial:
    """One trial, by ``EXPERIMENT.NUMBER``."""

    def __init__(self, client: Client, id: str) -> None:
        self.client = client
        self.id = id

    def __repr__(self) -> str:
        return f"Trial({self.id!r})"

    def detail(self) -> TrialDetail:
        return self.client.perform(calls.get_trial(self.id))

    @property
    def hparams(self) -> dict[str, Any]:
        return self.detail().hparams

    @property
    def task(self) -> Task:
        """The task that runs it now, or ran it last: its output, its exit code."""
        return Task(self.client, self.detail().view.task)

    @property
    def has_ended(self) -> bool:
        return self.detail().view.state in TRIAL_ENDED

    def output(self, *, follow: bool = False, **filters: Unpack[Filters]) -> Iterator[OutputLine]:
        """Its lines over all the tasks that ran it, oldest first; with ``follow``, until it has ended."""
        query = output_query(self.id, **filters)
        if not follow:
            return read_lines(self.client, query, partial(calls.read_trial_output, self.id))
        follows = partial(calls.follow_trial_output, self.id)
        return follow_lines(self.client, Follower(query), follows, lambda: self.has_ended)

    def workloads(self) -> Iterator[WorkloadView]:
        """What was asked of it and what it did, in order."""
        return self.client.items(calls.list_workloads(self.id))

    def metrics(self, **fields: Any) -> tuple[Series, ...]:
        """Its metrics as series: ``group``, ``name``, ``points`` (0: as many as the master gives)."""
        return self.client.perform(calls.trial_metrics(self.id, **fields)).items

    def checkpoints(self, **filters: Any) -> Iterator[CheckpointRow]:
        experiment = self.id.rpartition(".")[0]
        return self.client.items(calls.list_checkpoints(experiment, trial=self.id, **filters))

    def latest_checkpoint(self) -> Checkpoint:
        found = self.detail().view.checkpoint
        if not found:
            raise NotFound("it has no checkpoint", object=f"trial {self.id}")
        return Checkpoint(self.client, found)

    def stop(self) -> None:
        """Lets it save itself and ends it."""
        self.client.perform(calls.move_trial(self.id, "stop"))

    def kill(self) -> None:
        self.client.perform(calls.move_trial(self.id, "kill"))


class Checkpoint:
    """A committed checkpoint, by its id."""

    def __init__(self, client: Client, id: str) -> None:
        self.client = client
        self.id = id

    def __repr__(self) -> str:
        return f"Checkpoint({self.id!r})"

    def detail(self) -> CheckpointDetail:
        return self.client.perform(calls.get_checkpoint(self.id))

    def download(self, folder: str | Path, *, selector: Selector | None = None, through_master: bool = False) -> Path:
        """The folder with its files, each checked against the manifest. Those whose path ``selector`` does not want
        stay where they are. They come straight from their store where this machine can reach it, else through the
        master."""
        from clutch.sdk.downloads import download

        return download(self.client, self.detail(), Path(folder), selector, through_master=through_master)

    @property
    def metadata(self) -> dict[str, Any]:
        """What is said of it, as it was given: numbers are numbers, lists are lists."""
        return _meant(self.detail())

    def add_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Say this of it, any JSON by name; what was said under the same names is replaced. Returns all of it."""
        return _meant(
            self.client.perform(calls.change_checkpoint_metadata(self.id, ChangeMetadata(set=dict(metadata))))
        )

    def remove_metadata(self, *names: str) -> dict[str, Any]:
        """Say this of it no more. Returns what is left."""
        return _meant(self.client.perform(calls.change_checkpoint_metadata(self.id, ChangeMetadata(remove=names))))

    def delete(self, *globs: str) -> None:
        """Its files, or those that match one of ``globs``. Refused while something holds it."""
        self.client.perform(calls.delete_checkpoint(self.id, globs))

    @property
    def there(self) -> bool:
        """Whether all its files are still there."""
        return self.detail().row.state == CheckpointState.COMMITTED


def _meant(detail: CheckpointDetail) -> dict[str, Any]:
    return {name: meant(word) for name, word in detail.metadata.items()}
