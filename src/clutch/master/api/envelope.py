"""What surrounds every request: its id, whether this master may answer at all, the audit, the log and the count.

It sits around the whole app, so that what the router itself refuses passes here too. Nothing is sent to a caller
before the audit of a change is recorded, nor anything of a handler that forgot to ask about a workspace.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import traceback
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import msgspec
import structlog

from clutch.master.access.caller import Caller
from clutch.master.api.errors import CLOSE_CODES, REASON_MAX_BYTES, clean, explain, subject_of
from clutch.master.api.guard import READING, forgotten
from clutch.master.prometheus import Traffic
from clutch.master.services import Services
from clutch.wire.access import AuditEntry, CallerKind
from clutch.wire.errors import BrokenInvariant, ClutchError, NotLeader, Unavailable

Message = Any
Scope = Any
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

ENDING = Unavailable("this master ends", object="master", next_step="Ask again in a moment.")
HEALTH_PATH = "/health"
REQUEST_ID_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def note_failure(error: Exception, scope: Scope) -> None:
    """Keeps what was raised where the envelope finds it; litestar itself only says that something was."""
    scope["state"]["failure"] = error


class Envelope:
    """Around one app."""

    def __init__(self, services: Services, traffic: Traffic) -> None:
        self.services = services
        self.traffic = traffic
        self.log = structlog.get_logger("http")
        self._under_way: dict[Exchange, asyncio.Task[Any]] = {}

    async def carry(self, app: AsgiApp, scope: Scope, receive: Any, send: Send) -> None:
        """One request or WebSocket, from its first byte to its last."""
        scope.setdefault("state", {})
        exchange = Exchange(self, scope, send)
        refused = self.not_now(scope["path"])
        began = perf_counter()
        try:
            if refused is not None:
                await exchange.refuse(refused)
            else:
                await self._answer(exchange, app(scope, receive, exchange.send))
        finally:
            exchange.note(perf_counter() - began)

    async def _answer(self, exchange: Exchange, answering: Awaitable[None]) -> None:
        """Answered by the app; or, where that would go on for ever, by us when this master ends."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way[exchange] = task
        try:
            await answering
        except asyncio.CancelledError:
            if not exchange.is_cut:
                raise
            task.uncancel()
            await exchange.refuse(ENDING)
        finally:
            del self._under_way[exchange]

    def cut_short(self) -> None:
        """This master ends: whoever still waits for something to happen is told so, instead of an answer."""
        for exchange, task in self._under_way.items():
            if not exchange.opened and not exchange.is_cut:
                exchange.is_cut = True
                task.cancel()

    def not_now(self, path: str) -> ClutchError | None:
        """Why this master answers nothing but its health now, if so."""
        if path == HEALTH_PATH:
            return None
        if self.services.stopping.is_set():
            return ENDING
        if not self.services.loop.serving.is_set():
            return NotLeader(
                "this master does not lead: it waits to, or is just starting",
                object="master",
                next_step="Ask another address of the cluster, or this one again in a moment.",
            )
        return None


