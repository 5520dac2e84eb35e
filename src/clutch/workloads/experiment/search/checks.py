"""Numbers that no search can work with, refused with the place where they stand."""

from __future__ import annotations

from clutch.wire.errors import BadRequest


def at_least(least: float, **settings: float) -> None:
    for name, value in settings.items():
        if not value >= least:
            raise _wrong(name, value, f"at least {least:g}")


def above(bound: float, **settings: float) -> None:
    for name, value in settings.items():
        if not value > bound:
            raise _wrong(name, value, f"more than {bound:g}")


def within(least: float, most: float, **settings: float) -> None:
    for name, value in settings.items():
        if not least <= value <= most:
            raise _wrong(name, value, f"between {least:g} and {most:g}")


def _wrong(name: str, value: float, wanted: str) -> BadRequest:
    return BadRequest(
        f"{value:g} is not {wanted}",
        object=f"searcher.{name}",
        next_step=f"Give a number {wanted}.",
        path=f"searcher.{name}",
    )
