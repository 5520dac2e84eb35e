"""Who a trial is, as ``CLUTCH_TRIAL`` says it: a ``wire.experiments.TrialInfo`` that is read in a millisecond.

The wire's own type stands in a module that costs a training script ten; a test keeps the two alike.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clutch.wire.errors import BadRequest


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    experiment: str = ""
    """Empty: the program runs by itself, or as a task that is no trial."""
    trial: int = 0
    name: str = ""
    hparams: dict[str, Any] = {}
    seed: int = 0
    metric: str = ""
    smaller_is_better: bool = True
    time_metric: str = ""
    max_time: int = 0
    unit: str = "steps"
    storage: msgspec.Raw = msgspec.Raw(b"{}")
    """A ``Storage``, not read yet."""
    warm_start: str = ""
    data: dict[str, Any] = {}
    profiling: bool = False
    no_report_timeout_s: float = 0.0
    no_report_action: str = "dump"
    config: str = "{}"


def read_trial(text: str) -> Trial:
    if not text:
        return Trial()
    try:
        return msgspec.json.decode(text, type=Trial)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"it does not say who this trial is: {error}", object="CLUTCH_TRIAL") from error
