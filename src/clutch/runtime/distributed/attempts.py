"""Where ZeroMQ still tries to reach rank 0, and where it has given up. Pure: told what ZeroMQ's monitor says.

A connection that is broken off ZeroMQ makes again by itself, and says so. One with a program that speaks otherwise it
gives up without a word, though rank 0 may have the port next. The one of its threads that makes a connection and the
one that ends it speak independently: the end of a connection may be told before its beginning, and that beginning is
no news.
"""

from __future__ import annotations


class Attempts:
    """By endpoint. Connections are told apart by their descriptors."""

    def __init__(self) -> None:
        self.given_up: set[str] = set()
        self._open: dict[str, int] = {}
        self._ended_unbegun: set[tuple[str, int]] = set()

    def descriptor(self, endpoint: str) -> int | None:
        """Of the connection that stands there."""
        return self._open.get(endpoint)

    def begun(self, endpoint: str, descriptor: int) -> None:
        if (endpoint, descriptor) in self._ended_unbegun:
            self._ended_unbegun.discard((endpoint, descriptor))
            return
        self._open[endpoint] = descriptor
        self.given_up.discard(endpoint)

    def retried(self, endpoint: str) -> None:
        """ZeroMQ tries again by itself."""
        self.given_up.discard(endpoint)

    def ended(self, endpoint: str, descriptor: int) -> None:
        """Nobody tries there, unless ``retried`` follows."""
        if self._open.get(endpoint) == descriptor:
            del self._open[endpoint]
        else:
            self._ended_unbegun.add((endpoint, descriptor))
        self.given_up.add(endpoint)
