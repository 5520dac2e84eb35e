"""How values of all ranks become one: by a name, by a callable, or in two steps.

A callable gets the values in the order of ranks, on the chief. A reducer of two steps has ``per_rank``, which runs on
each rank before its value is sent, and ``across``, which gets what they made of it, on the chief.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from clutch.wire.errors import BadRequest


@runtime_checkable
class TwoSteps(Protocol):
    """What need not be sent is left out before it is."""

    def per_rank(self, value: Any) -> Any: ...

    def across(self, values: list[Any]) -> Any: ...


Reducer = str | Callable[[list[Any]], Any] | TwoSteps


class _Plain:
    def __init__(self, across: Callable[[list[Any]], Any]) -> None:
        self.across = across

    def per_rank(self, value: Any) -> Any:
        return value


def as_two_steps(reducer: Any) -> TwoSteps:
    """``BadRequest`` for what reduces nothing. A class is made an instance."""
    if isinstance(reducer, type):
        reducer = reducer()
    if isinstance(reducer, str):
        if reducer not in NAMED:
            raise BadRequest(f"no reducer is called {reducer!r}", object="reducer", next_step=f"Known: {_known()}.")
        return _Plain(NAMED[reducer])
    if isinstance(reducer, TwoSteps):
        return reducer
    if callable(reducer):
        return _Plain(reducer)
    raise BadRequest(
        f"a {type(reducer).__qualname__} reduces nothing",
        object="reducer",
        next_step=f"Give one of {_known()}, a callable, or an object with per_rank and across.",
    )


def name_of(reducer: Any) -> str:
    """What ranks compare to see that they reduce the same way."""
    if isinstance(reducer, str):
        return reducer
    kind = reducer if isinstance(reducer, type) or hasattr(reducer, "__qualname__") else type(reducer)
    return str(getattr(kind, "__qualname__", kind))[:80]


def reduce_values(values: list[Any], combine: Callable[[Any, Any], Any], path: str = "value") -> Any:
    """Combine from left to right, in the order of ranks; dicts, lists and tuples member by member."""
    first = values[0]
    if isinstance(first, dict):
        for rank, value in enumerate(values):
            if not isinstance(value, dict) or value.keys() != first.keys():
                raise BadRequest("its keys differ between ranks", object=f"{path} of rank {rank}")
        return {key: reduce_values([v[key] for v in values], combine, f"{path}[{key!r:.40}]") for key in first}
    if isinstance(first, list | tuple):
        for rank, value in enumerate(values):
            if type(value) is not type(first) or len(value) != len(first):
                raise BadRequest("its length differs between ranks", object=f"{path} of rank {rank}")
        found = [reduce_values(list(column), combine, f"{path}[{at}]") for at, column in enumerate(zip(*values))]  # noqa: B905
        return type(first)(found)
    total = first
    for rank, value in enumerate(values):
        _check_alike(first, value, f"{path} of rank {rank}")
        total = combine(total, value) if rank else total
    return total


def _check_alike(first: Any, value: Any, path: str) -> None:
    if value is None or isinstance(value, str | bytes | dict | list | tuple):
        raise BadRequest(f"a {type(value).__name__} has no sum, mean, max or min", object=path)
    if getattr(value, "shape", ()) != getattr(first, "shape", ()):
        raise BadRequest(f"its shape {tuple(value.shape)} is not that of rank 0", object=path)


def _sum(values: list[Any]) -> Any:
    return reduce_values(values, lambda one, other: one + other)


def _mean(values: list[Any]) -> Any:
    count = len(values)
    return _each(_sum(values), lambda total: total / count)


def _max(values: list[Any]) -> Any:
    return reduce_values(values, lambda one, other: _choose(one, other, "maximum", max))


def _min(values: list[Any]) -> Any:
    return reduce_values(values, lambda one, other: _choose(one, other, "minimum", min))


def _choose(one: Any, other: Any, method: str, plain: Callable[[Any, Any], Any]) -> Any:
    """The larger or smaller, element by element. What is not a number (NaN) stays one, as NumPy has it."""
    if hasattr(one, method):  # a tensor
        return getattr(one, method)(other)
    if hasattr(one, "shape"):
        import numpy

        return getattr(numpy, method)(one, other)
    if one != one or other != other:
        return one if one != one else other
    return plain(one, other)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _each(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_each(one, change) for one in value)
    return change(value)


NAMED: dict[str, Callable[[list[Any]], Any]] = {"sum": _sum, "mean": _mean, "max": _max, "min": _min}


def _known(names: Sequence[str] = ()) -> str:
    return ", ".join(names or NAMED)