class Exchange:
    """One request or WebSocket on its way through."""

    def __init__(self, envelope: Envelope, scope: Scope, send: Send) -> None:
        self.envelope = envelope
        self.scope = scope
        self.forward = send
        self.id = _request_id(scope)
        scope["state"]["request_id"] = self.id
        self.status = 0
        self.opened = False
        self.muted = False
        self.is_cut = False

    @property
    def caller(self) -> Caller | None:
        found: Caller | None = self.scope["state"].get("caller")
        return found

    @property
    def failure(self) -> Exception | None:
        found: Exception | None = self.scope["state"].get("failure")
        return found

    @property
    def operation(self) -> str:
        handler = self.scope.get("route_handler")
        return str(getattr(handler, "operation_id", None) or getattr(handler, "handler_name", "") or "unknown")

    async def send(self, message: Message) -> None:
        """Sends on what the app sends, unless it should not have come to that."""
        if self.muted:
            return
        kind = message["type"]
        if kind in ("http.response.start", "websocket.accept"):
            await self._open(message)
        elif kind == "websocket.close":
            await self._close(message)
        else:
            await self.forward(message)

    async def _open(self, message: Message) -> None:
        status = message.get("status", 101)
        if status < 400 and forgotten(self.caller):
            self.muted = True
            bug = BrokenInvariant("its handler did not ask about a workspace", object=f"route {self.operation}")
            note_failure(bug, self.scope)
            await self._audit(bug.status)
            await self.refuse(bug)
            return
        self.status, self.opened = status, True
        await self._audit(status)
        headers = [*message.get("headers", []), (REQUEST_ID_HEADER, self.id.encode())]
        if message["type"] == "http.response.start":
            headers.append((b"x-content-type-options", b"nosniff"))
            if all(name.lower() != b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
        await self.forward({**message, "headers": headers})

    async def _close(self, message: Message) -> None:
        if self.failure is None:
            await self.forward(message)
        elif self.opened:
            status, view = explain(self.failure, subject_of(self.scope))
            reason = f"{view.code}: {view.cause}".encode()[:REASON_MAX_BYTES].decode(errors="ignore")
            await self.forward({"type": "websocket.close", "code": CLOSE_CODES + status, "reason": reason})
        else:
            await self.refuse(self.failure)

    async def refuse(self, error: Exception) -> None:
        """Answer with an error from here, to a request or to a WebSocket that was not accepted."""
        self.muted = True
        status, view = explain(error, subject_of(self.scope))
        self.status = status
        socket = self.scope["type"] == "websocket"
        if socket and "websocket.http.response" not in self.scope.get("extensions", {}):
            await self.forward({"type": "websocket.close", "code": CLOSE_CODES + status, "reason": view.code})
            return
        body = msgspec.json.encode(view)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (REQUEST_ID_HEADER, self.id.encode()),
        ]
        if status in (421, 503):
            headers.append((b"retry-after", b"1"))
        prefix = "websocket.http" if socket else "http"
        await self.forward({"type": f"{prefix}.response.start", "status": status, "headers": headers})
        await self.forward({"type": f"{prefix}.response.body", "body": body})

    async def _audit(self, status: int) -> None:
        """A change somebody asked for, whether it was allowed or not, is on record before they hear of it."""
        caller = self.caller
        changes = self.scope.get("method", "GET") not in READING
        if not changes or caller is None or caller.kind is CallerKind.TASK:
            return
        handler = self.scope.get("route_handler")
        if handler is not None and handler.opt.get("audit") is False:
            return
        failure = self.failure
        entry = AuditEntry(
            at=self.envelope.services.clock.now(),
            who=str(caller),
            action=self.operation,
            object=clean(self.scope["path"]),
            status=status,
            detail=explain(failure)[1].cause if failure is not None else "",
        )
        try:
            await self.envelope.services.access.record(entry)
        except ClutchError as error:
            self.envelope.log.error("audit failed", id=self.id, entry=msgspec.to_builtins(entry), error=str(error))

    def note(self, took_s: float) -> None:
        """The log's line and the count of it."""
        socket = self.scope["type"] == "websocket"
        self.envelope.traffic.count(self.operation, self.status, 0.0 if socket else took_s)
        failure, log = self.failure, self.envelope.log
        said: dict[str, Any] = {
            "id": self.id,
            "method": self.scope.get("method", "WEBSOCKET"),
            "path": clean(self.scope["path"]),
            "status": self.status,
            "who": str(self.caller) if self.caller is not None else "",
            "took_ms": round(took_s * 1000, 1),
        }
        if self.status >= 500 and failure is not None and not _is_clusters(failure):
            # As text: a renderer that shows local variables would show tokens
            log.error("request", **said, trace="".join(traceback.format_exception(failure)))
        elif self.status >= 400:
            log.info("request", **said, error=str(failure) if failure is not None else "")
        elif said["method"] in READING:
            log.debug("request", **said)
        else:
            log.info("request", **said)


def _is_clusters(error: Exception) -> bool:
    """Whether somebody else is to blame, so that no trace of ours helps."""
    return isinstance(error, ClutchError) and error.blame == "cluster"


def _request_id(scope: Scope) -> str:
    for name, value in scope.get("headers", []):
        if name.lower() == REQUEST_ID_HEADER:
            given = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(given):
                return str(given)
    return secrets.token_hex(8)
