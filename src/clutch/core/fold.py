"""The one door back: ``apply(state, recorded) -> state``, total and blind to clock, chance and policy.

This is the only code that runs at start. See ``folds`` for what each fact does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clutch.core.folds import allocations, cluster, controllers, leases, machines, members, tasks
from clutch.core.recorded import Recorded
from clutch.core.state import State
from clutch.wire.facts import Fact

HANDLERS: dict[type[Fact], Callable[[State, Any, Recorded], None]] = {
    **cluster.HANDLERS,
    **machines.HANDLERS,
    **tasks.HANDLERS,
    **allocations.HANDLERS,
    **members.HANDLERS,
    **leases.HANDLERS,
    **controllers.HANDLERS,
}


def apply(state: State, recorded: Recorded) -> State:
    """The state after one more fact. The same object: a fold has one owner."""
    HANDLERS[type(recorded.fact)](state, recorded.fact, recorded)
    state.index = recorded.index
    state.at = recorded.at
    return state
