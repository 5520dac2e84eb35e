"""Every failure as an ``ErrorView`` and a status: ours as they are, litestar's in our words, bugs without details."""

from __future__ import annotations

from typing import Any

from litestar import Response
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, MethodNotAllowedException, ValidationException

from clutch.wire.errors import (
    BadConfig,
    BadRequest,
    BugError,
    ClutchError,
    ErrorView,
    IllegalMove,
    NotFound,
    Problem,
    ProblemsView,
    TooLarge,
)

CLOSE_CODES = 4000
"""A WebSocket that is closed for an error says 4000 and the status."""
REASON_MAX_BYTES = 120
"""What a WebSocket's close frame can carry of a reason."""
WORDS_MAX = 1_000


def clean(text: str) -> str:
    """Text that any encoder takes: lone surrogates of a hostile request become question marks."""
    return text.encode("utf-8", "replace").decode()[:WORDS_MAX]


def explain(error: Exception, subject: str = "") -> tuple[int, ErrorView]:
    """The status and the words with which an exception is answered. ``subject`` is what was asked for."""
    if isinstance(error, ClutchError):
        view = error.view()
        if isinstance(error, IllegalMove) and error.story:
            view = ErrorView(view.code, f"{view.cause}: {'; '.join(error.story)}", view.object, view.next_step)
        return error.status, _cleaned(view)
    if isinstance(error, HTTPException):
        return _litestars(error, clean(subject))
    if isinstance(error, RecursionError):  # only a body can be as deep as it likes
        return 400, BadRequest("it is nested too deeply", object=clean(subject)).view()
    bug = BugError(
        "this is a bug of Clutch",
        object=clean(subject),
        next_step="Report it with the request id of this answer and the master's log.",
    )
    return bug.status, bug.view()


def _cleaned(view: ErrorView) -> ErrorView:
    if isinstance(view, ProblemsView) and view.problems:
        # each is bounded, not all of them together: whoever has ten mistakes is told ten
        problems = tuple(Problem(clean(one.path), clean(one.problem), clean(one.hint)) for one in view.problems)
        return BadConfig(
            object=clean(view.object), next_step=clean(view.next_step), path=clean(view.path), problems=problems
        ).view()
    return ErrorView(view.code, clean(view.cause), clean(view.object), clean(view.next_step), clean(view.path))


def _litestars(error: HTTPException, subject: str) -> tuple[int, ErrorView]:
    if isinstance(error, ValidationException):
        return 400, _validation(error, subject).view()
    if isinstance(error, MethodNotAllowedException):
        cause = "this path does not take that method"
        return 405, BadRequest(cause, object=subject, next_step="See /docs for what it takes.").view()
    if error.status_code == 404:
        return 404, NotFound("there is no such path", object=subject, next_step="See /docs for what there is.").view()
    if error.status_code == 413:
        step = "Send less at once; large files go to PUT /api/v1/code."
        return 413, TooLarge("the body is larger than this path takes", object=subject, next_step=step).view()
    if error.status_code < 500:
        return error.status_code, BadRequest(clean(error.detail) or "it is malformed", object=subject).view()
    return explain(RuntimeError(), subject)


def _validation(error: ValidationException, subject: str) -> BadRequest:
    """Litestar's list of what is wrong: the first with its path, the others named behind it."""
    extra: Any = error.extra
    if not isinstance(extra, list) or not extra:
        return BadRequest(clean(error.detail), object=subject)
    wrong = [(clean(str(each.get("key", ""))), clean(str(each.get("message", "it is malformed")))) for each in extra]
    path, cause = wrong[0]
    path = "" if path == "data" else path  # litestar's name for the whole body
    if wrong[1:]:
        cause = f"{cause}; and also {'; '.join(f'{p}: {c}' for p, c in wrong[1:])}"
    return BadRequest(clean(cause), object=subject, path=path, next_step="See /docs for what this takes.")


def subject_of(scope: Any) -> str:
    return f"{scope.get('method', 'WEBSOCKET')} {scope.get('path', '')}"


def answer_error(connection: ASGIConnection[Any, Any, Any, Any], error: Exception) -> Response[Any]:
    """What litestar sends when something was raised."""
    status, view = explain(error, subject_of(connection.scope))
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException) and error.headers:
        headers = dict(error.headers)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        headers["Retry-After"] = "1"
    return Response(view, status_code=status, headers=headers, media_type="application/json")
