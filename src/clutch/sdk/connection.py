"""How a blocking client reaches a master: plain HTTP/1.1 connections that are kept and used again.

The standard library's, because a command line pays for every import at every start. A try that fails says whether
anything was sent (``Unreached`` or ``Broken``); what follows from that is decided elsewhere.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import msgspec

from clutch.sdk.call import JSON, Call
from clutch.wire.errors import BadRequest, NotAuthenticated

CONNECT_S = 5.0
IDLE_MAX = 4
"""Connections to one address that are kept while nobody uses them."""


class Unreached(Exception):
    """There was no connection, so nothing was sent."""


class Broken(Exception):
    """It was sent, and no whole answer came back."""


class Address(msgspec.Struct, frozen=True):
    """Where a master listens."""

    secure: bool
    host: str
    port: int
    prefix: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.prefix}"


def parse_address(text: str) -> Address:
    """``http://host:8620``, ``host:8620``; ``BadRequest`` if it is none."""
    try:
        parts = urlsplit(text.strip() if "//" in text else f"http://{text.strip()}")
        secure = {"http": False, "https": True}[parts.scheme]
        port = parts.port or (443 if secure else 80)
        if parts.hostname:
            return Address(secure, parts.hostname, port, parts.path.rstrip("/"))
    except (KeyError, ValueError):
        pass
    raise BadRequest(f"{text!r} is not the address of a master", object="--master", next_step="Write http://HOST:8620.")


class Connections:
    """To any number of addresses, with one token."""

    def __init__(self, token: str, ca_file: str = "", agent: str = "clutch") -> None:
        self._headers = {"User-Agent": agent} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._ca_file = ca_file
        self._idle: dict[Address, list[HTTPConnection]] = {}
        self._lock = Lock()

    def ask(
        self, address: Address, call: Call[Any], timeout_s: float, body: Iterable[bytes] | None = None, size: int = 0
    ) -> tuple[int, bytes]:
        """The status and body that one address answers with."""
        connection = self._take(address, timeout_s)
        try:
            response = self._send(connection, address, call, body, size)
            answer = response.read()
        except (OSError, HTTPException) as error:
            connection.close()
            raise Broken(_words(error)) from error
        except BaseException:
            connection.close()
            raise
        self._give(address, connection, response)
        return response.status, answer

    @contextmanager
    def stream(self, address: Address, call: Call[Any], timeout_s: float) -> Iterator[HTTPResponse]:
        """An answer that is read while it comes. ``timeout_s`` is the longest silence. Its reader sees ``OSError``."""
        connection = self._connect(address, timeout_s)
        try:
            with self._begun(connection, address, call) as response:
                yield response
        finally:
            connection.close()

    def _begun(self, connection: HTTPConnection, address: Address, call: Call[Any]) -> HTTPResponse:
        try:
            return self._send(connection, address, call, None, 0)
        except (OSError, HTTPException) as error:
            raise Broken(_words(error)) from error

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _send(
        self, connection: HTTPConnection, address: Address, call: Call[Any], body: Iterable[bytes] | None, size: int
    ) -> HTTPResponse:
        headers = dict(self._headers)
        if body is not None:
            headers |= {"Content-Type": "application/gzip", "Content-Length": str(size)}
        elif call.body:
            headers["Content-Type"] = JSON
        connection.request(call.method, address.prefix + call.target, body=body or call.body or None, headers=headers)
        return connection.getresponse()

    def _take(self, address: Address, timeout_s: float) -> HTTPConnection:
        """A kept connection that its master has not closed meanwhile, or a new one."""
        while True:
            with self._lock:
                kept = self._idle.get(address)
                connection = kept.pop() if kept else None
            if connection is None:
                return self._connect(address, timeout_s)
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()

    def _give(self, address: Address, connection: HTTPConnection, response: HTTPResponse) -> None:
        if response.will_close or connection.sock is None:
            connection.close()
            return
        with self._lock:
            kept = self._idle.setdefault(address, [])
            if len(kept) < IDLE_MAX:
                kept.append(connection)
                return
        connection.close()

    def _connect(self, address: Address, timeout_s: float) -> HTTPConnection:
        connection = self._make(address, min(timeout_s, CONNECT_S))
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            if type(error).__name__ == "SSLCertVerificationError":
                raise NotAuthenticated(
                    f"its certificate is not trusted: {_words(error)}",
                    object=str(address),
                    next_step="Give the file of its authority: 'clutch login --ca-file FILE'.",
                ) from error
            raise Unreached(_words(error)) from error
        connection.sock.settimeout(timeout_s)
        return connection

    def _make(self, address: Address, timeout_s: float) -> HTTPConnection:
        if not address.secure:
            return HTTPConnection(address.host, address.port, timeout=timeout_s)
        import ssl
        from http.client import HTTPSConnection

        try:
            context = ssl.create_default_context(cafile=self._ca_file or None)
        except OSError as error:
            raise BadRequest(f"it cannot be read: {_words(error)}", object=self._ca_file or "certificates") from error
        return HTTPSConnection(address.host, address.port, timeout=timeout_s, context=context)


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError | socket.timeout):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
