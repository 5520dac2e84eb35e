"""The checkpoints from which trials of an experiment begin, have begun or will: held for it until it is over."""

from __future__ import annotations

from clutch.workloads.experiment.controller.own import Own
from clutch.workloads.experiment.search.custom import CustomState, is_of_request


def sources(own: Own) -> tuple[str, ...]:
    """Each once. Those of trials that are over count too: such a trial may be continued before its experiment ends."""
    exp = own.exp
    found = [exp.spec.search.source_checkpoint, *(trial.warm_start for trial in exp.trials.values()), *awaited(own)]
    return tuple(dict.fromkeys(name for name in found if name))


def awaited(own: Own) -> tuple[str, ...]:
    """Of trials that are wanted and not made yet: the experiment is paused, or others come first."""
    named = [later.from_checkpoint for later in own.exp.deferred]
    if isinstance(own.search, CustomState):
        named += [held.asked.checkpoint for held in own.search.held if not is_of_request(held.asked.checkpoint)]
    return tuple(dict.fromkeys(name for name in named if name))


def foreign(own: Own) -> tuple[str, ...]:
    """Those that other experiments have saved, whose retention knows nothing of this one."""
    return tuple(name for name in sources(own) if name not in own.exp.checkpoints)
