"""What every search method does the same way: remember by facts, count its trials, know when it is over.

A method is written as ``turn(turn, event)``: it reads ``turn.state``, which is what the state will be when everything
said so far has been folded, and says facts and actions. The state it was given is never changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from clutch.workloads.experiment.search.base import Action, Event, Finish, How, Over, Remember

# -- trials, counted ----------------------------------------------------------------------------------------------

INVALID_PER_TRIAL = 10
INVALID_ALWAYS = 100
"""A search gives up when so many more trials than it wants refuse their hyperparameters."""


class Roll(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which trials there are. Those that have ended are only counted."""

    made: int = 0
    live: dict[int, bool] = {}
    """Not ended yet, by number. True: it was told to leave, and is told nothing more."""
    useful: int = 0
    """Ended with something to show: completed, or stopped by the method."""
    failed: int = 0
    invalid: int = 0
    over: bool = False

    @property
    def counted(self) -> int:
        """Trials that were made and count."""
        return self.made - self.invalid

    @property
    def ended(self) -> int:
        return max(0, self.counted - len(self.live))

    def listens(self, trial: int) -> bool:
        """Whether there is any use in telling this trial something."""
        return self.live.get(trial) is False

    def gives_up(self, wanted: int) -> bool:
        return self.invalid > INVALID_PER_TRIAL * wanted + INVALID_ALWAYS


class Made(msgspec.Struct, frozen=True, tag="made", array_like=True):
    trial: int


class Left(msgspec.Struct, frozen=True, tag="left", array_like=True):
    """They were told to leave."""

    trials: tuple[int, ...]


class Ended(msgspec.Struct, frozen=True, tag="ended", array_like=True):
    trial: int
    how: How


class Revived(msgspec.Struct, frozen=True, tag="revived", array_like=True):
    """An ended trial lives again."""

    trial: int


class Closed(msgspec.Struct, frozen=True, tag="closed", array_like=True):
    """The method has said that the search is over."""


class Reopened(msgspec.Struct, frozen=True, tag="reopened", array_like=True):
    """It is not, after all."""


RollFact = Made | Left | Ended | Revived | Closed | Reopened


def fold_roll(roll: Roll, fact: RollFact) -> Roll:
    replace = msgspec.structs.replace
    match fact:
        case Made(trial):
            return replace(roll, made=roll.made + 1, live={**roll.live, trial: False})
        case Left(trials):
            return replace(roll, live=roll.live | dict.fromkeys(trials, True))
        case Revived(trial):
            return replace(roll, live={**roll.live, trial: False})
        case Ended(trial, how):
            return replace(
                roll,
                live=_without(roll.live, trial),
                useful=roll.useful + (how in (How.COMPLETED, How.STOPPED)),
                failed=roll.failed + (how is How.FAILED),
                invalid=roll.invalid + (how is How.INVALID),
            )
        case Closed():
            return replace(roll, over=True)
        case Reopened():
            return replace(roll, over=False)


def _without(live: dict[int, bool], trial: int) -> dict[int, bool]:
    found = dict(live)
    found.pop(trial, None)
    return found


def verdict(roll: Roll, gave_up: bool = False) -> Over:
    """How a search ended whose trials have all ended."""
    if gave_up:
        return Over(roll.useful == 0, f"{roll.invalid} trials refused their hyperparameters")
    if roll.useful:
        return Over()
    if roll.failed and roll.failed == roll.counted:
        return Over(True, "every trial failed")
    if roll.failed or roll.invalid:
        return Over(
            True, f"no trial came to an end: {roll.failed} failed, {roll.invalid} refused their hyperparameters"
        )
    return Over(False, "every trial was cancelled")


# -- methods made of turns ----------------------------------------------------------------------------------------


class HasRoll(Protocol):
    @property
    def roll(self) -> Roll: ...


S = TypeVar("S", bound=HasRoll)


class Turn(Generic[S]):
    """One decision under way."""

    def __init__(self, state: S, fold: Callable[[S, Any], S]) -> None:
        self.state = state
        self.actions: list[Action] = []
        self._fold = fold

    def remember(self, fact: msgspec.Struct) -> None:
        self.actions.append(Remember(msgspec.msgpack.encode(fact)))
        self.state = self._fold(self.state, fact)

    def do(self, *actions: Action) -> None:
        self.actions += actions

    def leave(self, trial: int, action: Action) -> None:
        """The last thing a trial is told."""
        self.remember(Left((trial,)))
        self.do(action)

    def finish_all(self, trials: Iterable[int]) -> None:
        """Nothing more will be asked of any of these."""
        leaving = tuple(trials)
        if leaving:
            self.remember(Left(leaving))
            self.do(*map(Finish, leaving))

    def close(self, over: Over) -> None:
        if not self.state.roll.over:
            self.remember(Closed())
            self.do(over)


class TurningMethod(ABC, Generic[S]):
    """The part of ``SearchMethod`` that all share."""

    def __init__(self, facts: Any, state: type[S]) -> None:
        self._facts: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(facts)
        self._states: msgspec.msgpack.Decoder[S] = msgspec.msgpack.Decoder(state)

    def decide(self, state: S, event: Event) -> Iterable[Action]:
        """A list: what it refuses it refuses before its first action."""
        turn = Turn(state, self.fold)
        self.turn(turn, event)
        return turn.actions

    def apply(self, state: S, fact: bytes) -> S:
        return self.fold(state, self._facts.decode(fact))

    def dump(self, state: S) -> bytes:
        return msgspec.msgpack.encode(state)

    def load(self, payload: bytes) -> S:
        return self._states.decode(payload)

    @abstractmethod
    def turn(self, turn: Turn[S], event: Event) -> None:
        """What it says to an event: facts and actions, put into the turn."""

    @abstractmethod
    def fold(self, state: S, fact: Any) -> S:
        """The state after one of its facts. Total; knows no policy."""
