"""What the core holds of an experiment for its controller, and what the controller's parts say to each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from clutch.core import controller as c
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.experiment import Experiment
from clutch.workloads.experiment.search.base import SearchMethod

Wishes = Iterator[c.Wish]


class Own:
    """The experiment, its search method, and that method's state. ``waits`` is true of one that was over and has been
    opened again, until it hears what for."""

    __slots__ = ("exp", "method", "search", "waits")

    def __init__(self, exp: Experiment, method: SearchMethod, search: Any, waits: bool = False) -> None:
        self.exp = exp
        self.method = method
        self.search = search
        self.waits = waits


class Frozen(msgspec.Struct, frozen=True):
    """The same as bytes can hold it; also what an archive holds."""

    exp: Experiment
    search: bytes


def wish(fact: n.Fact) -> c.Note:
    """Remember this. The core folds it before it takes the next wish, so whoever wished it goes on in the state after
    it."""
    return c.Note(n.note(fact))
