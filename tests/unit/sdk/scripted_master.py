"""A server on a real socket that answers by a script: masters that do not lead, are busy, break off, are gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from clutch.wire.errors import ClutchError

Answer = Callable[["Asked"], None]


class Asked(BaseHTTPRequestHandler):
    """One request. An answer in a script is a function that is given it."""

    protocol_version = "HTTP/1.1"
    server: ScriptedMaster

    def do_any(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        self.server.asked.append((self.command, self.path, body))
        self.server.headers.append(dict(self.headers))
        answers = self.server.answers
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_any  # noqa: N815 -- the names its base asks for

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def say(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def cut(self) -> None:
        """The connection breaks."""
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class ScriptedMaster(ThreadingHTTPServer):
    """Gives its answers one after the other; the last one again and again."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, answers: list[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.answers = answers
        self.asked: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextmanager
def master(*answers: Answer) -> Iterator[ScriptedMaster]:
    server = ScriptedMaster(list(answers))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def json(value: Any, status: int = 200) -> Answer:
    body = msgspec.json.encode(value)
    return lambda asked: asked.say(status, body)


def refuse(error: ClutchError) -> Answer:
    return json(error.view(), error.status)


def lines(*said: bytes, whole: bool = True) -> Answer:
    """A stream of lines that ends well, or breaks."""

    def answer(asked: Asked) -> None:
        asked.begin()
        for line in said:
            asked.piece(line)
        if whole:
            asked.piece(b"")
        else:
            asked.cut()

    return answer
