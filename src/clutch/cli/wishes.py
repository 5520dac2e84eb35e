"""How a user wanted this machine's cluster to be: kept in its folder, so that ``clutch up`` makes it so again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from clutch.cli.home import write_private
from clutch.wire.errors import ClutchError

FILE = "up.json"


class UpWish(msgspec.Struct, frozen=True, kw_only=True):
    agents: int = 1
    artificial_slots: int = 0
    port: int = 0
    join: bool = False
    join_host: str = ""
    db: str = ""


@contextmanager
def forgotten_if_it_fails(folder: Path) -> Iterator[None]:
    """What was asked inside is not kept if it led to an error: the next ``clutch up`` does not repeat it."""
    path = folder / FILE
    before = path.read_text() if path.exists() else None
    try:
        yield
    except ClutchError:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            write_private(path, before)
        raise


def remembered(folder: Path, asked: dict[str, Any]) -> UpWish:
    """What is asked now over what was asked before, and kept for the next time. None asks nothing."""
    try:
        before = msgspec.json.decode((folder / FILE).read_bytes(), type=UpWish)
    except (OSError, msgspec.MsgspecError):
        before = UpWish()
    wish = msgspec.structs.replace(before, **{name: value for name, value in asked.items() if value is not None})
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(folder / FILE, msgspec.json.encode(wish).decode())  # private: an address may hold a password
    return wish
