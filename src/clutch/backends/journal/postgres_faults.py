"""What PostgreSQL or the network to it says, as our errors. Shared by all who keep tables there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import asyncpg
from sqlalchemy.exc import DBAPIError

from clutch.wire.errors import BadRequest, ClutchError, Corrupt, DiskFull, TooLarge, Unavailable

_FAULTS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


def address_of(url: str) -> str:
    """Where the server is, without the password."""
    parts = urlsplit(url)
    host = parts.hostname or parse_qs(parts.query).get("host", ["localhost"])[0]
    port = f":{parts.port}" if parts.port else ""
    return f"postgresql://{host}{port}{parts.path}"


@contextmanager
def speaking_of(address: str) -> Iterator[None]:
    """Faults inside are raised as our errors.

    Who is cancelled in the middle of a transaction rolls it back, and on a broken connection that fails too. Such a
    fault is still the cancellation: whoever took it for a failed write and went on could never be ended again.
    """
    try:
        yield
    except _FAULTS as error:
        _leave_if_cancelled(error)
        raise translated(error, address) from error
    except DBAPIError as error:
        _leave_if_cancelled(error)
        said = error.orig.__cause__ if error.orig is not None and error.orig.__cause__ is not None else error
        raise translated(said, address) from error


def _leave_if_cancelled(error: Exception) -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from error


def translated(error: BaseException, address: str) -> ClutchError:
    """What the server or the network said, as one of our errors."""
    state = getattr(error, "sqlstate", None) or ""
    if state == "53100":
        return DiskFull(
            "the database's disk is full", object=address, next_step="Free space there; nothing was written."
        )
    if state in ("XX001", "XX002"):
        return Corrupt(
            f"PostgreSQL cannot read its files: {error}",
            object=address,
            next_step="Restore the last backup into an empty database (clutch restore).",
        )
    if state.startswith("54") or state == "22001":
        return TooLarge(f"PostgreSQL says: {error}", object=address, next_step="Keep large bytes in blobs.")
    if state.startswith("22") or isinstance(error, asyncpg.exceptions._base.DataError):
        return BadRequest(f"PostgreSQL cannot store this: {error}", object=address)
    if state[:2] in ("28", "3D"):
        step = "Check user, password and database name in the address."
        return Unavailable(f"PostgreSQL refuses: {error}", object=address, next_step=step)
    words = str(error) or type(error).__name__
    return Unavailable(
        f"PostgreSQL does not answer: {words}",
        object=address,
        next_step="Check that the server runs and can be reached from here.",
    )
