"""A launcher in the program's own code: found, made, asked, and its answer checked.

It runs inside boot, so whatever it does wrong must end as one sentence: that it cannot be imported, that it raised,
that it answered with something else than a ``Launch``, that it did not come back in time.
"""

from __future__ import annotations

import importlib
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from clutch.runtime.launch.base import Launch, supervisor_words
from clutch.runtime.launch.world import world_of, world_variables
from clutch.wire.errors import BadRequest
from clutch.wire.programs import OwnLaunch
from clutch.wire.push import Roster

if TYPE_CHECKING:
    from collections.abc import Iterator

WITHIN_S = 60
ABSENT = ("ssl", "typing_extensions")
"""Modules that boot does without, to be quick; somebody else's code may want them."""

OURS = ("CLUTCH_LAST_WORDS", "CLUTCH_HELD")
"""What the process around the launcher needs, whatever environment the launcher is given."""


class Own:
    """``launch: {class: "module:Class"}``."""

    def __init__(self, said: OwnLaunch, folder: str, within_s: int = WITHIN_S) -> None:
        self._said = said
        self._folder = folder
        self._within_s = within_s

    def launch(self, argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None) -> Launch:
        said = self._said
        if roster is not None:
            world = world_of(roster, said.processes, oversubscribe=said.oversubscribe)
            environment = {**environment, **world_variables(roster, world)}
        with _deadline(said.spot, self._within_s):
            found = self._ask(argv, environment, roster)
        launch = _checked(found, said.spot)
        ours = {name: environment[name] for name in OURS if name in environment}
        around = supervisor_words("around", {"grace": f"{said.grace_s:g}"})
        return Launch((*around, *launch.argv), {**launch.environment, **ours})

    def _ask(self, argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None) -> Any:
        spot = self._said.spot
        module, _, name = spot.partition(":")
        for absent in ABSENT:
            if sys.modules.get(absent, ...) is None:
                del sys.modules[absent]
        sys.path.insert(0, self._folder)
        try:
            kind = getattr(importlib.import_module(module), name)
        except (_Late, BadRequest):
            raise
        except BaseException as error:  # whatever a module does when it is imported
            raise _refused(spot, f"it cannot be imported: {_words(error)}", "Put it into the code.") from error
        try:
            return kind(**self._said.options).launch(argv, dict(environment), roster)
        except (_Late, BadRequest):
            raise
        except BaseException as error:
            raise _refused(spot, f"it raised {_words(error)}", "Mend it.") from error


class _Late(BaseException):
    """Not an error that somebody's code may catch by accident."""


@contextmanager
def _deadline(spot: str, within_s: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(within_s)
    try:
        yield
    except _Late:
        raise _refused(spot, f"it did not answer within {within_s} s", "It says what to execute, no more.") from None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _checked(found: Any, spot: str) -> Launch:
    """``Launch``, or anything with the same two fields."""
    try:
        argv, environment = found.argv, found.environment
        launch = msgspec.convert({"argv": list(argv), "environment": dict(environment)}, Launch)
    except (AttributeError, TypeError, ValueError) as error:
        kind = type(found).__name__
        problem = f"launch() answered with {kind}, not with argv (words) and environment (text by name): {error}"
        raise _refused(spot, problem, "Return clutch.runtime.launch.base.Launch(argv, environment).") from error
    if not launch.argv or not launch.argv[0]:
        raise _refused(spot, "launch() answered without a command", "Return Launch((PROGRAM, ...), environment).")
    bad = [name for name, value in launch.environment.items() if not name or "=" in name or "\0" in name + value]
    if bad or any("\0" in word for word in launch.argv):
        raise _refused(spot, f"launch() answered with what no process can have: {(bad or ['argv'])[0]!a}", "Mend it.")
    return launch


def _refused(spot: str, cause: str, step: str) -> BadRequest:
    return BadRequest(cause, object=f"launcher {spot}", next_step=step)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
