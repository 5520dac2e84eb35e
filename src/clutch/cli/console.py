"""This terminal as the screen and keyboard of one far away: raw bytes both ways over a WebSocket.

A connection that breaks is made again under the same session name; the far side shows its last screenful and goes on.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from clutch.wire.errors import ClusterError, ClutchError, NotAllowed, Unavailable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from clutch.sdk.connection import Address

LEAVE = b"\x1d"
"""Ctrl-]"""
END_OF_INPUT = b"\x04"
AGAIN_S = 60.0
"""So long a broken connection is tried again."""
PAUSE_S = 0.25
READ_BYTES = 65536


class Left(Exception):
    """The user left it running."""


class Console:
    def __init__(self, address: Address, token: str, ca_file: str, path: str) -> None:
        self.url = f"{'wss' if address.secure else 'ws'}://{str(address).partition('://')[2]}{path}"
        self.token = token
        self.ca_file = ca_file
        self._exit: int | None = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._input_over = False

    def run(self, session: str) -> int:
        """The exit code of what runs there. ``Left`` when its user left."""
        until = time.monotonic() + AGAIN_S
        try:
            with _raw_terminal(), self._resizing():
                while True:
                    try:
                        with self._connect(session) as connection:
                            until = time.monotonic() + AGAIN_S
                            self._serve(connection)
                        if self._exit is not None:
                            return self._exit
                    except Unavailable:
                        if time.monotonic() > until:
                            raise
                    time.sleep(PAUSE_S)
        finally:
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _connect(self, session: str) -> ClientConnection:
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect

        size = shutil.get_terminal_size()
        query = urlencode({"session": session, "rows": size.lines, "cols": size.columns})
        options: dict[str, Any] = {"proxy": None, "max_size": None}
        if self.url.startswith("wss"):
            import ssl

            options["ssl"] = ssl.create_default_context(cafile=self.ca_file or None)
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            made: ClientConnection = connect(f"{self.url}?{query}", additional_headers=headers, **options)
            return made
        except InvalidStatus as error:
            raise _refused(error.response.status_code, bytes(error.response.body or b""), self.url) from None
        except (OSError, InvalidHandshake) as error:
            raise Unavailable(f"it cannot be reached: {error}", object=self.url) from None

    def _serve(self, connection: ClientConnection) -> None:
        """Until the far side or the user is done, or the connection breaks."""
        from websockets.exceptions import ConnectionClosed

        showing = threading.Thread(target=self._show, args=(connection,))
        showing.start()
        try:
            while showing.is_alive():
                self._type(connection)
        except ConnectionClosed:
            pass
        finally:
            connection.close()
            showing.join()

    def _show(self, connection: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            for message in connection:
                if isinstance(message, bytes):
                    sys.stdout.buffer.write(message)
                    sys.stdout.buffer.flush()
                else:
                    code = json.loads(message).get("exit")
                    self._exit = 128 - code if code < 0 else code
        except ConnectionClosed:
            pass
        finally:
            self._wake()

    def _type(self, connection: ClientConnection) -> None:
        """What is typed, and how large the screen is, when either changes."""
        watched = [self._wake_read] if self._input_over else [self._wake_read, sys.stdin.fileno()]
        ready, _, _ = select.select(watched, [], [], 1.0)
        if self._wake_read in ready:
            os.read(self._wake_read, READ_BYTES)
            size = shutil.get_terminal_size()
            connection.send(json.dumps({"rows": size.lines, "cols": size.columns}))
        if not self._input_over and sys.stdin.fileno() in ready:
            data = os.read(sys.stdin.fileno(), READ_BYTES)
            if LEAVE in data and sys.stdin.isatty():
                raise Left
            self._input_over = not data
            connection.send(data or END_OF_INPUT)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return  # it is awake

    @contextmanager
    def _resizing(self) -> Iterator[None]:
        before = signal.signal(signal.SIGWINCH, lambda number, frame: self._wake())
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key goes through, Ctrl-C too; afterwards the terminal is as it was."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _refused(status: int, body: bytes, url: str) -> ClutchError:
    """What an answer means that opens no terminal: not there yet, or not for this user."""
    import msgspec

    from clutch.wire.errors import ErrorView

    try:
        cause = msgspec.json.decode(body, type=ErrorView).cause
    except (msgspec.DecodeError, UnicodeDecodeError):
        cause = f"status {status}"
    if status in (401, 403):
        return NotAllowed(cause, object=url, next_step="A terminal needs the role editor in the task's workspace.")
    if status in (404, 409, 421, 502, 503, 504):
        return Unavailable(cause, object=url)
    return ClusterError(cause, object=url)
