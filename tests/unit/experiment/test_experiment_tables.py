"""The tables of legal moves: what the docs draw, and what a journal may not say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from laboratory import Laboratory, make_spec

from clutch.core.machine import Table
from clutch.wire.errors import IllegalMove
from clutch.wire.experiments import EXPERIMENT_ENDED, TRIAL_ENDED, CheckpointState, ExperimentState, TrialState
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.experiment import TABLE as EXPERIMENTS
from clutch.workloads.experiment.machine.fold import OF_EXPERIMENT, OF_TRIAL
from clutch.workloads.experiment.machine.trial import CHECKPOINTS
from clutch.workloads.experiment.machine.trial import TABLE as TRIALS

PAGE = Path(__file__).parents[3] / "docs" / "architecture" / "experiments.md"


@pytest.mark.parametrize("table", [EXPERIMENTS, TRIALS, CHECKPOINTS], ids=lambda table: table.name)
def test_the_page_draws_the_table(table: Table) -> None:  # type: ignore[type-arg]
    drawn = re.findall(r"```mermaid\n(stateDiagram.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert table.diagram() in drawn, table.diagram()


def test_every_state_has_its_row() -> None:
    assert list(EXPERIMENTS.arrows) and set(EXPERIMENTS.arrows) == set(ExperimentState)
    assert set(TRIALS.arrows) == set(TrialState) and set(CHECKPOINTS.arrows) == set(CheckpointState)
    for end in EXPERIMENT_ENDED:
        assert ExperimentState.PAUSED not in EXPERIMENTS.arrows[end]
    for trial_end in TRIAL_ENDED:
        assert TrialState.RUNNING not in TRIALS.arrows[trial_end]


def test_every_note_has_its_handler() -> None:
    known = {*OF_EXPERIMENT, *OF_TRIAL}
    assert known == set(n.Fact.__args__)


def test_a_note_that_cannot_be_is_refused() -> None:
    lab = Laboratory().open(make_spec())
    controller = lab.controllers["experiment"]
    with pytest.raises(IllegalMove, match="active to completed"):
        controller.apply(lab.own, n.note(n.Moved(ExperimentState.COMPLETED, 1.0)))
    controller.apply(lab.own, n.note(n.TrialMoved(1, TrialState.STOPPING)))
    with pytest.raises(IllegalMove, match="stopping to running"):
        controller.apply(lab.own, n.note(n.TrialMoved(1, TrialState.RUNNING)))
