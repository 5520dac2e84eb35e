"""The search that ``clutch demo`` shows: a cluster from nothing, real trainings, two crashes, a model that answers.

The cluster lives in a folder of its own and goes with it, so nothing of the user's is touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clutch.cli import home
from clutch.cli.experiment_render import Screen, best_of, live_lines, ranked
from clutch.wire.errors import BadRequest, ClutchError, TimedOut
from clutch.wire.experiments import EXPERIMENT_ENDED

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.sdk.experiment import Experiment
    from clutch.wire.experiment_views import ExperimentView, TrialView
    from clutch.wire.metrics import Series

PROGRAM = Path(__file__).parent / "demo_digits"
SLOTS = 4
MODEL = "digits"
LOOK_S = 0.25
STUCK_AFTER_S = 60.0
"""Nothing of the search changed for so long: it is told why, instead of being watched for ever."""
DEAD_WITHIN_S = 10.0
PAUSE_S = 0.12
"""Between two epochs of a trial: so small a network would learn too fast to be watched."""
SHADES = " ░▒▓█"
PICTURES = 6


class Show:
    """One run of the demonstration."""

    def __init__(self, *, trials: int, seed: int, keep: bool, plain: bool) -> None:
        self.trials = trials
        self.seed = seed
        self.keep = keep
        self.live = sys.stdout.isatty() and not plain
        self.base = Path(tempfile.mkdtemp(prefix="clutch-demo-"))
        self.folder = self.base / "clutch"  # where a user of this XDG_DATA_HOME has it
        self.news: list[str] = []
        self.began = time.monotonic()
        self._killed_at = 0.0
        self._drawn = 0
        self._said = ""
        self._moved: tuple[object, float] = ((), 0.0)

    def run(self) -> int:
        """0 when everything that is shown has happened."""
        _check_parts()
        try:
            self._up()
            with self._client() as client:
                experiment = self._submit(client)
                view = self._follow(experiment)
                if view.state != "completed":
                    typer.echo(f"clutch: the search ended as {view.state}: {view.detail}", err=True)
                    return 1
                self._tell_trials(experiment, view)
                self._use(client, experiment)
            typer.echo(f"\nAll of it took {time.monotonic() - self.began:.0f} s.")
            return 0
        finally:
            self._down()

    # -- the cluster ---------------------------------------------------------------------------------------------

    def _up(self) -> None:
        from clutch.cli.up import spawn
        from clutch.cli.wishes import remembered

        remembered(self.folder, {"artificial_slots": SLOTS})
        up = spawn(self.folder)
        self._say(f"A cluster is up at {up.url}: one master, one agent with {SLOTS} slots, all on this machine.")

    def _client(self) -> Client:
        from clutch.cli.local import local_client

        client = local_client(self.folder)
        client.patience_s = 60.0
        return client

    def _kill_master(self) -> None:
        """The process of master and agent, at once; trials are not asked. Then a new one in the same folder."""
        from clutch.cli.up import spawn

        pid = int((self.folder / home.LOCK).read_text())
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        while home.is_up(self.folder) and time.monotonic() - began < DEAD_WITHIN_S:
            time.sleep(0.01)
        spawn(self.folder)
        self._say(f"kill -9 of the master and the agent. The trials trained on; both are back after "
                  f"{time.monotonic() - began:.1f} s and nothing is lost.")  # fmt: skip

    def _down(self) -> None:
        if self.keep and home.is_up(self.folder):
            typer.echo(f"The cluster stays up. Look around after:  export XDG_DATA_HOME={self.base}   "
                       f"Stop it: clutch down --data {self.folder}")  # fmt: skip
            return
        if home.is_up(self.folder):
            from clutch.cli.up import empty, stop

            try:
                empty(self.folder, 5.0)
                stop(self.folder)
            except ClutchError as error:
                typer.echo(f"clutch: {error}", err=True)
        shutil.rmtree(self.base, ignore_errors=True)

    # -- the search ----------------------------------------------------------------------------------------------

    def _submit(self, client: Client) -> Experiment:
        from clutch.cli.configs import overlaid, read_config

        config, text = read_config(PROGRAM / "search.yaml")
        config = overlaid(
            config,
            [
                f"searcher.max_trials={self.trials}",
                f"reproducibility.experiment_seed={self.seed}",
                f"hyperparameters.pause_s={PAUSE_S}",
                "hyperparameters.crash_trial=2",
                f"entrypoint=[{sys.executable}, train.py]",
            ],
        )
        experiment = client.create_experiment(config, PROGRAM, source=text)
        self._say(
            f"{experiment.id}: {self.trials} networks shall learn to read digits; trial 2 will die once, on purpose."
        )
        return experiment

    def _follow(self, experiment: Experiment) -> ExperimentView:
        crashed = False
        while True:
            view = experiment.view
            trials = list(experiment.trials(limit=200))
            if self.live:
                self._draw(view, trials, experiment.metrics(points=60))
            else:
                self._line(view)
            if not crashed and any(trial.trial == 2 and trial.restarts for trial in trials):
                crashed = True
                self._say("Trial 2 killed itself in its second epoch; it was started again.")
            if not self._killed_at and view.trials_ended >= self.trials // 4:
                self._killed_at = time.monotonic()
                self._kill_master()
            if view.state in EXPERIMENT_ENDED:
                return view
            self._must_move(experiment, view, trials)
            time.sleep(LOOK_S)

    def _must_move(self, experiment: Experiment, view: ExperimentView, trials: list[TrialView]) -> None:
        """``TimedOut``, with what the cluster says of it, when the search stands still."""
        now = time.monotonic()
        standing = (view.state, [(trial.state, trial.epoch, trial.last_step, trial.restarts) for trial in trials])
        if standing != self._moved[0]:
            self._moved = (standing, now)
        elif now - self._moved[1] > STUCK_AFTER_S:
            why = experiment.why()
            raise TimedOut(
                f"nothing of it moved for {STUCK_AFTER_S:g} s: {' '.join([why.sentence, *why.story[:1]])}",
                object=f"experiment {view.key}",
                next_step="Run it again with --keep, and look with 'clutch why' and 'clutch doctor'.",
            )

    def _tell_trials(self, experiment: Experiment, view: ExperimentView) -> None:
        from collections import Counter

        trials = list(experiment.trials(limit=200))
        ends = Counter(trial.state for trial in trials)
        asked = self.trials * 27
        done = sum(trial.last_step for trial in trials)
        states = ", ".join(f"{count} {state}" for state, count in ends.most_common())
        survivor = next((trial for trial in trials if trial.trial == 2), None)
        typer.echo(
            f"\n{len(trials)} trials: {states}. They trained {done} epochs; without early stopping it would be {asked}."
        )
        if survivor is not None and survivor.restarts:
            typer.echo(f"Trial 2 was restarted {survivor.restarts} time(s) and went on to epoch {survivor.last_step}.")
        best = ranked(view, trials)[0]
        typer.echo(f"Best accuracy {best_of(view)}: trial {best.trial} with {best.hparams}")

    # -- the model -----------------------------------------------------------------------------------------------

    def _use(self, client: Client, experiment: Experiment) -> None:
        """Register the best network, fetch it back by its name, and ask it."""
        from clutch.sdk.library_calls import create_model, get_version, register_version
        from clutch.wire.library import NewModel, RegisterVersion

        checkpoint = experiment.best_checkpoint()
        client.perform(create_model("default", NewModel(name=MODEL)))
        wanted = RegisterVersion(checkpoint=checkpoint.id, aliases=("best",))
        version = client.perform(register_version("default", MODEL, wanted))
        typer.echo(
            f"\nRegistered as {MODEL}:{version.number} (alias best), checkpoint {checkpoint.id}. Reading it back:"
        )
        found = client.perform(get_version("default", MODEL, "best"))
        folder = client.checkpoint(found.checkpoint).download(self.folder / "model")
        typer.echo(predictions(folder))

    # -- the screen ----------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if self.live and self._drawn:
            self.news = [*self.news, text][-3:]
        else:
            typer.echo(text)

    def _draw(self, view: ExperimentView, trials: list[TrialView], series: tuple[Series, ...]) -> None:
        size = shutil.get_terminal_size()
        screen = Screen(size.columns, max(12, size.lines - 2 - len(self.news)), True)
        lines = [*live_lines(view, trials, series, screen), *(f"› {text}" for text in self.news)]
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        sys.stdout.write(up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        self._drawn = len(lines)

    def _line(self, view: ExperimentView) -> None:
        line = (
            f"{view.state}: {view.trials} trials made, {view.trials_running} running, {view.trials_ended} ended, "
            f"best {view.metric} {best_of(view) or 'none yet'}"
        )
        if line != self._said:
            self._said = line
            typer.echo(line)


def _check_parts() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("numpy", "sklearn") if find_spec(name) is None]
    if missing:
        raise BadRequest(
            f"the demonstration trains with {' and '.join(missing)}, which is not installed",
            object="clutch demo",
            next_step="Run: pip install 'clutch[demo]'.",
        )


def predictions(folder: Path) -> str:
    """Pictures that the network never saw, and what it says they are."""
    import runpy

    import numpy as np

    program: dict[str, Any] = runpy.run_path(str(PROGRAM / "train.py"), run_name="demo")
    kept = np.load(folder / "network.npz")
    network = {name: kept[name] for name in kept.files if not name.startswith("v_")}
    pictures, answers = program["digits"]()[1]
    said = program["answers"](network, pictures)
    rows = ["   ".join(_row(picture, y) for picture in pictures[:PICTURES]) for y in range(8)]
    below = "   ".join(f"{f'it says {said[n]}':^16}" for n in range(PICTURES))
    right = int((said == answers).sum())
    return "\n".join([*rows, below, f"Of {len(answers)} pictures it never saw it reads {right} right."])


def _row(picture: Any, y: int) -> str:
    return "".join(SHADES[round(float(value) * (len(SHADES) - 1))] * 2 for value in picture[y * 8 : y * 8 + 8])
