"""A user's terminal inside a task: a PTY over a WebSocket, reached through the proxy.

``python -m clutch.runtime.terminal -- bash`` serves ``/?session=NAME&rows=R&cols=C``. Binary messages are what
is typed and what is shown; a text message ``{"rows": R, "cols": C}`` resizes; the last message is ``{"exit": CODE}``. A
session outlives its connection: whoever comes back under the same name sees the last screenful and goes on.

Every connection must prove that it came through the proxy (``PROOF_HEADER``): other users of the machine could reach
the port too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import hmac
import json
import os
import pty
import signal
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from clutch.runtime.info import read_info
from clutch.wire.proof import PROOF_HEADER, proof

SCREEN_BYTES = 256 * 2**10
"""What a session keeps for those who come back."""
WAITING_BYTES = 4 * 2**20
"""How far a viewer may fall behind before it is cut off; it may come back and see the last screenful."""
SESSIONS_MAX = 64


class Session:
    """One shell under one PTY, and whoever looks at it."""

    def __init__(self, argv: list[str], rows: int, cols: int) -> None:
        self.pid, self.fd = _spawn(argv, rows, cols)
        self.exit: int | None = None
        self.ended = asyncio.Event()
        self._screen: deque[bytes] = deque()
        self._screen_bytes = 0
        self._viewers: dict[asyncio.Queue[bytes], None] = {}
        self._typed = bytearray()
        os.set_blocking(self.fd, False)
        asyncio.get_running_loop().add_reader(self.fd, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return
        except OSError:  # the last process behind the PTY is gone
            data = b""
        if not data:
            self._over()
            return
        self._screen.append(data)
        self._screen_bytes += len(data)
        while self._screen_bytes > SCREEN_BYTES and len(self._screen) > 1:
            self._screen_bytes -= len(self._screen.popleft())
        for viewer in list(self._viewers):
            if viewer.full():
                del self._viewers[viewer]
                viewer.get_nowait()
                viewer.put_nowait(b"")  # too far behind: it ends here
            else:
                viewer.put_nowait(data)

    def _over(self) -> None:
        running = asyncio.get_running_loop()
        running.remove_reader(self.fd)
        running.remove_writer(self.fd)
        os.close(self.fd)
        _, status = os.waitpid(self.pid, 0)
        self.exit = os.waitstatus_to_exitcode(status)
        self.ended.set()
        for viewer in self._viewers:
            if not viewer.full():
                viewer.put_nowait(b"")

    def view(self) -> asyncio.Queue[bytes]:
        """A queue of what is shown from now on, after the last screenful; ``b""`` is its end."""
        viewer: asyncio.Queue[bytes] = asyncio.Queue(WAITING_BYTES // 65536)
        if self._screen:
            viewer.put_nowait(b"".join(self._screen))
        if self.ended.is_set():
            viewer.put_nowait(b"")
        self._viewers[viewer] = None
        return viewer

    def leave(self, viewer: asyncio.Queue[bytes]) -> None:
        self._viewers.pop(viewer, None)

    def type(self, data: bytes) -> None:
        if self.ended.is_set():
            return
        self._typed += data
        self._write()

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            written = os.write(self.fd, self._typed)
            del self._typed[:written]
        running = asyncio.get_running_loop()
        if self._typed and not self.ended.is_set():
            running.add_writer(self.fd, self._write)
        elif not self.ended.is_set():
            running.remove_writer(self.fd)

    def resize(self, rows: int, cols: int) -> None:
        if not self.ended.is_set():
            _set_size(self.fd, rows, cols)

    def hang_up(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGHUP)


class Terminal:
    """The sessions of one task."""

    def __init__(self, argv: list[str], token: str) -> None:
        self.argv = argv
        self.expected = proof(token) if token else ""
        self.sessions: dict[str, Session] = {}

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        """None for a request that came through the proxy."""
        given = request.headers.get(PROOF_HEADER, "")
        if self.expected and not hmac.compare_digest(given, self.expected):
            return connection.respond(HTTPStatus.FORBIDDEN, "This terminal is reached through Clutch's proxy only.\n")
        return None

    async def serve(self, connection: ServerConnection) -> None:
        asked = parse_qs(urlsplit(connection.request.path if connection.request else "").query)
        name = asked.get("session", ["main"])[0][:64]
        rows, cols = _size(asked.get("rows", ["24"])[0], asked.get("cols", ["80"])[0])
        session = self.sessions.get(name)
        if session is None or session.ended.is_set():
            if sum(not s.ended.is_set() for s in self.sessions.values()) >= SESSIONS_MAX:
                await connection.close(1013, f"{SESSIONS_MAX} terminals are open already")
                return
            session = self.sessions[name] = Session(self.argv, rows, cols)
        session.resize(rows, cols)
        viewer = session.view()
        typing = asyncio.create_task(self._type(connection, session))
        try:
            while data := await viewer.get():
                await connection.send(data)
            if session.ended.is_set():
                await connection.send(json.dumps({"exit": session.exit}))
                self.sessions.pop(name, None)
            await connection.close()
        except ConnectionClosed:
            pass  # the session stays for whoever comes back
        finally:
            session.leave(viewer)
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)

    async def _type(self, connection: ServerConnection, session: Session) -> None:
        try:
            async for message in connection:
                if isinstance(message, bytes):
                    session.type(message)
                    continue
                with contextlib.suppress(ValueError, TypeError, AttributeError):
                    asked = json.loads(message)
                    session.resize(*_size(asked.get("rows"), asked.get("cols")))
        except ConnectionClosed:
            pass


def _spawn(argv: list[str], rows: int, cols: int) -> tuple[int, int]:
    pid, fd = pty.fork()
    if pid == 0:  # pragma: no cover - the child becomes the shell at once
        try:
            os.putenv("TERM", "xterm-256color")
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\r\n".encode())
        os._exit(127)
    _set_size(fd, rows, cols)
    return pid, fd


def _set_size(fd: int, rows: int, cols: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def _size(rows: object, cols: object) -> tuple[int, int]:
    def bounded(value: object, usual: int) -> int:
        try:
            return min(max(int(str(value)), 1), 1000)
        except ValueError:
            return usual

    return bounded(rows, 24), bounded(cols, 80)


async def run(terminal: Terminal, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve until SIGTERM; then every session is hung up."""
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    async with serve(terminal.serve, host, port, process_request=terminal.check, max_size=2**20) as server:
        ready(next(iter(server.sockets)).getsockname()[1])
        await ending.wait()
        for session in terminal.sessions.values():
            session.hang_up()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="clutch.runtime.terminal", description="A terminal over a WebSocket.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("command", nargs="*")
    asked = parser.parse_args(arguments)
    info = read_info()
    port = asked.port or next(iter(info.ports), 0)
    terminal = Terminal(asked.command or ["/bin/sh", "-l"], info.token)
    asyncio.run(run(terminal, asked.host, port, lambda at: _say(f"terminal on port {at}")))
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
