"""What a search will do, before anything is paid for: how many trials train for how long, and the first few of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from clutch.wire.experiment_api import PreviewLine, SearchPreview
from clutch.wire.experiments import AdaptiveAsha, Asha, Custom, ExperimentSpec, Grid, Pbt, RandomSearch, Single, Tpe
from clutch.workloads.experiment.search.adaptive_asha import adaptive_plan, asha_plan
from clutch.workloads.experiment.search.opening import method_for
from clutch.workloads.experiment.search.rungs import rung_lengths, whole
from clutch.workloads.experiment.search.sampling import grid_axes, grid_point, grid_size, sample
from clutch.workloads.experiment.search.tournament import HalvingPlan

SAMPLES = 5


class Outline(msgspec.Struct, frozen=True):
    """Trials by the length they train to; 0: their program's own."""

    lengths: Mapping[int, int]
    concurrent: int
    exact: bool
    total: int | None = None
    """Where it is not the sum of the lengths."""


def preview(spec: ExperimentSpec) -> SearchPreview:
    """Raises what ``method_for`` raises."""
    method_for(spec)
    outline = _outline(spec)
    trials = sum(outline.lengths.values())
    total = sum(length * count for length, count in outline.lengths.items()) if outline.total is None else outline.total
    return SearchPreview(
        method=type(spec.search.method).__struct_config__.tag,  # type: ignore[arg-type]  # every one of them has a name
        trials=trials,
        total=total,
        unit=spec.search.unit,
        lines=tuple(PreviewLine(trials=count, length=length) for length, count in sorted(outline.lengths.items())),
        exact=outline.exact,
        concurrent=min(outline.concurrent, trials) if outline.concurrent else trials,
        slots=spec.resources.slots,
        samples=_samples(spec, trials),
    )


def _outline(spec: ExperimentSpec) -> Outline:
    search = spec.search
    match search.method:
        case Single():
            return Outline({search.max_time: 1}, 1, True)
        case RandomSearch(max_trials=trials, max_concurrent_trials=most):
            return Outline({search.max_time: trials}, most, True)
        case Grid(max_concurrent_trials=most):
            return Outline({search.max_time: grid_size(grid_axes(spec.hyperparameters))}, most, True)
        case Asha() as method:
            return _halving(asha_plan(method, search), search.max_time)
        case AdaptiveAsha() as method:
            return _halving(adaptive_plan(method, search), search.max_time)
        case Pbt() as method:
            return _population(method)
        case Tpe(max_trials=trials, max_concurrent_trials=most):
            return Outline({search.max_time: trials}, most, True)
        case Custom(max_concurrent_trials=most):
            return Outline({}, most, False)


def _halving(plan: HalvingPlan, max_time: int) -> Outline:
    """As if at each rung one in ``divisor`` went on."""
    lengths: Counter[int] = Counter()
    for bracket in plan.brackets:
        reach = bracket.trials
        rungs = rung_lengths(bracket.rungs, max_time, plan.divisor)
        for length in rungs[:-1]:
            climb = max(1, whole(reach / plan.divisor))
            lengths[length] += reach - climb
            reach = climb
        lengths[rungs[-1]] += reach
    widths = sum(min(bracket.concurrent, bracket.trials) for bracket in plan.brackets)
    most = min(widths, plan.max_concurrent) if plan.max_concurrent else widths
    return Outline({length: count for length, count in lengths.items() if count}, most, False)


def _population(method: Pbt) -> Outline:
    """If none fails. A copy begins where its parent is, so the population trains for its rounds and no longer."""
    size, rounds, length = method.population_size, method.num_rounds, method.length_per_round
    replaced = min(math.floor(method.truncate_fraction * size), size // 2)
    lengths = {length * number: replaced for number in range(1, rounds) if replaced}
    return Outline(
        {**lengths, length * rounds: size}, method.max_concurrent_trials or size, False, size * rounds * length
    )


def _samples(spec: ExperimentSpec, trials: int) -> tuple[dict[str, object], ...]:
    """Of methods that decide later, none."""
    space, seed = spec.hyperparameters, spec.seed
    match spec.search.method:
        case Custom() | Tpe():
            return ()
        case Grid():
            axes = grid_axes(space)
            return tuple(grid_point(space, axes, number) for number in range(1, min(trials, SAMPLES) + 1))
        case Pbt(population_size=size):
            return tuple(sample(space, seed, number) for number in range(1, min(size, SAMPLES) + 1))
        case _:
            return tuple(sample(space, seed, number) for number in range(1, min(trials, SAMPLES) + 1))
