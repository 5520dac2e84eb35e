"""A small controller: so many trials in all, so many at once, stopping the rest after enough have ended well.

It is the simulator's own workload, and the shortest example of the contract in ``core.controller``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random

import msgspec

from clutch.core import controller as c
from clutch.wire.errors import BadRequest
from clutch.wire.ids import TaskId
from clutch.wire.journal import Gone
from clutch.wire.outcomes import EndReason
from clutch.wire.specs import TaskSpec
from clutch.wire.views import View


class SweepSpec(msgspec.Struct, frozen=True):
    trials: int
    at_once: int
    enough: int
    """After so many ended well, the others are stopped."""
    trial: TaskSpec
    patience_s: float = 60.0
    """After so long, whatever still runs is stopped."""


class Sweep(msgspec.Struct, frozen=True):
    controller: str
    spec: SweepSpec
    created: int = 0
    live: tuple[TaskId, ...] = ()
    done: int = 0
    given_up: bool = False


class GivenUp(msgspec.Struct, frozen=True, tag=True):
    """No more trials are created."""


class Created(msgspec.Struct, frozen=True, tag=True):
    task: TaskId


class Ended(msgspec.Struct, frozen=True, tag=True):
    task: TaskId
    well: bool


class SweepController:
    kind = "sweep"

    def open(self, controller: str, spec: bytes) -> Sweep:
        try:
            return Sweep(controller, msgspec.msgpack.decode(spec, type=SweepSpec))
        except msgspec.MsgspecError as error:
            raise BadRequest(str(error), object=f"sweep {controller}", next_step="Send a SweepSpec.") from error

    def decide(self, own: Sweep, happening: c.Happening, now: float, rng: Random) -> Iterator[c.Wish]:
        match happening:
            case c.Opened():
                yield c.Wake(now + own.spec.patience_s)
                for number in range(1, min(own.spec.at_once, own.spec.trials) + 1):
                    yield from self._create(own, number, rng)
            case c.Woken():
                yield c.Note(msgspec.msgpack.encode(GivenUp()))
                for task in own.live:
                    yield c.Stop(task)
            case c.TaskEnded(task) | c.Refused(task):
                if task not in own.live:
                    return
                well = isinstance(happening, c.TaskEnded) and happening.reason is EndReason.DONE
                yield c.Note(msgspec.msgpack.encode(Ended(task, well)))
                left = [t for t in own.live if t != task]
                if own.done + well >= own.spec.enough:
                    for other in left:
                        yield c.Stop(other)
                elif own.created < own.spec.trials and not own.given_up:
                    yield from self._create(own, own.created + 1, rng)
                    return
                if not left:
                    yield c.Close(f"{own.done + well} of {own.created} ended well")

    def _create(self, own: Sweep, number: int, rng: Random) -> Iterator[c.Wish]:
        task = TaskId(f"{own.controller}.{number}")
        yield c.Note(msgspec.msgpack.encode(Created(task)))
        yield c.Create(task, own.spec.trial)

    def apply(self, own: Sweep, note: bytes) -> Sweep:
        noted: Created | Ended | GivenUp = msgspec.msgpack.decode(note, type=Created | Ended | GivenUp)
        if isinstance(noted, GivenUp):
            return msgspec.structs.replace(own, given_up=True)
        if isinstance(noted, Created):
            return msgspec.structs.replace(own, created=own.created + 1, live=(*own.live, noted.task))
        left = tuple(t for t in own.live if t != noted.task)
        return msgspec.structs.replace(own, live=left, done=own.done + noted.well)

    def rows(self, own: Sweep, notes: Sequence[bytes]) -> Iterable[View | Gone]:
        return ()

    def dump(self, own: Sweep) -> bytes:
        return msgspec.msgpack.encode(own)

    def load(self, payload: bytes) -> Sweep:
        return msgspec.msgpack.decode(payload, type=Sweep)
