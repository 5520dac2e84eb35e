"""One question to a master as a value, and what its answer means. Pure: who performs it is another matter.

Every operation of the API is a function in ``calls`` or ``access_calls`` that gives a ``Call``; both clients perform
them in the same way, because everything that could differ is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from clutch.wire import errors
from clutch.wire.api import API
from clutch.wire.errors import (
    BugError,
    ClusterError,
    ClutchError,
    Corrupt,
    ErrorView,
    IllegalMove,
    NotLeader,
    UserError,
)

T = TypeVar("T")
ANSWER_S = 30.0
"""How long a master may take to answer; longer for what it says itself to take longer."""
JSON = "application/json"


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """``answer`` is the type the body is decoded to; None for an answer without one."""

    method: str
    path: str
    answer: Any = None
    query: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    repeatable: bool = False
    """Asking twice is the same as asking once: it may be sent again when nobody knows whether it arrived."""
    answer_s: float = ANSWER_S

    @property
    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


def path(*parts: str) -> str:
    """A path of the API, each part quoted whole: an id with a slash or a question mark stays one part."""
    return "/".join((API, *(quote(part, safe=":@") for part in parts)))


def pairs(fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Query parameters: None and empty ones are left out, lists are repeated, flags are ``true`` or left out."""
    found: list[tuple[str, str]] = []
    for name, value in fields.items():
        values = value if isinstance(value, list | tuple) else (value,)
        found += [(name, _text(one)) for one in values if one is not None and one is not False and one != ""]
    return tuple(found)


def _text(value: Any) -> str:
    if value is True:
        return "true"
    if isinstance(value, Enum):
        return str(value.value)
    return repr(value) if isinstance(value, float) else str(value)


def get(parts: Iterable[str], answer: type[T], query: Mapping[str, Any] | None = None) -> Call[T]:
    return Call(method="GET", path=path(*parts), answer=answer, query=pairs(query or {}), repeatable=True)


def put(parts: Iterable[str], answer: type[T], body: Any) -> Call[T]:
    return Call(method="PUT", path=path(*parts), answer=answer, body=msgspec.json.encode(body), repeatable=True)


def post(parts: Iterable[str], answer: type[T], body: Any = None, *, repeatable: bool = False) -> Call[T]:
    data = msgspec.json.encode(body) if body is not None else b""
    return Call(method="POST", path=path(*parts), answer=answer, body=data, repeatable=repeatable)


def patch(parts: Iterable[str], answer: type[T], body: Any) -> Call[T]:
    return Call(method="PATCH", path=path(*parts), answer=answer, body=msgspec.json.encode(body), repeatable=True)


def delete(parts: Iterable[str], query: Mapping[str, Any] | None = None) -> Call[None]:
    return Call(method="DELETE", path=path(*parts), query=pairs(query or {}), repeatable=True)


# -- what came back -----------------------------------------------------------------------------------------------


def decode(call: Call[T], status: int, body: bytes) -> T:
    """The answer of a call, or the error it stands for, raised as the class the master raised."""
    if status >= 400:
        raise rebuild(status, body, call)
    if call.answer is None:
        return None  # type: ignore[return-value]  # a call without an answer is a Call[None]
    try:
        found: T = msgspec.json.decode(body, type=call.answer, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the answer is not one of a Clutch master of this release: {error}",
            object=f"{call.method} {call.path}",
            next_step="Is it the address of a master? 'clutch doctor' compares the releases.",
        ) from None
    return found


def _tree(root: type[ClutchError]) -> dict[str, type[ClutchError]]:
    return {kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, root)}


ERRORS = _tree(ClutchError)
BY_STATUS: dict[int, type[ClutchError]] = {
    400: errors.BadRequest,
    401: errors.NotAuthenticated,
    403: errors.NotAllowed,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.TooLarge,
    421: NotLeader,
    503: errors.Unavailable,
    504: errors.TimedOut,
}
"""For answers without a body (HEAD), and for those of something between us and the master."""


def rebuild(status: int, body: bytes, call: Call[Any]) -> ClutchError:
    """The error that an answer stands for, of the class it was raised as; what is no ``ErrorView`` by its status."""
    try:
        view = msgspec.json.decode(body, type=ErrorView)
    except (msgspec.DecodeError, UnicodeDecodeError):
        kind = BY_STATUS.get(status, UserError if status < 500 else ClusterError)
        words = body[:200].decode(errors="replace").strip()
        return kind(f"status {status}{': ' + words if words else ''}", object=f"{call.method} {call.path}")
    found = ERRORS.get(view.code, UserError if status < 500 else BugError)
    if issubclass(found, IllegalMove | NotLeader):
        return found(view.cause, object=view.object, next_step=view.next_step)
    return found(view.cause, object=view.object, next_step=view.next_step, path=view.path)
