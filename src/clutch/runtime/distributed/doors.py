"""How lines between ranks of one cell are made: its head has a door, a unix socket, and the others come to it.

Only processes of the same user that know the group's secret are let in.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from clutch.runtime.distributed.near import SLICE_S, Line
from clutch.wire.errors import NotAllowed, TimedOut

_WHO = struct.Struct("<I")


class Door:
    """Where the ranks of a cell come to its head: a unix socket in a folder that is ours alone."""

    def __init__(self) -> None:
        self.folder, self.path = _private_path()
        self._wire = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._wire.bind(self.path)
        self._wire.listen(1024)
        self._wire.settimeout(SLICE_S)

    def admit(self, ranks: Sequence[int], secret: bytes, until: float, look: Callable[[], None]) -> dict[int, Line]:
        """A line to each of these ranks, as they come."""
        found: dict[int, Line] = {}
        while len(found) < len(ranks):
            try:
                wire, _ = self._wire.accept()
            except TimeoutError:
                look()
                if time.monotonic() >= until:
                    missing = [rank for rank in ranks if rank not in found]
                    raise TimedOut("they did not come to their head", object=f"ranks {missing[:16]}") from None
                continue
            rank = _greeted(wire, secret)
            if rank not in ranks or rank in found:
                wire.close()
                continue
            found[rank] = Line(wire, rank)
        return found

    def close(self) -> None:
        self._wire.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)  # noqa: PTH108
        with suppress(OSError):
            os.rmdir(self.folder)  # noqa: PTH106


def enter_door(path: str, rank: int, head: int, secret: bytes) -> Line:
    """A line to the head of this rank's cell."""
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        wire.connect(path)
        wire.send(_WHO.pack(rank) + secret)
    except OSError as error:
        wire.close()
        raise NotAllowed(
            f"its unix socket cannot be reached: {error.strerror}",
            object=f"rank {head}",
            next_step="Run the ranks of one node as one user.",
        ) from error
    return Line(wire, head)


def _greeted(wire: socket.socket, secret: bytes) -> int:
    """Who came; -1 for a stranger."""
    wire.settimeout(2.0)
    try:
        credentials = wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, user, _ = struct.unpack("3i", credentials)
        said = wire.recv(256)
    except OSError:
        return -1
    if user != os.geteuid() or said[4:] != secret:
        return -1
    return int(_WHO.unpack_from(said)[0])


def _private_path() -> tuple[str, str]:
    import tempfile

    for parent in (None, "/tmp"):
        folder = tempfile.mkdtemp(prefix="clutch-", dir=parent)
        path = f"{folder}/group"
        if len(os.fsencode(path)) <= 100:
            return folder, path
        os.rmdir(folder)  # noqa: PTH106
    raise AssertionError("/tmp is short enough")
