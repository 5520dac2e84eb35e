"""Curves of trials: thinned without losing what they span, over all tasks that ran them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clutch.wire.experiment_views import TrialView
from clutch.wire.metrics import SeriesPoint
from clutch.workloads.experiment.service.looking import tasks_of, thinned

points = st.lists(st.floats(-1e9, 1e9), max_size=60).map(
    lambda values: [SeriesPoint(step=step, at=float(step), value=value) for step, value in enumerate(values)]
)


@given(points, st.integers(0, 20))
def test_a_thinned_curve_is_short_ends_where_it_ended_and_spans_the_same(found: list[SeriesPoint], most: int) -> None:
    kept = thinned(found, most)
    assert not most or len(kept) <= most
    assert sum(point.count for point in kept) == len(found)
    assert [point.step for point in kept] == sorted(point.step for point in kept)
    if found:
        assert (kept[-1].step, kept[-1].value) == (found[-1].step, found[-1].value)
        highs = [point.value if point.high is None else point.high for point in kept]
        lows = [point.value if point.low is None else point.low for point in kept]
        assert max(highs) == max(point.value for point in found)
        assert min(lows) == min(point.value for point in found)


def test_a_trial_that_was_continued_has_run_as_several_tasks() -> None:
    assert tasks_of(trial("e-abc.7")) == ("e-abc.7",)
    assert tasks_of(trial("e-abc.7-3")) == ("e-abc.7", "e-abc.7-2", "e-abc.7-3")


def trial(task: str) -> TrialView:
    return TrialView(
        key="e-abc.7", experiment="e-abc", trial=7, task=task, state="completed", detail="", labels="", hparams="{}",
        seed=0, restarts=0, epoch=1, has_best=False, best=0.0, best_step=0, has_last=False, last=0.0, last_step=0,
        length=0, checkpoint="", checkpoint_step=0, metadata="{}", workspace="default", began_at=0.0, ended_at=0.0,
    )  # fmt: skip
