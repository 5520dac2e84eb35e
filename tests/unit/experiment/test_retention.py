"""Which checkpoints stay: the table that Determined documents, ties, pins, and checkpoints nobody validated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.wire.experiments import Retention
from clutch.workloads.experiment.machine.retention import Candidate, superfluous

VALUES = [None, None, 0.6, 0.5, 0.4, None, 0.2, 0.3, 0.4, 0.5]
TEN = [
    Candidate(str(number), 1 if number <= 5 else 2, number, value, number if value is not None else 0)
    for number, value in enumerate(VALUES, start=1)
]


@pytest.mark.parametrize(
    ("experiment_best", "trial_best", "trial_latest", "gone"),
    [
        (0, 0, 0, "1 2 3 4 5 6 7 8 9 10"),
        (0, 0, 1, "1 2 3 4 6 7 8 9"),
        (0, 1, 0, "1 2 3 4 6 8 9 10"),
        (0, 1, 1, "1 2 3 4 6 8 9"),
        (2, 0, 0, "1 2 3 4 5 6 9 10"),
        (2, 0, 1, "1 2 3 4 6 9"),
        (2, 1, 0, "1 2 3 4 6 9 10"),
        (3, 0, 0, "1 2 3 4 6 9 10"),
        (0, 0, 4, "1 6"),
        (0, 4, 0, "1 2 6"),
        (0, 0, 9, ""),
    ],
)
def test_the_documented_table(experiment_best: int, trial_best: int, trial_latest: int, gone: str) -> None:
    retention = Retention(
        save_experiment_best=experiment_best, save_trial_best=trial_best, save_trial_latest=trial_latest
    )
    assert superfluous(TEN, retention) == gone.split()


def test_of_equal_values_the_earlier_validation_wins() -> None:
    same = [Candidate("late", 1, 1, 0.5, 9), Candidate("early", 2, 2, 0.5, 3)]
    best = Retention(save_experiment_best=1, save_trial_best=0, save_trial_latest=0)
    assert superfluous(same, best) == ["late"]


def test_of_one_validation_the_first_checkpoint_wins() -> None:
    same = [Candidate("at", 1, 1, 0.5, 3), Candidate("after", 1, 2, 0.5, 3)]
    best = Retention(save_experiment_best=0, save_trial_best=1, save_trial_latest=0)
    assert superfluous(same, best) == ["after"]


@st.composite
def many(draw: st.DrawFn) -> list[Candidate]:
    count = draw(st.integers(0, 12))
    return [
        Candidate(
            str(number),
            draw(st.integers(1, 3)),
            number,
            draw(st.none() | st.sampled_from([0.1, 0.2, 0.3])),
            number,
            draw(st.booleans()),
        )
        for number in range(count)
    ]


@given(many(), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_pins_stay_and_more_generous_settings_keep_more(
    ones: list[Candidate], experiment_best: int, trial_best: int, trial_latest: int
) -> None:
    def gone(*counts: int) -> set[str]:
        names = ("save_experiment_best", "save_trial_best", "save_trial_latest")
        return set(superfluous(ones, Retention(**dict(zip(names, counts, strict=True)))))

    now = gone(experiment_best, trial_best, trial_latest)
    assert not now & {one.checkpoint for one in ones if one.pinned}
    assert gone(experiment_best + 1, trial_best, trial_latest) <= now
    assert gone(experiment_best, trial_best + 1, trial_latest) <= now
    assert gone(experiment_best, trial_best, trial_latest + 1) <= now
    if trial_latest:
        for trial in {one.trial for one in ones}:
            assert max((one for one in ones if one.trial == trial), key=lambda one: one.order).checkpoint not in now
