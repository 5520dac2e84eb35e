"""HTTP to the masters with nothing but the standard library, for processes that must start quickly.

One connection is kept alive and used by one thread at a time. Whichever address does not answer, does not lead or has
no time is followed by the next, until the call's own deadline; everything said here may be said twice.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from clutch.wire.errors import BadRequest, ClutchError, Unavailable
from clutch.wire.refusals import error_said

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

CONNECT_S = 5.0
READ_S = 30.0
PAUSE_S, PAUSE_MAX_S = 0.1, 2.0
CHUNK_BYTES = 1 << 20
_ELSEWHERE = (421, 502, 503)


class MasterConnection:
    """A way to the masters at these addresses. ``abort`` may be called from any thread and ends a call under way."""

    def __init__(self, masters: tuple[str, ...], token: str, *, ca_file: str = "") -> None:
        if not masters:
            raise BadRequest("no address of a master is given", object="CLUTCH_MASTERS")
        self._masters = masters
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._ca_file = ca_file
        self._current = 0
        self._open: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.local_address = ""
        """This machine's own address on the way to the master that answered last."""

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, within_s: float = 20.0, waits_s: float = 0.0
    ) -> bytes:
        """What the leading master answers, or the error it says. ``Unavailable`` when none answers in time.

        ``waits_s``: how long the call itself waits at the master.
        """
        with self._lock:
            return self._try(within_s, waits_s, lambda connection: self._exchange(connection, method, path, body))

    def reach(self, *, within_s: float) -> str:
        """This machine's own address on the way to a master, whichever can be connected to."""
        with self._lock:
            return self._try(within_s, 0.0, lambda connection: self.local_address)

    def download(self, path: str, *, within_s: float) -> Iterator[bytes]:
        """The body of an answer, piece by piece. Only its beginning is tried again elsewhere."""
        with self._lock:
            answer = self._try(within_s, 0.0, lambda connection: self._begin(connection, path))
            try:
                while piece := answer.read(CHUNK_BYTES):
                    yield piece
                    if self._ended.is_set():
                        raise _ended()
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                raise Unavailable(f"the answer broke off: {error}", object=path) from error

    def abort(self) -> None:
        """End what is under way; every later call is refused."""
        self._ended.set()
        connection = self._open
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.abort()
        with self._lock:
            self._drop()

    # ------------------------------------------------------------------------------------------------------------

    def _try(self, within_s: float, waits_s: float, call: Callable[[http.client.HTTPConnection], T]) -> T:
        until = time.monotonic() + within_s
        pause = PAUSE_S
        while True:
            if self._ended.is_set():
                raise _ended()
            try:
                return call(self._connection(waits_s))
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                where = self._masters[self._current % len(self._masters)]
                failure: ClutchError = Unavailable(
                    f"no answer: {error or type(error).__name__}", object=where, next_step="Is a master running there?"
                )
            except _Elsewhere as elsewhere:
                self._drop()
                failure = elsewhere.error
            self._current += 1
            if time.monotonic() + pause > until:
                raise _nobody(failure)
            self._ended.wait(pause)
            pause = min(PAUSE_MAX_S, pause * 1.5)

    def _connection(self, waits_s: float) -> http.client.HTTPConnection:
        if self._open is None or self._open.sock is None:  # a master that goes says so, and the socket is gone
            self._drop()
            self._open = self._connect(self._masters[self._current % len(self._masters)])
        self._open.sock.settimeout(READ_S + waits_s)
        return self._open

    def _connect(self, address: str) -> http.client.HTTPConnection:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme == "https":
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=CONNECT_S, context=self._trust()
            )
        else:
            made = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CONNECT_S)
        made.connect()
        self.local_address = made.sock.getsockname()[0]
        return made

    def _trust(self) -> ssl.SSLContext:
        import ssl

        return ssl.create_default_context(cafile=self._ca_file or None)

    def _exchange(self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None) -> bytes:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status < 400:
            return content
        raise _refused(answer.status, content, f"{method} {path}")

    def _begin(self, connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
        connection.request("GET", path, headers={**self._headers, "Accept": "*/*"})
        answer = connection.getresponse()
        if answer.status >= 400:
            raise _refused(answer.status, answer.read(), f"GET {path}")
        return answer

    def _drop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class _Elsewhere(Exception):
    """Another address may know better."""

    def __init__(self, error: ClutchError) -> None:
        self.error = error


def _refused(status: int, content: bytes, subject: str) -> Exception:
    error = error_said(status, content, subject)
    return _Elsewhere(error) if status in _ELSEWHERE else error


def _nobody(last: ClutchError) -> Unavailable:
    """No address had an answer in time; what the last one said."""
    return Unavailable(last.cause, object=last.object, next_step=last.next_step)


def _ended() -> Unavailable:
    return Unavailable("this connection was closed", object="master", next_step="Open another one.")
