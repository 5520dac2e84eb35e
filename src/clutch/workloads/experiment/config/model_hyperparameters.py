"""Hyperparameters as they are written: a map with a ``type`` is a range, any other map holds more of them, and
everything else is a constant."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from clutch.wire.experiments import Categorical, Const, Double, Hyperparameter, Int, Log, Nested
from clutch.workloads.experiment.config.model_base import Number, Whole, Written

Count = Annotated[Whole, Field(ge=1, le=1_000_000, description="So many values of it on a grid.")]
DEPTH_MAX = 32


class WrittenConst(Written):
    """One value, of any kind."""

    type: Literal["const"]
    val: Any = Field(description="Any JSON.")


class WrittenInt(Written):
    """A whole number from ``minval`` to ``maxval``, both included."""

    type: Literal["int"]
    minval: Whole = Field(ge=-(2**63), lt=2**63)
    maxval: Whole = Field(ge=-(2**63), lt=2**63)
    count: Count | None = None


class WrittenDouble(Written):
    """A number from ``minval`` to ``maxval``."""

    type: Literal["double"]
    minval: Number
    maxval: Number
    count: Count | None = None


class WrittenLog(Written):
    """``base`` to the power of a number from ``minval`` to ``maxval``: both are exponents."""

    type: Literal["log"]
    minval: Number = Field(description="The smallest exponent.")
    maxval: Number = Field(description="The greatest exponent.")
    base: Number = Field(10.0, gt=0)
    count: Count | None = None


class WrittenCategorical(Written):
    """One of several values, each of any kind."""

    type: Literal["categorical"]
    vals: list[Any] = Field(min_length=1)


KINDS: dict[str, type[Written]] = {
    "const": WrittenConst, "int": WrittenInt, "double": WrittenDouble, "log": WrittenLog,
    "categorical": WrittenCategorical,
}  # fmt: skip


def is_range(value: Any) -> bool:
    """A map with a ``type``, whatever it says."""
    return isinstance(value, dict) and "type" in value


def is_nested(value: Any) -> bool:
    return isinstance(value, dict) and "type" not in value


def range_said(written: dict[str, Any]) -> dict[str, Any]:
    """A range without what is null in it; the value of a constant may be."""
    return {key: value for key, value in written.items() if value is not None or key == "val"}


def hyperparameter_of(written: Any) -> Hyperparameter:
    """The frozen hyperparameter of a checked one."""
    if is_nested(written):
        return Nested({name: hyperparameter_of(value) for name, value in written.items()})
    if not is_range(written):
        return Const(written)
    found = KINDS[written["type"]].model_validate(range_said(written))
    match found:
        case WrittenInt():
            return Int(found.minval, found.maxval, found.count or 0)
        case WrittenDouble():
            return Double(float(found.minval), float(found.maxval), found.count or 0)
        case WrittenLog():
            return Log(float(found.minval), float(found.maxval), float(found.base), found.count or 0)
        case WrittenCategorical():
            return Categorical(tuple(found.vals))
    return Const(written["val"])
