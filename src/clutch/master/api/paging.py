"""What lists have in common: how many, behind which, in which order; and the parameters people may give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from litestar.params import Parameter, QueryParameter

from clutch.core.checks import NAME
from clutch.wire.api import PAGE_MAX, Page
from clutch.wire.errors import BadRequest

T = TypeVar("T")
CURSOR_MAX = 400

Limit = Annotated[int, Parameter(ge=1, le=PAGE_MAX, description="At most so many; 100 unless told.")]
After = Annotated[str, Parameter(max_length=CURSOR_MAX, description="The cursor `next` of the page before.")]
StateWord = Annotated[str, QueryParameter(name="state", max_length=128, description="Only in these states.")]
"""``state`` means something else to litestar, so the parameter is called otherwise."""
Word = Annotated[str, Parameter(max_length=128, description="Only with this; several are joined by commas.")]


def words(value: str, path: str) -> tuple[str, ...]:
    """The names in a filter: one, or several with commas. ``BadRequest`` for what no name can be."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    for part in found:
        if not NAME.fullmatch(part):
            raise BadRequest(f"{part[:80]!r} is not a name", object="filter", path=path)
    return found


def check_cursor(after: str) -> str:
    """A cursor as it may go into a question."""
    if not after.isprintable() or not after.isascii():
        raise BadRequest("it is not a cursor of this list", object="cursor", path="after")
    return after


def paged(found: Sequence[T], limit: int, cursor_of: object) -> Page[T]:
    """A page of at most ``limit`` from a list that was asked for one more."""
    assert callable(cursor_of)
    kept = tuple(found[:limit])
    return Page(kept, str(cursor_of(kept[-1])) if len(found) > limit else "")
