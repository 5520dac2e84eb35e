"""How a lane's records lie in its tables: a state row that says how far something is, and the parts it has so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from clutch.wire.errors import Stale


class LaneState(Protocol):
    """How far something is. ``version`` grows with every change of it, ``id`` is 0 until the store knows it."""

    @property
    def id(self) -> int: ...

    @property
    def version(self) -> int: ...


State = TypeVar("State", bound=LaneState)
Part = TypeVar("Part")
StateOut = TypeVar("StateOut", bound=LaneState, covariant=True)
PartOut = TypeVar("PartOut", covariant=True)


class LaneChange(Protocol[StateOut, PartOut]):
    """One state's part of a commit: itself one version on, parts to add and to drop (by their place)."""

    @property
    def state(self) -> StateOut: ...

    @property
    def puts(self) -> tuple[PartOut, ...]: ...

    @property
    def drops(self) -> tuple[int, ...]: ...


class LaneRows(msgspec.Struct, Generic[State, Part], frozen=True):
    """The two tables of a lane, for both SQL stores: names, columns, and the values that go into them."""

    states: str
    parts: str
    owner: str
    """The column of a part that holds the id of its state,"""
    place: str
    """and the one that tells it from the state's other parts."""
    key_columns: tuple[str, ...]
    moving_columns: tuple[str, ...]
    part_columns: tuple[str, ...]
    key_of: Callable[[State], tuple[Any, ...]]
    moving_of: Callable[[State], tuple[Any, ...]]
    values_of: Callable[[Part], tuple[Any, ...]]
    moved: Callable[[State], Stale]
    """What a writer hears whose state is not the one that is stored."""
