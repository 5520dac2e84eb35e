"""An error that was answered over HTTP, as the very type it was raised as."""

from __future__ import annotations

import msgspec

from clutch.wire import errors
from clutch.wire.errors import ClutchError, ErrorView, Unavailable

_BY_CODE: dict[str, type[ClutchError]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ClutchError)
}


def error_said(status: int, body: bytes, subject: str) -> ClutchError:
    """The error in an answer about ``subject``. What is no answer of ours is ``Unavailable``."""
    try:
        view = msgspec.json.decode(body, type=ErrorView)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = body[:200].decode("utf-8", "replace").strip()
        return Unavailable(f"it answered {status} {said}".rstrip(), object=subject, next_step="Is this a master?")
    error = _BY_CODE.get(view.code, Unavailable)(view.cause, object=view.object or subject, next_step=view.next_step)
    error.path = view.path
    return error
