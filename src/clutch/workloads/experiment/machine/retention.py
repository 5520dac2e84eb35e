"""Which checkpoints are kept when an experiment is over: the best of all, the best and the latest of each trial.

A checkpoint's value is that of the validation at its step, or of the last one before; one that no validation came
before has none, and is kept only as a latest. Of equal values the earlier validation wins, and of one validation the
earliest checkpoint that it speaks of. What is pinned stays whatever its rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from clutch.wire.experiments import CheckpointState, Retention
from clutch.workloads.experiment.machine.experiment import Experiment


class Candidate(msgspec.Struct, frozen=True):
    checkpoint: str
    trial: int
    order: int
    """Of its commit."""
    value: float | None = None
    """Smaller is better."""
    validation: int = 0
    """The order of the validation that gave it."""
    pinned: bool = False


def superfluous(candidates: Iterable[Candidate], retention: Retention) -> list[str]:
    """The checkpoints that may go, in the order of their commits."""
    ordered = sorted(candidates, key=lambda one: one.order)
    valued = sorted((one for one in ordered if one.value is not None), key=_rank)
    kept = dict.fromkeys(one.checkpoint for one in valued[: retention.save_experiment_best])
    of_trial: dict[int, list[Candidate]] = {}
    for one in ordered:
        of_trial.setdefault(one.trial, []).append(one)
    for ones in of_trial.values():
        best = sorted((one for one in ones if one.value is not None), key=_rank)
        latest = ones[max(0, len(ones) - retention.save_trial_latest) :]
        kept.update(dict.fromkeys(one.checkpoint for one in [*best[: retention.save_trial_best], *latest]))
    return [one.checkpoint for one in ordered if one.checkpoint not in kept and not one.pinned]


def _rank(one: Candidate) -> tuple[float, int, int]:
    assert one.value is not None
    return one.value, one.validation, one.order


def candidates(exp: Experiment) -> list[Candidate]:
    """What there is to choose from: whole checkpoints."""
    found = []
    for one in exp.checkpoints.values():
        if one.state is not CheckpointState.COMMITTED:
            continue
        known = exp.trials[one.trial].value_at(one.step)
        if known is None or math.isinf(known[0]):
            found.append(Candidate(one.checkpoint, one.trial, one.order, pinned=bool(one.pins)))
        else:
            found.append(Candidate(one.checkpoint, one.trial, one.order, known[0], known[1], bool(one.pins)))
    return found
