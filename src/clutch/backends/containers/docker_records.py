"""What a keeper writes into its member's directory for others, and finds there from keepers before it.

``started`` and ``exit`` are a shim's records: nobody who reads them need know which of the two wrote them. ``keeping``
is for the next keeper, ``doing`` for people. Whoever waits at the wake FIFO is told of all but ``keeping``.

It decides nothing and speaks to no engine. Standard library only; the working directory is the member's.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

KEEPING, DOING = "keeping", "doing"
Fields = list[tuple[str, str]]


class Records:
    """Of one member's directory."""

    def __init__(self, tools: ModuleType) -> None:
        self._tools = tools
        self._said, self._said_at = "", 0.0
        self.boot = tools.boot_id()

    # -- from keepers before this one ----------------------------------------------------------------------------

    def read(self, name: str) -> Fields:
        """A record's fields; none if there is no whole one."""
        path = Path(name)
        fields = self._tools.unpack(path.read_bytes()) if path.exists() else None
        return [(key, os.fsdecode(value)) for key, value in fields or []]

    def started_before(self) -> Fields:
        return self.read(self._tools.STARTED)

    def rebooted(self) -> bool:
        """Whether the machine was started again since this directory was made."""
        boots = {dict(self.read(name)).get("boot", "") for name in (self._tools.STARTED, self._tools.SPEC)} - {""}
        return bool(boots) and self.boot not in boots

    # -- for others ----------------------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Disk for the exit record, from the start."""
        fd = os.open(self._tools.RESERVE, os.O_WRONLY | os.O_CREAT, 0o600)
        os.posix_fallocate(fd, 0, self._tools.RESERVE_BYTES)
        os.close(fd)

    def keep(self, fields: Fields) -> None:
        self._tools.write_record(".", KEEPING, _packed(fields), durable=False)

    def started(self, fields: Fields) -> None:
        self._tools.write_record(".", self._tools.STARTED, _packed(fields), durable=False)
        self.wake(b"s")

    def exit(self, fields: Fields, spool: object) -> None:
        """Safe when this returns. ``spool`` gives way to it on a full disk."""
        self._tools.write_exit(spool, _packed(fields))
        self.wake(b"s")
        Path(self._tools.RESERVE).unlink(missing_ok=True)
        self._tools.sync_folder(".")

    def say(self, text: str, every_s: float = 0.0) -> None:
        """What is being done now, in words a user may read; a new word at most so often."""
        if text == self._said or time.monotonic() - self._said_at < every_s:
            return
        self._said, self._said_at = text, time.monotonic()
        aside = Path(f".{DOING}")
        aside.write_text(text)
        aside.replace(DOING)
        self.wake(b"s")

    def wake(self, what: bytes) -> None:
        with suppress(BlockingIOError):  # nobody listens, or they have enough to read already
            os.write(self._tools.WAKE_FD, what)


def _packed(fields: Fields) -> list[tuple[str, bytes]]:
    return [(name, os.fsencode(value)) for name, value in fields]
