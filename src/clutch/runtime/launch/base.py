"""The contract of launchers: from the command a user wrote to what is executed, knowing who the peers are.

A launcher that starts several processes in a member puts ``rank_words()`` before the command of each of them: what a
rank prints is then marked with its number, and how it failed is told to the master.
"""

from __future__ import annotations

import sys
from typing import Protocol

import msgspec

from clutch.wire.push import Roster

_START = (
    "import sys; sys.modules['typing_extensions'] = None; "  # msgspec would load it, with much more
    "sys.path[1:1] = sys.argv[1].split(':'); "
    "from clutch.runtime.launch.supervisor_main import main; main(sys.argv[2:])"
)
_FOLDERS = ":".join(folder for folder in sys.path if folder.startswith("/") and ":" not in folder)
"""Where our packages are, as of before a launcher of the user's own may have added its folder: a file ``select.py`` of
the program must not take the place of Python's."""
_SUPERVISOR = (sys.executable, "-I", "-c", _START, _FOLDERS)


class Launch(msgspec.Struct, frozen=True):
    """What replaces this process. ``environment`` is everything it sees."""

    argv: tuple[str, ...]
    environment: dict[str, str]


class Launcher(Protocol):
    """Pure: it says what to execute and executes nothing."""

    def launch(self, argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None) -> Launch:
        """``roster`` is None for a member that did not have to meet anybody."""
        ...


def supervisor_words(way: str, options: dict[str, str | None]) -> tuple[str, ...]:
    """The process over all ranks of a member; the command or the launcher follows. Its options: a name that has None
    for a value stands alone."""
    said = [word for name, value in options.items() for word in (f"--{name}", value) if word is not None]
    return (*_SUPERVISOR, way, *said, "--")


def rank_words() -> tuple[str, ...]:
    """What a launcher puts before the command of one rank, whose number is in ``RANK`` (or what MPI and Slurm say)."""
    return (*_SUPERVISOR, "one")
