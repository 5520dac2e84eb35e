"""A bracket of successive halving as a value: rungs of results, who trains towards which rung, and the arithmetic.

How far trials may climb is decided elsewhere (``asha`` stops them, ``asha_promotion`` promotes them); here is what both
remember. A rung's entries are sorted, the best first.
"""

from __future__ import annotations

import math

import msgspec

from clutch.workloads.experiment.search.turns import Closed, Ended, Left, Made, Reopened, Revived, Roll, fold_roll

NEARLY = 1e-9
"""Floating-point division may fall a hair short of a whole number; it is not cut down for that."""

# -- arithmetic ---------------------------------------------------------------------------------------------------


def whole(value: float) -> int:
    return math.floor(value + NEARLY)


def halvings(count: float, divisor: float) -> int:
    """How often ``count`` can be divided before it is less than one."""
    times, power = 0, divisor
    while power <= count * (1 + NEARLY):
        times, power = times + 1, power * divisor
    return times


def rung_lengths(rungs: int, max_time: int, divisor: float) -> tuple[int, ...]:
    """The length at each rung, the last is ``max_time``. Rungs at the same length are one."""
    lengths = (max(1, whole(max_time / divisor**above)) for above in reversed(range(rungs)))
    return tuple(dict.fromkeys(lengths))


# -- state --------------------------------------------------------------------------------------------------------


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A trial's result at a rung."""

    value: float
    trial: int
    climbed: bool = False


class Bracket(msgspec.Struct, frozen=True):
    trials: int
    """So many in all, not counting those that refused their hyperparameters."""
    rungs: tuple[tuple[Entry, ...], ...]
    towards: dict[int, int] = {}
    """Trials that train, and the rung they train towards."""
    made: int = 0
    invalid: int = 0
    ended: int = 0

    @property
    def missing(self) -> int:
        return self.trials - (self.made - self.invalid)

    def highest(self, trial: int) -> tuple[int, Entry] | None:
        """The highest rung with a result of a trial."""
        for rung in reversed(range(len(self.rungs))):
            for entry in self.rungs[rung]:
                if entry.trial == trial:
                    return rung, entry
        return None

    def progress(self) -> float:
        """By first results, of which there are many; at the end, by trials that have ended."""
        first = len(self.rungs[0])
        done = first / (1.2 * self.trials)
        return min(1.0, max(done, self.ended / self.trials)) if first >= self.trials else min(1.0, done)


class Halving(msgspec.Struct, frozen=True):
    """The state of a search of one bracket or several."""

    roll: Roll
    brackets: tuple[Bracket, ...]
    home: dict[int, int] = {}
    """In which bracket a live trial is."""


# -- facts --------------------------------------------------------------------------------------------------------


class Joined(msgspec.Struct, frozen=True, tag="joined", array_like=True):
    """A trial was made in a bracket."""

    trial: int
    bracket: int


class Entered(msgspec.Struct, frozen=True, tag="entered", array_like=True):
    """A result took this place in a rung."""

    bracket: int
    rung: int
    place: int
    trial: int
    value: float


class Rested(msgspec.Struct, frozen=True, tag="rested", array_like=True):
    """A trial has done what it was asked and waits."""

    bracket: int
    trial: int


class Climbed(msgspec.Struct, frozen=True, tag="climbed", array_like=True):
    """A trial trains towards this rung."""

    bracket: int
    trial: int
    rung: int


class Erased(msgspec.Struct, frozen=True, tag="erased", array_like=True):
    """All results of a trial at this rung and above are forgotten."""

    bracket: int
    trial: int
    rung: int = 0


class Returned(msgspec.Struct, frozen=True, tag="returned", array_like=True):
    """A trial that had ended is in this bracket again."""

    bracket: int
    trial: int


class Enlarged(msgspec.Struct, frozen=True, tag="enlarged", array_like=True):
    """A bracket has so many trials from now on."""

    bracket: int
    trials: int


Fact = (
    Made | Left | Ended | Revived | Closed | Reopened
    | Joined | Entered | Rested | Climbed | Erased | Returned | Enlarged
)  # fmt: skip


def fold_halving(state: Halving, fact: Fact) -> Halving:
    replace = msgspec.structs.replace
    match fact:
        case Joined(trial, number):
            bracket = state.brackets[number]
            bracket = replace(bracket, made=bracket.made + 1, towards={**bracket.towards, trial: 0})
            roll = fold_roll(state.roll, Made(trial))
            return replace(_put(state, number, bracket), roll=roll, home={**state.home, trial: number})
        case Returned(number, trial):
            bracket = state.brackets[number]
            state = _put(state, number, replace(bracket, ended=max(0, bracket.ended - 1)))
            roll = fold_roll(state.roll, Revived(trial))
            return replace(state, roll=roll, home={**state.home, trial: number})
        case Ended(trial, _):
            number = state.home[trial]
            bracket = state.brackets[number]
            roll = fold_roll(state.roll, fact)
            refused = roll.invalid - state.roll.invalid
            bracket = replace(
                bracket,
                towards=_without(bracket.towards, trial),
                invalid=bracket.invalid + refused,
                ended=bracket.ended + 1 - refused,
            )
            return replace(_put(state, number, bracket), roll=roll, home=_without(state.home, trial))
        case Entered() | Rested() | Climbed() | Erased() | Enlarged():
            return _put(state, fact.bracket, _fold_bracket(state.brackets[fact.bracket], fact))
        case _:
            return replace(state, roll=fold_roll(state.roll, fact))


def _fold_bracket(bracket: Bracket, fact: Entered | Rested | Climbed | Erased | Enlarged) -> Bracket:
    replace = msgspec.structs.replace
    match fact:
        case Entered(_, rung, place, trial, value):
            entries = bracket.rungs[rung]
            entered = (*entries[:place], Entry(value, trial), *entries[place:])
            return replace(bracket, rungs=_swap(bracket.rungs, rung, entered))
        case Rested(_, trial):
            return replace(bracket, towards=_without(bracket.towards, trial))
        case Climbed(_, trial, rung):
            rungs = bracket.rungs
            if rung:
                rungs = _swap(rungs, rung - 1, _marked(rungs[rung - 1], trial))
            return replace(bracket, rungs=rungs, towards={**bracket.towards, trial: rung})
        case Erased(_, trial, rung):
            kept = tuple(
                tuple(entry for entry in entries if number < rung or entry.trial != trial)
                for number, entries in enumerate(bracket.rungs)
            )
            return replace(bracket, rungs=kept)
        case Enlarged(_, trials):
            return replace(bracket, trials=trials)


def _put(state: Halving, number: int, bracket: Bracket) -> Halving:
    brackets = (*state.brackets[:number], bracket, *state.brackets[number + 1 :])
    return msgspec.structs.replace(state, brackets=brackets)


def _swap(rungs: tuple[tuple[Entry, ...], ...], rung: int, entries: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], ...]:
    return (*rungs[:rung], entries, *rungs[rung + 1 :])


def _marked(entries: tuple[Entry, ...], trial: int) -> tuple[Entry, ...]:
    """With the entry of a trial marked as climbed."""
    for place, entry in enumerate(entries):
        if entry.trial == trial:
            return (*entries[:place], Entry(entry.value, trial, True), *entries[place + 1 :])
    return entries


def _without(mapping: dict[int, int], trial: int) -> dict[int, int]:
    found = dict(mapping)
    found.pop(trial, None)
    return found
