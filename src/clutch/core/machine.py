"""What all machines share: a literal table of legal moves, and an error that tells the story when a move is not in it.

A table maps each state to the states that may follow. It is the only place where an arrow can be drawn; decisions and
folds alike go through ``Table.move``, so an illegal move is caught where it is decided and, if a journal was tampered
with, where it is folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from clutch.wire.errors import IllegalMove

S = TypeVar("S", bound=StrEnum)


class Table(Generic[S]):
    """The arrows of one machine."""

    def __init__(self, name: str, arrows: Mapping[S, tuple[S, ...]]) -> None:
        self.name = name
        self.arrows = arrows

    def allows(self, source: S, target: S) -> bool:
        return target in self.arrows[source]

    def move(self, source: S, target: S, subject: str) -> S:
        """The target, if the table has that arrow."""
        if target not in self.arrows[source]:
            legal = ", ".join(self.arrows[source]) or "nothing: this is the end"
            raise IllegalMove(
                f"a {self.name} cannot go from {source} to {target}",
                object=subject,
                next_step=f"From {source} it can go to: {legal}.",
            )
        return target

    def diagram(self) -> str:
        """The table as a Mermaid state diagram; the docs show it and a test keeps them equal."""
        lines = ["stateDiagram-v2"]
        lines += [f"    {source} --> {target}" for source, targets in self.arrows.items() for target in targets]
        return "\n".join(lines)
