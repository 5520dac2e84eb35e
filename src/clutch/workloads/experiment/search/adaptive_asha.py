"""Which brackets a search by successive halving has: one for ``asha``, several that differ in boldness for
``adaptive_asha``.

With M trials, divisor d and length L the most rungs are R = min(max_rungs, log_d L + 1, log_d M + 1), rounded down.
``aggressive`` has the bracket of R rungs, ``standard`` those of (R-1)/2+1 up to R, ``conservative`` all from 1. A
bracket of r rungs gets trials in proportion to d**(r-1)/r, which spends about as much training on each.
"""

from __future__ import annotations

from clutch.wire.errors import BadRequest
from clutch.wire.experiments import AdaptiveAsha, Asha, ExperimentSpec, SearchSpec
from clutch.workloads.experiment.search.checks import above, at_least
from clutch.workloads.experiment.search.rungs import halvings, whole
from clutch.workloads.experiment.search.tournament import BracketPlan, HalvingPlan, Tournament

MODES = ("aggressive", "standard", "conservative")


class AshaMethod(Tournament):
    """One bracket."""

    def __init__(self, spec: ExperimentSpec, method: Asha) -> None:
        super().__init__(spec, asha_plan(method, spec.search))


class AdaptiveAshaMethod(Tournament):
    """Several brackets."""

    def __init__(self, spec: ExperimentSpec, method: AdaptiveAsha) -> None:
        super().__init__(spec, adaptive_plan(method, spec.search))


def asha_plan(method: Asha, search: SearchSpec) -> HalvingPlan:
    _check(method, search)
    at_least(1, num_rungs=method.num_rungs)
    concurrent = method.max_concurrent_trials
    if not concurrent:
        concurrent = max(1, min(whole(method.divisor ** (method.num_rungs - 1)), method.max_trials))
    return HalvingPlan(
        brackets=(BracketPlan(method.num_rungs, method.max_trials, concurrent),),
        divisor=method.divisor,
        promotion=method.promotion,
        max_concurrent=method.max_concurrent_trials,
    )


def adaptive_plan(method: AdaptiveAsha, search: SearchSpec) -> HalvingPlan:
    _check(method, search)
    rungs = bracket_rungs(method, search.max_time)
    trials = bracket_trials(method.max_trials, method.divisor, rungs)
    widths = bracket_widths(method.max_concurrent_trials, method.divisor, trials)
    return HalvingPlan(
        brackets=tuple(map(BracketPlan, rungs, trials, widths)),
        divisor=method.divisor,
        promotion=method.promotion,
        max_concurrent=method.max_concurrent_trials,
    )


def bracket_rungs(method: AdaptiveAsha, max_time: int) -> tuple[int, ...]:
    """How many rungs each bracket has, those that stop earliest first."""
    if method.bracket_rungs:
        for rungs in method.bracket_rungs:
            at_least(1, bracket_rungs=rungs)
        if len(method.bracket_rungs) > method.max_trials:
            raise BadRequest(
                f"{len(method.bracket_rungs)} brackets need at least as many trials, not {method.max_trials}",
                object="searcher.max_trials",
                next_step="Ask for more trials, or for fewer brackets.",
                path="searcher.max_trials",
            )
        return tuple(sorted(method.bracket_rungs, reverse=True))
    at_least(1, max_rungs=method.max_rungs)
    most = min(
        method.max_rungs, halvings(max_time, method.divisor) + 1, halvings(method.max_trials, method.divisor) + 1
    )
    least = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[method.mode]
    return tuple(range(most, least - 1, -1))[: method.max_trials]


def bracket_trials(max_trials: int, divisor: float, rungs: tuple[int, ...]) -> tuple[int, ...]:
    weights = [divisor ** (count - 1) / count for count in rungs]
    trials = [max(1, whole(max_trials * weight / sum(weights))) for weight in weights]
    trials[0] += max(0, max_trials - sum(trials))
    while sum(trials) > max_trials:  # a bracket that would have had none has one, at the cost of the largest
        trials[trials.index(max(trials))] -= 1
    return tuple(trials)


def bracket_widths(max_concurrent: int, divisor: float, trials: tuple[int, ...]) -> tuple[int, ...]:
    """How many trials of each bracket train at once."""
    if not max_concurrent:
        return (max(trials[-1], whole(divisor)),) * len(trials)
    share, left = divmod(max(max_concurrent, len(trials)), len(trials))
    return tuple(share + (number < left) for number in range(len(trials)))


def _check(method: Asha | AdaptiveAsha, search: SearchSpec) -> None:
    at_least(1, max_trials=method.max_trials)
    at_least(0, max_concurrent_trials=method.max_concurrent_trials)
    above(1, divisor=method.divisor)
    if search.max_time < 1:
        raise BadRequest(
            "successive halving compares trials at fractions of their length, so it must know it",
            object="searcher.max_time",
            next_step="Say to which length a trial trains at most.",
            path="searcher.max_time",
        )
    if isinstance(method, AdaptiveAsha) and method.mode not in MODES:
        raise BadRequest(
            f"{method.mode[:40]!a} is not a mode",
            object="searcher.mode",
            next_step=f"Modes are {', '.join(MODES)}.",
            path="searcher.mode",
        )
