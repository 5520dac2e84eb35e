"""What callbacks of training libraries do where a library trains in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clutch.wire.errors import Conflict

if TYPE_CHECKING:
    from clutch.runtime.context import Run


def check_ranks(run: Run, world_size: int, what: str) -> None:
    """``Conflict`` unless the processes of the trainer are those of the run."""
    if world_size != run.size:
        raise Conflict(
            f"the trainer has {world_size} processes, and its run has {run.size}",
            object=what,
            next_step="Let a launcher start them (launch: torchrun) so that each calls clutch.init(), or use one.",
        )
    if world_size > 1:
        run.distributed.check()  # which says what to do where the run has no group


def validate_together(run: Run, step: int, values: dict[str, Any]) -> bool:
    """What rank 0 has found is the validation; whether to go on is the same on all ranks. Called by all of them."""
    if run.size > 1:
        values = run.distributed.broadcast(values)
    return not values or run.validate(step, values, all_ranks=run.size > 1, reducer=_of_rank_zero)


def _of_rank_zero(values: list[Any]) -> Any:
    return values[0]
