"""Who waits in one pool, in lines of requests that are interchangeable for fitting.

If the first of a line finds no room, nobody behind it in that line can: a pass over ten thousand requests looks at a
few dozen lines. Inside a line the order is (priority, order, id). It knows no room and no time, and decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

from clutch.core.demand import Demand, line_key, slots_wanted
from clutch.wire.errors import BrokenInvariant
from clutch.wire.ids import RequestId
from clutch.wire.schedule import Request

Turn = tuple[int, int, RequestId]
"""Sorts by importance, then by who came first."""


def turn_of(request: Request) -> Turn:
    return (request.priority, request.order, request.request)


class Line:
    """Requests with one demand, in turn."""

    __slots__ = ("demand", "fits_empty", "key", "turns")

    def __init__(self, key: tuple[object, ...], demand: Demand) -> None:
        self.key = key
        self.demand = demand
        self.turns: list[Turn] = []
        self.fits_empty: tuple[int, bool] | None = None
        """Remembered by the ledger: for which version of the rooms, whether an empty pool could hold it."""


class WaitingLines:
    """All lines of a pool."""

    def __init__(self) -> None:
        self.lines: dict[tuple[object, ...], Line] = {}
        self._requests: dict[RequestId, Request] = {}
        self._line_of: dict[RequestId, Line] = {}

    @property
    def requests(self) -> Mapping[RequestId, Request]:
        return self._requests

    def add(self, request: Request) -> None:
        if request.request in self._requests:
            raise BrokenInvariant("waits already", object=request.request)
        key = line_key(request)
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(key, Demand(request))
        insort(line.turns, turn_of(request))
        self._requests[request.request] = request
        self._line_of[request.request] = line

    def remove(self, name: RequestId) -> Request:
        request = self._requests.pop(name, None)
        if request is None:
            raise BrokenInvariant("does not wait", object=name)
        line = self._line_of.pop(name)
        del line.turns[bisect_left(line.turns, turn_of(request))]
        if not line.turns:
            del self.lines[line.key]
        return request

    def line_of(self, name: RequestId) -> Line:
        return self._line_of[name]

    def snapshot(self) -> dict[RequestId, Request]:
        return self._requests.copy()

    def slots(self) -> int:
        """All slots that are waited for."""
        return sum(slots_wanted(request) for request in self._requests.values())
