"""The contract of launchers: from the command a user wrote to what is executed, knowing who the peers are."""

from __future__ import annotations

from typing import Protocol

import msgspec

from clutch.wire.push import Roster


class Launch(msgspec.Struct, frozen=True):
    """What replaces this process. ``environment`` is everything it sees."""

    argv: tuple[str, ...]
    environment: dict[str, str]


class Launcher(Protocol):
    """Pure: it says what to execute and executes nothing."""

    def launch(self, argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None) -> Launch:
        """``roster`` is None for a member that did not have to meet anybody."""
        ...
