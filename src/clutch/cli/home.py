"""Where a user's own cluster lives, and how to find it again: one folder, one lock, one file that says where it is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from clutch.wire.errors import Conflict

ENDPOINT, LOCK, LOG, DRAINED = "endpoint.json", "up.lock", "up.log", "drained.json"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How programs of the same user reach the cluster in this folder."""

    url: str
    token_file: str
    ca_file: str = ""
    pid: int = 0


def home() -> Path:
    """``$XDG_DATA_HOME/clutch``, else ``~/.local/share/clutch``."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "clutch"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def read_endpoint(data: Path) -> Endpoint | None:
    try:
        return msgspec.json.decode((data / ENDPOINT).read_bytes(), type=Endpoint)
    except (OSError, msgspec.MsgspecError):
        return None


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
