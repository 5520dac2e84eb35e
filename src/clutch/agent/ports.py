"""Free ports of this machine for programs that asked for any."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from clutch.wire.errors import Unavailable

FIRST, LAST = 20_000, 32_767
"""Below the range from which the kernel takes ports for outgoing connections: one of those cannot come in between."""


class Ports:
    """Hands out each free port to one member at a time, and a port just given back last of all."""

    def __init__(self, taken: Iterable[int] = (), first: int = FIRST, last: int = LAST) -> None:
        self._taken = set(taken)
        self._first, self._last = first, last
        self._next = first

    def take(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """The same ports, with a free one in the place of each 0."""
        taken: list[int] = []
        for port in wanted:
            taken.append(port or self._free(taken))
        self._taken.update(taken)
        return tuple(taken)

    def give_back(self, ports: tuple[int, ...]) -> None:
        self._taken.difference_update(ports)

    def _free(self, also_taken: list[int]) -> int:
        for _ in range(self._last - self._first + 1):
            port = self._next
            self._next = port + 1 if port < self._last else self._first
            if port not in self._taken and port not in also_taken and _is_free(port):
                return port
        raise Unavailable(f"no port from {self._first} to {self._last} is free", object="this machine")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as taken:
            if taken.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
