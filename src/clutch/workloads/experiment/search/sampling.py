"""Chance of a search: what a trial draws follows from the experiment's seed, the trial's number and the path alone.

Each draw is a hash of these three, not the next number of a generator. So trials may be made in any order, a
hyperparameter may be added without changing what the others draw, and no order of a dictionary matters at any depth.

A *path* is where a hyperparameter stands, as a tuple of keys: ``("optimizer", "lr")``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest, TooLarge
from clutch.wire.experiments import Categorical, Const, Double, Hyperparameter, Int, Log, Nested

Path = tuple[str, ...]
Space = Mapping[str, Hyperparameter]

SEED_BITS = 31
FLOAT_BITS = 53
GRID_TRIALS_MAX = 1_000_000

# -- draws --------------------------------------------------------------------------------------------------------


def chance(seed: int, trial: int, path: Path = (), purpose: str = "value") -> float:
    """A number in [0, 1)."""
    return (_bits(seed, trial, path, purpose) >> (512 - FLOAT_BITS)) / (1 << FLOAT_BITS)


def choice(count: int, seed: int, trial: int, path: Path = (), purpose: str = "value") -> int:
    """A whole number from 0 to ``count`` - 1."""
    return _bits(seed, trial, path, purpose) * count >> 512


def trial_seed(seed: int, trial: int) -> int:
    """What a trial's own program seeds itself with: 0 to 2**31 - 1."""
    return _bits(seed, trial, (), "seed") >> (512 - SEED_BITS)


def _bits(seed: int, trial: int, path: Path, purpose: str) -> int:
    """512 bits. The encoding keeps parts apart: a key with a dot in it is not two keys."""
    what = msgspec.json.encode((seed, trial, path, purpose))
    return int.from_bytes(hashlib.blake2b(what, digest_size=64).digest(), "big")


# -- a trial's hyperparameters ------------------------------------------------------------------------------------


def sample(space: Space, seed: int, trial: int, path: Path = ()) -> dict[str, Any]:
    """The hyperparameters of a trial, keys in the order of the spec."""
    return {name: draw(inner, seed, trial, (*path, name)) for name, inner in space.items()}


def draw(hyperparameter: Hyperparameter, seed: int, trial: int, path: Path) -> Any:
    match hyperparameter:
        case Const(val=value):
            return value
        case Int(minval=low, maxval=high):
            return low + choice(high - low + 1, seed, trial, path)
        case Double(minval=low, maxval=high):
            return _between(low, high, chance(seed, trial, path))
        case Log(minval=low, maxval=high, base=base):
            return base ** _between(low, high, chance(seed, trial, path))
        case Categorical(vals=values):
            return values[choice(len(values), seed, trial, path)]
        case Nested(vals=inner):
            return sample(inner, seed, trial, path)


def overlay(space: Space, under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over what was drawn, key by key where hyperparameters are nested; a value is replaced whole."""
    found = dict(under)
    for name, value in over.items():
        inner = space.get(name)
        if isinstance(inner, Nested) and isinstance(value, dict):
            found[name] = overlay(inner.vals, found[name], value)
        else:
            found[name] = value
    return found


def bounds(hyperparameter: Int | Double | Log) -> tuple[float, float]:
    """The least and the greatest value it can take."""
    if isinstance(hyperparameter, Log):
        ends = (hyperparameter.base**hyperparameter.minval, hyperparameter.base**hyperparameter.maxval)
        return min(ends), max(ends)
    return hyperparameter.minval, hyperparameter.maxval


def _between(low: float, high: float, fraction: float) -> float:
    """Rounding never leads outside."""
    return min(max(low + fraction * (high - low), low), high)


# -- grids --------------------------------------------------------------------------------------------------------


class Axis(msgspec.Struct, frozen=True):
    path: Path
    values: tuple[Any, ...]


def grid_axes(space: Space) -> tuple[Axis, ...]:
    """What a grid varies, sorted by path; the last axis varies fastest. ``BadRequest`` names a range without count."""
    axes = tuple(sorted(_axes(space, ()), key=lambda axis: axis.path))
    if grid_size(axes) > GRID_TRIALS_MAX:
        raise TooLarge(
            f"the grid has {grid_size(axes)} points, at most {GRID_TRIALS_MAX} are tried",
            object="hyperparameters",
            next_step="Give smaller counts, or search at random.",
            path="hyperparameters",
        )
    return axes


def grid_size(axes: tuple[Axis, ...]) -> int:
    size = 1
    for axis in axes:
        size *= len(axis.values)
    return size


def grid_point(space: Space, axes: tuple[Axis, ...], number: int) -> dict[str, Any]:
    """The hyperparameters of point ``number``, from 1."""
    rest = number - 1
    chosen: dict[Path, Any] = {}
    for axis in reversed(axes):
        rest, index = divmod(rest, len(axis.values))
        chosen[axis.path] = axis.values[index]
    return _point(space, chosen, ())


def _point(space: Space, chosen: Mapping[Path, Any], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, inner in space.items():
        here = (*path, name)
        match inner:
            case Const(val=value):
                found[name] = value
            case Nested(vals=deeper):
                found[name] = _point(deeper, chosen, here)
            case _:
                found[name] = chosen[here]
    return found


def _axes(space: Space, path: Path) -> Iterator[Axis]:
    for name, inner in space.items():
        here = (*path, name)
        match inner:
            case Const():
                continue
            case Nested(vals=deeper):
                yield from _axes(deeper, here)
            case Categorical(vals=values):
                yield Axis(here, values)
            case Int() | Double() | Log():
                yield Axis(here, _axis_values(inner, here))


def _axis_values(inner: Int | Double | Log, path: Path) -> tuple[Any, ...]:
    if inner.count < 1:
        dotted = ".".join(("hyperparameters", *path))
        raise BadRequest(
            "a grid needs to know how many values of this range to try",
            object=dotted,
            next_step="Give it a count, or write its values as a categorical.",
            path=f"{dotted}.count",
        )
    match inner:
        case Int(minval=low, maxval=high):
            count = min(inner.count, high - low + 1)
            if count == 1:
                return (_rounded(low + high, 2),)
            return tuple(_rounded(low * (count - 1) + index * (high - low), count - 1) for index in range(count))
        case Double(minval=low, maxval=high):
            return tuple(_between(low, high, fraction) for fraction in _fractions(inner.count))
        case Log(minval=low, maxval=high, base=base):
            return tuple(base ** _between(low, high, fraction) for fraction in _fractions(inner.count))


def _fractions(count: int) -> tuple[float, ...]:
    return (0.5,) if count == 1 else tuple(index / (count - 1) for index in range(count))


def _rounded(numerator: int, denominator: int) -> int:
    """To the nearest whole number, a half away from zero."""
    size = (2 * abs(numerator) + denominator) // (2 * denominator)
    return size if numerator >= 0 else -size
