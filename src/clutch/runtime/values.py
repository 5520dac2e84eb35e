"""What may be reported: numbers. A wrong one is refused where it is reported, by the name of its metric and its step.

A number of NumPy, PyTorch, JAX and the like is asked for its plain value (``item()``); none of them is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clutch.wire.errors import BadRequest, TooLarge

NAME_MAX, VALUES_MAX = 200, 1_000
"""As in ``clutch.wire.metrics``, which need not be imported for this."""
STEP_LIMIT = 2**63
_WHOLE = range(-STEP_LIMIT, STEP_LIMIT)


def plain_values(values: Mapping[str, Any], group: str, step: int) -> dict[str, float | int]:
    """A copy of the values as plain numbers."""
    found: dict[str, float | int] = {}
    for name, value in values.items():
        if type(name) is not str or not 0 < len(name) <= NAME_MAX:
            raise _wrong(str(name), group, step, f"a metric's name is a text of 1 to {NAME_MAX} characters")
        exact = type(value) is float or (type(value) is int and value in _WHOLE)
        found[name] = value if exact else plain_number(value, name, group, step)
    if not found:
        raise BadRequest("no metric is given", object=f"{group} at step {step}", next_step="Report at least one.")
    if len(found) > VALUES_MAX:
        raise TooLarge(f"{len(found)} metrics at once, at most {VALUES_MAX}", object=f"{group} at step {step}")
    return found


def plain_number(value: Any, name: str, group: str, step: int) -> float | int:
    """The value as a plain number, whatever library it comes from. A whole number of more than 64 bits is a float."""
    if isinstance(value, str | bytes):
        raise _wrong(name, group, step, f"{value[:40]!r} is a text, not a number")
    if value is None:
        raise _wrong(name, group, step, "None is not a number")
    if isinstance(value, bool | int):
        return _bounded(int(value))
    item = getattr(value, "item", None)
    if callable(item):
        try:
            value = item()
        except (ValueError, RuntimeError, TypeError) as error:
            shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
            raise _wrong(name, group, step, f"a {type(value).__name__}{shape} is not one number") from error
        if isinstance(value, bool | int):
            return _bounded(int(value))
    if isinstance(value, str | bytes | complex) or not hasattr(value, "__float__"):
        raise _wrong(name, group, step, f"a {type(value).__name__} is not a number")
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise _wrong(name, group, step, f"a {type(value).__name__} that is not one number: {error}") from error


def _bounded(value: int) -> float | int:
    if value in _WHOLE:
        return value
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def plain_step(step: Any, what: str) -> int:
    """A step as a plain whole number."""
    if type(step) is int and 0 <= step < STEP_LIMIT:
        return step
    try:
        found = int(step.__index__())
    except (AttributeError, TypeError):
        raise BadRequest(f"a step is a whole number, not {step!r:.60}", object=what) from None
    if not 0 <= found < STEP_LIMIT:
        raise BadRequest(f"step {found} is not from 0 to 2**63 - 1", object=what)
    return found


def plain_group(group: Any) -> str:
    if type(group) is not str or not 0 < len(group) <= NAME_MAX:
        raise BadRequest(f"a group's name is a text of 1 to {NAME_MAX} characters, not {group!r:.60}", object="report")
    return group


def _wrong(name: str, group: str, step: int, problem: str) -> BadRequest:
    return BadRequest(
        problem,
        object=f"metric {name[:80]!r} of {group} at step {step}",
        next_step="Report one number for each metric.",
    )
