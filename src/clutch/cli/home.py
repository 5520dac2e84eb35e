"""Where a user's own cluster lives, and how to find it again: one folder, one lock, one file that says where it is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from clutch.sdk.where import data_folder
from clutch.wire.errors import Conflict

LOCK, LOG, DRAINED = "up.lock", "up.log", "drained"


def home() -> Path:
    """The user's data folder for Clutch: ``$XDG_DATA_HOME/clutch``, else ``~/.local/share/clutch``."""
    return data_folder(os.environ)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextlib.contextmanager
def holding(data: Path) -> Iterator[None]:
    """While this lasts, no other ``clutch up`` runs on this folder."""
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (data / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "a cluster already runs from this folder", object=str(data), next_step="See it with 'clutch ps'."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_up(data: Path) -> bool:
    """Whether a cluster runs from this folder now. Asks the lock, so a dead one's files deceive nobody."""
    try:
        with (data / LOCK).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
