"""The frozen search of a checked searcher."""

from __future__ import annotations

from clutch.wire.experiments import (
    AdaptiveAsha,
    Asha,
    Custom,
    Grid,
    Method,
    Pbt,
    RandomSearch,
    SearchSpec,
    Single,
    Tpe,
)
from clutch.workloads.experiment.config.model_searcher import (
    UNITS,
    WrittenAdaptiveAsha,
    WrittenAsha,
    WrittenCustom,
    WrittenGrid,
    WrittenPbt,
    WrittenRandom,
    WrittenSearcher,
    WrittenTpe,
)


def argv_of(entrypoint: str | list[str]) -> tuple[str, ...]:
    """A line is for the shell, a list is run as it is."""
    return ("sh", "-c", entrypoint) if isinstance(entrypoint, str) else tuple(entrypoint)


def search_of(written: WrittenSearcher) -> SearchSpec:
    time_metric = written.time_metric or ""
    return SearchSpec(
        method=_method(written),
        metric=written.metric,
        smaller_is_better=written.smaller_is_better,
        max_time=written.max_time or 0,
        time_metric=time_metric,
        unit=written.unit or (time_metric if time_metric in UNITS else "steps"),
        source_trial=written.source_trial_id or "",
        source_checkpoint=written.source_checkpoint_uuid or "",
    )


def _method(written: WrittenSearcher) -> Method:
    match written:
        case WrittenRandom():
            return RandomSearch(written.max_trials, written.max_concurrent_trials)
        case WrittenGrid():
            return Grid(written.max_concurrent_trials)
        case WrittenAsha():
            return Asha(
                max_trials=written.max_trials,
                num_rungs=written.num_rungs,
                divisor=float(written.divisor),
                max_concurrent_trials=written.max_concurrent_trials,
                promotion=written.promotion,
            )
        case WrittenAdaptiveAsha():
            return AdaptiveAsha(
                max_trials=written.max_trials,
                mode=written.mode,
                max_rungs=written.max_rungs,
                bracket_rungs=tuple(written.bracket_rungs),
                divisor=float(written.divisor),
                max_concurrent_trials=written.max_concurrent_trials,
                promotion=written.promotion,
            )
        case WrittenPbt():
            return Pbt(
                population_size=written.population_size,
                num_rounds=written.num_rounds,
                length_per_round=written.length_per_round,
                truncate_fraction=float(written.truncate_fraction),
                resample_probability=float(written.resample_probability),
                perturb_factor=float(written.perturb_factor),
                max_concurrent_trials=written.max_concurrent_trials,
            )
        case WrittenCustom():
            argv = argv_of(written.entrypoint) if written.entrypoint is not None else ()
            return Custom(argv, written.max_concurrent_trials)
        case WrittenTpe():
            return Tpe(written.max_trials, written.max_concurrent_trials, written.startup_trials)
    return Single()
