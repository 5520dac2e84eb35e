"""Following an experiment: its progress, its curves and its trials on the screen; in a pipe, a line when it changes."""

from __future__ import annotations

import shutil
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING

import typer

from clutch.cli.experiment_render import Screen, best_of, counted, live_lines
from clutch.wire.errors import Unavailable
from clutch.wire.experiments import EXPERIMENT_ENDED

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.sdk.experiment import Experiment
    from clutch.wire.experiment_views import ExperimentView

LOOK_S = 0.5
TRIALS_SHOWN = 60
POINTS = 120
LAST_LINES = 8
WAIT_TOLD_S = 3.0
AWAY_S = 60.0
"""So long a master may be away before following is given up."""


def follow(client: Client, experiment: str) -> int:
    """0 when it has completed; 1 when it has not; 130 when its user left it running."""
    client.patience_s = AWAY_S
    found = client.experiment(experiment)
    try:
        view = _screen(found) if sys.stdout.isatty() else _lines(found)
    except KeyboardInterrupt:
        typer.echo(f"\nclutch: {found.id} goes on; 'clutch experiment watch {found.id}' shows it again", err=True)
        return 130
    if view.has_best:
        typer.echo(f"best {view.metric}: {best_of(view)} (trial {view.best_trial}, step {view.best_step})")
    if view.best_checkpoint:
        typer.echo(f"its checkpoint: clutch checkpoint download {view.best_checkpoint} FOLDER")
    if view.state == "completed" and view.detail:
        typer.echo(f"clutch: {view.key}: {view.detail}", err=True)
    elif view.state != "completed":
        typer.echo(f"clutch: {view.key} {view.state}{': ' + view.detail if view.detail else ''}", err=True)
        _tell_failure(found, view)
    return 0 if view.state == "completed" else 1


def _tell_failure(found: Experiment, view: ExperimentView) -> None:
    """What the first trial that failed said last: the reason of most failures of all."""
    failed = next(iter(found.trials(state="failed", limit=1)), None) if view.trials_failed else None
    if failed is None:
        return
    lines = list(found.trial(failed.trial).output(tail=LAST_LINES))
    why = "" if failed.detail in view.detail else f": {failed.detail}"
    if lines:
        typer.echo(f"clutch: trial {failed.trial}{why}; its last lines:", err=True)
        for line in lines:
            typer.echo(f"  {line.text}", err=True)
        typer.echo(f"clutch: all of it: clutch trial logs {failed.key}", err=True)
    elif why:
        typer.echo(f"clutch: trial {failed.trial}{why}", err=True)


class Waits:
    """Why nothing of an experiment runs, once that has been so for a while: its user need not guess or ask."""

    def __init__(self, found: Experiment) -> None:
        self._found = found
        self._since = time.monotonic()
        self._told = False

    @property
    def waits(self) -> bool:
        return self._told

    def looked(self, view: ExperimentView) -> str:
        """The reason, when it is time to tell it; empty at all other times."""
        if view.trials_running or view.state != "active" or view.trials == view.trials_ended:
            self._since, self._told = time.monotonic(), False
        elif not self._told and time.monotonic() - self._since > WAIT_TOLD_S:
            return self._reason(view)
        return ""

    def _reason(self, view: ExperimentView) -> str:
        from clutch.sdk import experiment_calls as calls

        if view.trials and next(iter(self._found.trials(state="queued", limit=1)), None) is None:
            self._since = time.monotonic()  # the last ones are on their way out, which needs no words
            return ""
        self._told = True
        why = self._found.client.perform(calls.why_experiment(self._found.id))
        return f"nothing runs now. {why.story[0] if why.story else why.sentence}"


def _screen(found: Experiment) -> ExperimentView:
    """Drawn in place: the lines of last time are written over."""
    drawn, why, reason = 0, Waits(found), ""
    while True:
        size = shutil.get_terminal_size()
        try:
            view = found.view
            trials = list(islice(found.trials(order="best", limit=TRIALS_SHOWN), TRIALS_SHOWN))
            series = found.metrics(points=POINTS)
        except Unavailable:
            time.sleep(LOOK_S)
            continue
        reason = why.looked(view) or (reason if why.waits else "")
        lines = live_lines(view, trials, series, Screen(size.columns, size.lines - 1 - bool(reason), True))
        lines += [reason[: size.columns - 1]] if reason else []
        sys.stdout.write((f"\x1b[{drawn}F" if drawn else "") + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        drawn = len(lines)
        if view.state in EXPERIMENT_ENDED:
            return view
        time.sleep(LOOK_S)


def _lines(found: Experiment) -> ExperimentView:
    """For logs and pipes: one line each time the counts or the best value change."""
    said, why = "", Waits(found)

    def tell(view: ExperimentView) -> None:
        nonlocal said
        line = (
            f"{view.key} {view.state}: {counted(view.trials, 'trial')} made, {view.trials_running} running, "
            f"{view.trials_ended} ended, best {view.metric} {best_of(view) or 'none yet'}"
        )
        if line != said:
            said = line
            typer.echo(line)
        if reason := why.looked(view):
            typer.echo(f"clutch: {reason}", err=True)

    return found.wait(told=tell)
