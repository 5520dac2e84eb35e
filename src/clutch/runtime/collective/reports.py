"""Metrics of all ranks become one report: reduced on rank 0, by a name, a callable, or one of these for each metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clutch.runtime.collective.together import Together
from clutch.runtime.distributed.reducers import as_two_steps, name_of
from clutch.runtime.values import plain_step, plain_values
from clutch.wire.errors import BadRequest, Conflict

DEFAULT = "mean"


def report_together(
    together: Together,
    said: tuple[str, Any, Mapping[str, Any]],
    reducer: Any,
    keep: Callable[[str, int, dict[str, float | int]], bool],
) -> bool:
    """A sync point. ``said``: group, step and values of this rank. What ``keep`` says on rank 0, on every rank."""
    group, step, values = said

    def bring() -> Any:
        return [group, plain_step(step, group), _before(group, step, values, reducer)]

    def decide(every: list[Any]) -> bool:
        first = every[0]
        for rank, (other_group, other_step, _) in enumerate(every):
            if [other_group, other_step] != first[:2]:
                raise Conflict(
                    f"rank 0 reports {first[0]} at step {first[1]} while rank {rank} reports {other_group} at step "
                    f"{other_step}",
                    object="report of all ranks",
                    next_step="Report the same step on every rank.",
                )
        reduced = _across([found for _, _, found in every], group, first[1], reducer)
        return keep(group, first[1], plain_values(reduced, group, first[1]))

    return together.made_of_all(bring, decide)


def _before(group: str, step: int, values: Mapping[str, Any], reducer: Any) -> dict[str, Any]:
    """What is sent of each value. Reducers with a name are given numbers; others whatever can be sent."""
    found = {}
    for name, value in values.items():
        chosen = _chosen(reducer, name, group, step)
        plain = plain_values({name: value}, group, step)[name] if isinstance(chosen, str) else value
        found[name] = [name_of(chosen), as_two_steps(chosen).per_rank(plain)]
    if not found:
        plain_values(values, group, step)  # which says that there is none
    return found


def _across(every: list[dict[str, Any]], group: str, step: int, reducer: Any) -> dict[str, Any]:
    found = {}
    for name in dict.fromkeys(name for values in every for name in values):
        missing = [rank for rank, values in enumerate(every) if name not in values]
        if missing:
            raise Conflict(
                f"ranks {', '.join(map(str, missing[:8]))} do not report it, and others do",
                object=f"{group} {name!r:.80} at step {step}",
                next_step="Report the same metrics on every rank.",
            )
        ways = {values[name][0] for values in every}
        if len(ways) > 1:
            raise Conflict(
                f"ranks reduce it in different ways: {', '.join(sorted(ways)[:4])}",
                object=f"{group} {name!r:.80} at step {step}",
                next_step="Give the same reducer on every rank.",
            )
        steps = as_two_steps(_chosen(reducer, name, group, step))
        try:
            found[name] = steps.across([values[name][1] for values in every])
        except Exception as error:
            raise BadRequest(
                f"its reducer raised {type(error).__name__}: {error}"[:500],
                object=f"{group} {name!r:.80} at step {step}",
            ) from error
    return found


def _chosen(reducer: Any, name: str, group: str, step: int) -> Any:
    if reducer is None:
        return DEFAULT
    if not isinstance(reducer, Mapping):
        return reducer
    if name not in reducer:
        raise BadRequest(
            "no reducer is given for it",
            object=f"{group} {name!r:.80} at step {step}",
            next_step="Name one for each metric, or one for all.",
        )
    return reducer[name]
