"""The file of last words, written and read by the processes of one member."""

from __future__ import annotations

import os
from contextlib import suppress

BYTES_MAX = 4096


def keep(path: str, said: str) -> None:
    """Nothing to write to is no reason to fail: what is said is on standard error as well."""
    if not path:
        return
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, said.encode("utf-8", "replace"))
        finally:
            os.close(fd)


def found(path: str) -> str:
    """One line; empty: nothing was left."""
    if not path:
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return " ".join(os.read(fd, BYTES_MAX).decode("utf-8", "replace").split())
    except OSError:
        return ""
    finally:
        os.close(fd)
