"""How hyperparameters are chosen, as it is written: one type for each method."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from clutch.workloads.experiment.config.model_base import Command, Flag, Line, Number, Whole, Written, wrong

UNITS = ("steps", "batches", "records", "epochs")
Trials = Annotated[Whole, Field(ge=1, le=1_000_000, description="So many trials in all.")]
Divisor = Annotated[Number, Field(gt=1, description="One in so many goes on beyond a rung.")]
Length = Annotated[Whole, Field(ge=1, lt=2**62)]
Promotion = Annotated[
    Flag, Field(description="True: trials rest at a rung until they are promoted. False: they run until stopped.")
]


def _trial(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise wrong(f"{value!r} names no trial", "Write EXPERIMENT.NUMBER, as 'clutch trial list' shows it.")
    return value


class WrittenSearcher(Written):
    """What all methods have."""

    metric: Line = Field(description="The validation metric that says how good a trial is.")
    smaller_is_better: Flag = Field(True, description="The best trial has the smallest metric.")
    max_time: Length | None = Field(None, description="A trial trains to this length, in steps or in time_metric.")
    time_metric: Line | None = Field(None, description="The metric that says how far a trial is; none: its step.")
    unit: Literal["steps", "batches", "records", "epochs"] | None = Field(
        None, description="What a length counts; none: time_metric if it is one of these words, else steps."
    )
    source_trial_id: Annotated[str, BeforeValidator(_trial)] | None = Field(
        None, description="Begin from the latest checkpoint of this trial, EXPERIMENT.NUMBER."
    )
    source_checkpoint_uuid: Line | None = Field(None, description="Begin from this checkpoint.")


class WrittenSingle(WrittenSearcher):
    """One trial; all hyperparameters are constants."""

    name: Literal["single"]
    metric: Line = Field("loss", description="The validation metric that says which checkpoint is best.")


class _Several(WrittenSearcher):
    max_concurrent_trials: Whole = Field(16, ge=0, le=100_000, description="So many at once; 0: all.")


class WrittenRandom(_Several):
    """Trials with hyperparameters drawn at random."""

    name: Literal["random"]
    max_trials: Trials


class WrittenGrid(_Several):
    """Every combination; numbers say ``count``, how many values of them."""

    name: Literal["grid"]


class WrittenAsha(_Several):
    """One bracket of asynchronous successive halving."""

    name: Literal["asha", "async_halving"]
    max_trials: Trials
    max_time: Length = Field(description="The length of the last rung, in steps or in time_metric.")
    num_rungs: Whole = Field(5, ge=1, le=100)
    divisor: Divisor = 4.0
    promotion: Promotion = False


class WrittenAdaptiveAsha(_Several):
    """Several brackets that differ in how early they stop trials."""

    name: Literal["adaptive_asha"]
    max_trials: Trials
    max_time: Length = Field(description="The length of the last rung, in steps or in time_metric.")
    mode: Literal["aggressive", "standard", "conservative"] = "standard"
    max_rungs: Whole = Field(5, ge=1, le=100)
    bracket_rungs: list[Annotated[Whole, Field(ge=1, le=100)]] = Field([], description="The rungs of each bracket.")
    divisor: Divisor = 4.0
    promotion: Promotion = False


class WrittenPbt(_Several):
    """Population based training: after each round the worst continue from the best, a little changed."""

    name: Literal["pbt"]
    population_size: Whole = Field(ge=2, le=100_000)
    num_rounds: Whole = Field(ge=1, le=100_000)
    length_per_round: Length
    truncate_fraction: Number = Field(0.2, ge=0, le=0.5)
    resample_probability: Number = Field(0.2, ge=0, le=1)
    perturb_factor: Number = Field(0.2, ge=0, le=1)
    max_concurrent_trials: Whole = Field(0, ge=0, le=100_000, description="So many at once; 0: all.")


class WrittenCustom(_Several):
    """A program of yours reads events and answers with operations."""

    name: Literal["custom"]
    entrypoint: Command | None = Field(None, description="What runs it, in your code; none: it runs elsewhere.")
    max_concurrent_trials: Whole = Field(0, ge=0, le=100_000, description="So many at once; 0: all it asks for.")


class WrittenTpe(_Several):
    """Optuna's tree of Parzen estimators."""

    name: Literal["tpe"]
    max_trials: Trials
    max_concurrent_trials: Whole = Field(4, ge=1, le=100_000)
    startup_trials: Whole = Field(10, ge=0, le=100_000, description="So many are drawn at random first.")


SEARCHERS: dict[str, type[WrittenSearcher]] = {
    "single": WrittenSingle, "random": WrittenRandom, "grid": WrittenGrid, "asha": WrittenAsha,
    "async_halving": WrittenAsha, "adaptive_asha": WrittenAdaptiveAsha, "pbt": WrittenPbt, "custom": WrittenCustom,
    "tpe": WrittenTpe,
}  # fmt: skip
Searcher = Annotated[
    WrittenSingle
    | WrittenRandom
    | WrittenGrid
    | WrittenAsha
    | WrittenAdaptiveAsha
    | WrittenPbt
    | WrittenCustom
    | WrittenTpe,
    Field(discriminator="name"),
]
