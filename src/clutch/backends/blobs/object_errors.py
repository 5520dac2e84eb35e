"""What an object store says, as errors of ours. Its texts are shortened, and never hold a key or a signature."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore import exceptions

from clutch.wire.errors import BadRequest, ClutchError, Conflict, DiskFull, NotAllowed, NotFound, Unavailable

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_FULL = re.compile(
    r"status code: 507\b|\b507 Insufficient|InsufficientStorage|QuotaExceeded|no space left|no free volumes"
    r"|not enough space",
    re.I,
)
_FORBIDDEN = ("401", "403")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


class OutOfRange(Exception):
    """The object is shorter than the range that was asked for."""


@contextmanager
def typed(where: str, subject: str) -> Iterator[None]:
    """Errors of the client library about ``subject``, which is kept at ``where``."""
    try:
        yield
    except exceptions.BaseError as error:
        raise translated(error, where, subject) from error
    except FileNotFoundError as error:
        if any(name in str(error) for name in _NO_BUCKET):
            raise no_bucket(where) from error
        raise NotFound("there is no such blob", object=subject, next_step="List the keys.") from error
    except OSError as error:
        raise Unavailable(str(error)[:200], object=subject, next_step="Try again.") from error


def no_bucket(where: str) -> NotFound:
    return NotFound("there is no such bucket", object=where, next_step="Create it, or correct the address.")


def translated(error: Exception, where: str, subject: str) -> ClutchError | OutOfRange:
    text = str(error)
    code, status = _CODE.search(text), _STATUS.search(text)
    said = code[1] if code else _first_words(text)
    number = status[1] if status else ""
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return Conflict("it exists already", object=subject, next_step="Use it, or another key.")
    refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if refused or number in _FORBIDDEN:
        return NotAllowed(
            f"the store refuses these credentials ({said})",
            object=where,
            next_step="Correct the key and its secret, or give them the right to read, write, list and delete.",
        )
    if said in _NO_BUCKET:
        return no_bucket(where)
    if number == "416" or "bytes 0--1/0" in text:  # so says Azurite about an empty object
        return OutOfRange(text)
    if _FULL.search(text):
        return DiskFull(said, object=where, next_step="Make room in the store; nothing was changed.")
    if isinstance(error, exceptions.NotSupportedError | exceptions.InvalidPathError):
        return BadRequest(said, object=subject, next_step="Use another store or key.")
    return Unavailable(
        f"the store does not answer as it should: {said}",
        object=where,
        next_step="See whether it runs and can be reached; the call may be repeated.",
    )


def _first_words(text: str) -> str:
    """The last cause of the first line, which says what happened without the address and its parameters."""
    line = text.partition("\n")[0]
    return line.rpartition(" - ")[2][:200] or "no reason given"
