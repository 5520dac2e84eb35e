"""HTTP to a container engine over its unix socket, for a keeper: standard library only, and little of that.

``http.client`` would do for questions, but not for a stream that must be waited for together with other descriptors,
nor for a connection that stops being HTTP (``attach``). Both are a few lines here.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable
from typing import Any

ASK_TIMEOUT_S = 120.0
READ_BYTES = 256 * 1024
HEAD_BYTES_MAX = 64 * 1024


class EngineGone(Exception):
    """The engine does not answer, or stopped in the middle of it."""


class Refused(Exception):
    """The engine answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Stream:
    """The body of an answer as it comes. ``read`` never waits: poll ``fileno`` first."""

    def __init__(self, connection: socket.socket, status: int, chunked: bool, early: bytes) -> None:
        self.status = status
        self.ended = False
        """All of it has come; without this, an end of the connection is an ``EngineGone``."""
        self._connection = connection
        self._chunked = chunked
        self._raw = bytearray(early)
        self._left = 0  # of the current chunk
        self._buffered = bool(early)

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def waiting(self) -> bool:
        """Whether bytes are here already that no poll will announce."""
        return self._buffered

    def wait(self, timeout_s: float) -> None:
        """Until there is something to read, or the end."""
        if self._buffered:
            return
        if not select.select([self._connection], [], [], timeout_s)[0]:
            raise EngineGone(f"it said nothing for {timeout_s:g} s")

    def read(self) -> bytes:
        """What has come; empty when there is nothing yet, or nothing any more (``ended``)."""
        if self._buffered:
            self._buffered = False
        else:
            try:
                more = self._connection.recv(READ_BYTES)
            except BlockingIOError:
                return b""
            except OSError as broken:
                raise EngineGone(str(broken)) from broken
            if not more:
                if self._chunked:
                    raise EngineGone("the answer was cut")
                self.ended = True
                return b""
            self._raw += more
        if not self._chunked:
            taken = bytes(self._raw)
            self._raw.clear()
            return taken
        return self._dechunked()

    def _dechunked(self) -> bytes:
        found: list[bytes] = []
        while self._raw:
            if self._left == 0:
                line, separator, _ = bytes(self._raw[:64]).partition(b"\r\n")
                if not separator:
                    break
                size = int(line.split(b";")[0], 16)
                del self._raw[: len(line) + 2]
                if size == 0:
                    self.ended = True
                    break
                self._left = size + 2
            piece = bytes(self._raw[: self._left])
            del self._raw[: len(piece)]
            found.append(piece[: max(self._left - 2, 0)])
            self._left -= len(piece)
        return b"".join(found)

    def close(self) -> None:
        self._connection.close()


class Engine:
    """Questions without a version in their path: the engine answers in its own."""

    def __init__(self, path: str) -> None:
        self._path = path

    def ask(self, method: str, path: str, body: object = None, timeout_s: float = ASK_TIMEOUT_S) -> Any:
        """The decoded answer; None when it is empty. ``Refused`` for an error, ``EngineGone`` without an answer."""
        stream = self.open(method, path, body, timeout_s=timeout_s)
        try:
            data = self._all(stream, timeout_s)
        finally:
            stream.close()
        return json.loads(data) if data.strip() else None

    def ask_lines(self, path: str, timeout_s: float = ASK_TIMEOUT_S) -> list[Any]:
        """An answer of one document a line."""
        stream = self.open("GET", path, timeout_s=timeout_s)
        try:
            return [json.loads(line) for line in self._all(stream, timeout_s).splitlines() if line.strip()]
        finally:
            stream.close()

    def open(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: tuple[tuple[str, str], ...] = (),
        timeout_s: float = ASK_TIMEOUT_S,
        patience: Callable[[int], None] | None = None,
    ) -> Stream:
        """The answer's body as a stream, once its head has come. ``patience`` waits for a descriptor in our stead."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(timeout_s)
            connection.connect(self._path)
            paper = b"" if body is None else json.dumps(body).encode()
            lines = [f"{method} {path} HTTP/1.1", "Host: docker", f"Content-Length: {len(paper)}"]
            lines += ["Content-Type: application/json"] if paper else []
            lines += [f"{name}: {value}" for name, value in headers]
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + paper)
            if patience is not None:
                patience(connection.fileno())
            stream = _headed(connection)
            connection.setblocking(False)
            if stream.status >= 400:
                raise Refused(stream.status, _message(self._all(stream, timeout_s)))
        except OSError as gone:
            connection.close()
            raise EngineGone(f"{self._path}: {gone.strerror or gone}") from gone
        except BaseException:
            connection.close()
            raise
        return stream

    def _all(self, stream: Stream, timeout_s: float) -> bytes:
        """The rest of an answer. Only an answer to ``open`` may be endless."""
        data = b""
        while not stream.ended:
            stream.wait(timeout_s)
            data += stream.read()
        return data


def _headed(connection: socket.socket) -> Stream:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(4096)
        if not more or len(data) > HEAD_BYTES_MAX:
            raise EngineGone("it closed the connection without an answer")
        data += more
    head, _, early = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    status = int(lines[0].split()[1])
    chunked = words.get("transfer-encoding", "") == "chunked"
    stream = Stream(connection, status, chunked, early)
    length = words.get("content-length")
    if status == 204 or length == "0":
        stream.ended = True
    elif length is not None:
        stream = _measured(connection, status, int(length), early)
    return stream


def _measured(connection: socket.socket, status: int, length: int, early: bytes) -> Stream:
    """A body of known length is small: take all of it now."""
    while len(early) < length:
        more = connection.recv(READ_BYTES)
        if not more:
            raise EngineGone("the answer was cut")
        early += more
    return Stream(connection, status, True, b"%x\r\n%s\r\n0\r\n\r\n" % (length, early[:length]))


def _message(data: bytes) -> str:
    """An engine's own words."""
    try:
        said = json.loads(data)
    except ValueError:
        return data.decode(errors="replace").strip()
    return str(said.get("message", said)) if isinstance(said, dict) else str(said)
