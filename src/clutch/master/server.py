"""The HTTP server inside the master's own process: uvicorn, without its signal handlers, on the master's event loop.

It ends when ``stopping`` is set, or when it is cancelled: no new request is taken, answers that are under way get
``GRACE_S`` seconds, and what goes on for ever (followed output, event streams, agents' links) is cut by ``stopping``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from clutch.master.api.app import App
from clutch.master.settings import PORT, MasterSettings
from clutch.master.tls import check_listener
from clutch.wire.errors import Conflict
from clutch.wire.link import FRAME_MAX_BYTES

GRACE_S = 5.0
CUT_AFTER_S = 0.5
"""Whoever then still waits for something to happen (long polls) is told that this master ends."""
KEEP_ALIVE_S = 75.0
BACKLOG = 2048
CONNECTIONS_MAX = 10_000
"""Requests beyond it are answered 503 at once."""
PORTS_TRIED = 100
_PORT_FILE = "port"


class _Server(uvicorn.Server):
    """Signals belong to the master."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(settings: MasterSettings) -> socket.socket:
    """A bound socket: on the port that is set, or else on the one used last time or the first free one from 8620 on.

    ``Conflict`` when it is taken; ``BadRequest`` where others could listen in.
    """
    check_listener(settings.host, bool(settings.tls_cert), settings.insecure)
    remembered = settings.data / _PORT_FILE
    if settings.port:
        return bind(settings.host, settings.port)
    last = _read_port(remembered)
    for port in [*([last] if last else []), *range(PORT, PORT + PORTS_TRIED)]:
        with contextlib.suppress(Conflict):
            found = bind(settings.host, port)
            remembered.write_text(str(port))
            return found
    raise Conflict(
        f"no port from {PORT} to {PORT + PORTS_TRIED - 1} is free",
        object=settings.host,
        next_step="Choose one with --port.",
    )


def _read_port(path: Path) -> int:
    try:
        port = int(path.read_text())
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 2**16 else 0


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to this address; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol said, asyncio turns Nagle off for what is accepted: else each answer waits 40 ms for an ACK
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)  # who comes before anything is served waits in line
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise Conflict(
            f"cannot listen there: {error.strerror or error}",
            object=f"{host}:{port}",
            next_step="Choose another port with --port, or end what uses it.",
        ) from error
    return made


class HttpServer:
    """One app on one socket. The socket is open from the start, so its address is known before anything is served."""

    def __init__(self, app: Any, listener: socket.socket, settings: MasterSettings, stopping: asyncio.Event) -> None:
        self.app = app
        self.app = app
        self.stopping = stopping
        self.host, self.port = listener.getsockname()[:2]
        self.tls = bool(settings.tls_cert)
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                app,
                http="auto",
                ws="websockets-sansio",
                ws_max_size=FRAME_MAX_BYTES,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=int(KEEP_ALIVE_S),
                timeout_graceful_shutdown=int(GRACE_S),
                ssl_certfile=settings.tls_cert or None,
                ssl_keyfile=settings.tls_key or None,
            )
        )

    @property
    def url(self) -> str:
        """How this machine reaches it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    async def run(self) -> None:
        """Serves until ``stopping``; returns when every answer has ended or was cut."""
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._listener]))
        stopped = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            self.stopping.set()
            self._server.should_exit = True
            await asyncio.wait([serving], timeout=CUT_AFTER_S)
            if isinstance(self.app, App):
                self.app.cut_short()
            await serving
            self._listener.close()
