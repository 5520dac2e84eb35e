"""From an address to a journal: ``memory:``, ``sqlite:///file`` or a plain path, ``postgresql://...``."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from clutch.backends.journal.base import FullJournal
from clutch.backends.journal.memory import MemoryJournal, MemoryStore
from clutch.wire.errors import BadRequest, NotFound

_KNOWN = "Use memory:, sqlite:///FILE, a path, or postgresql://USER:PASSWORD@HOST/DATABASE."


async def open_journal(url: str, *, must_exist: bool = False) -> FullJournal:
    """The journal at this address, created (unless it must exist) or brought to this release's schema if need be.

    ``sqlite:///FILE`` is relative to the working folder and ``sqlite:////FILE`` absolute, as everywhere.
    """
    scheme, colon, rest = url.partition(":")
    if not url:
        raise BadRequest("the journal's address is empty", object="journal", next_step=_KNOWN)
    if url == "memory:":
        return MemoryJournal(MemoryStore(time.time))
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        return await _open_postgres(url)
    if scheme == "sqlite" and colon:
        if not rest.startswith("///") or len(rest) == 3:
            raise BadRequest("no file in the journal's address", object=url, next_step=_KNOWN)
        return await _open_sqlite(Path(rest[3:]), must_exist)
    if "://" in url:
        raise BadRequest(f"there is no way to keep a journal in {scheme!r}", object=scheme, next_step=_KNOWN)
    return await _open_sqlite(Path(url), must_exist)


async def _open_sqlite(path: Path, must_exist: bool) -> FullJournal:
    from clutch.backends.journal.sqlite import SqliteJournal

    if must_exist and not await asyncio.to_thread(path.exists):
        raise NotFound("there is no journal in this file", object=str(path), next_step="Look for its path again.")
    return await SqliteJournal.open(path)


async def _open_postgres(url: str) -> FullJournal:
    try:
        from clutch.backends.journal.postgres import PostgresJournal
    except ModuleNotFoundError as missing:
        raise BadRequest(
            f"the PostgreSQL driver is not installed ({missing.name})",
            object="journal",
            next_step="Run: pip install 'clutch[postgres]'.",
        ) from missing

    return await PostgresJournal.open(url)
