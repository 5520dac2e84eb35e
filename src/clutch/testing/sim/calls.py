"""Asking a master over a network that loses things: again and again, at one address after the other, until it answers.

So a call may be carried out more than once and answered late; that is what every request of the system must bear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from clutch.wire.events import Event

if TYPE_CHECKING:
    from clutch.testing.sim.cluster import Cluster

RETRY_S = 1.0


class Call(msgspec.Struct, frozen=True):
    number: int
    event: Event


class Reply(msgspec.Struct, frozen=True):
    number: int
    answer: Any = None
    error: str = ""
    """The code of the error that refused it; ``not_leader`` and ``unavailable`` are tried again."""


AGAIN = ("not_leader", "unavailable")
Then = Callable[[Any, str], None]


class Caller:
    """One host that asks. ``gone`` makes it forget everything it asked, as a killed process does."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self.cluster = cluster
        self.host = host
        self.gone = False
        self._open: dict[int, Then] = {}
        self._number = 0
        self._turn = 0
        cluster.network.attach(host, self._arrived)

    def ask(self, event: Event, then: Then) -> None:
        """``then(answer, error_code)`` is called once, when a master has answered."""
        self._number += 1
        self._open[self._number] = then
        self._try(Call(self._number, event))

    def close(self) -> None:
        self.gone = True
        self._open.clear()
        self.cluster.network.detach(self.host)

    def _try(self, call: Call) -> None:
        if self.gone or call.number not in self._open:
            return
        masters = self.cluster.master_hosts
        self.cluster.network.send(self.host, masters[self._turn % len(masters)], call)
        self.cluster.world.after(RETRY_S, lambda: self._again(call))

    def _again(self, call: Call) -> None:
        self._turn += 1
        self._try(call)

    def _arrived(self, sender: str, reply: Reply) -> None:
        if self.gone or reply.number not in self._open:
            return
        if reply.error in AGAIN:
            return  # the next try goes to the next address
        self._open.pop(reply.number)(reply.answer, reply.error)
