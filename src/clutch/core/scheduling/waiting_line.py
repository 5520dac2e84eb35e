"""Who waits in one pool, in lines of requests that are interchangeable for fitting.

If the first of a line finds no room, nobody behind it in that line can: a pass over ten thousand requests looks at a
few dozen lines. A line is made of queues, one for each owner, workspace and group that is bounded, so that a quota that
is full closes a queue and not the line. The order in a queue is (priority, order, id). It knows no room and no time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

from clutch.core.scheduling.demand import Demand, is_open, line_key, slots_wanted
from clutch.core.scheduling.quota import QuotaBook, group_of, user_scope, workspace_scope
from clutch.wire.errors import BrokenInvariant
from clutch.wire.ids import RequestId
from clutch.wire.resources import ANY
from clutch.wire.schedule import Request

Turn = tuple[int, int, RequestId]
"""Sorts by importance, then by who came first."""


def turn_of(request: Request) -> Turn:
    return (request.priority, request.order, request.request)


class Line:
    """Requests with one demand, in queues by who is bound by the same limits, each in turn."""

    __slots__ = ("demand", "fits_empty", "key", "number", "queues")

    def __init__(self, key: tuple[object, ...], demand: Demand, number: int) -> None:
        self.key = key
        self.number = number
        """Different for every line of a pool."""
        self.demand = demand
        self.queues: dict[tuple[object, ...], list[Turn]] = {}
        self.fits_empty: tuple[int, bool] | None = None
        """Remembered by the ledger: for which version of the rooms, whether an empty pool could hold it."""


class WaitingLines:
    """All lines of a pool."""

    def __init__(self, quotas: QuotaBook) -> None:
        self._quotas = quotas
        self._lines: dict[tuple[object, ...], Line] = {}
        self._requests: dict[RequestId, Request] = {}
        self._line_of: dict[RequestId, Line] = {}
        self._made = 0
        self._usual = ANY
        self._scopes_version = quotas.scopes_version

    @property
    def requests(self) -> Mapping[RequestId, Request]:
        return self._requests

    @property
    def lines(self) -> Mapping[tuple[object, ...], Line]:
        """By key; their queues follow the scopes that are bounded now."""
        self._follow_scopes()
        return self._lines

    def add(self, request: Request) -> None:
        if request.request in self._requests:
            raise BrokenInvariant("waits already", object=request.request)
        self._follow_scopes()
        key = line_key(request)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key, Demand(request, self._usual), self._made)
            self._made += 1
        insort(line.queues.setdefault(self._queue_key(request), []), turn_of(request))
        self._requests[request.request] = request
        self._line_of[request.request] = line

    def remove(self, name: RequestId) -> Request:
        self._follow_scopes()
        request = self._requests.pop(name, None)
        if request is None:
            raise BrokenInvariant("does not wait", object=name)
        line = self._line_of.pop(name)
        key = self._queue_key(request)
        queue = line.queues[key]
        del queue[bisect_left(queue, turn_of(request))]
        if not queue:
            del line.queues[key]
            if not line.queues:
                del self._lines[line.key]
        return request

    def mean(self, usual: str) -> None:
        """From now on slots of any kind are of this one."""
        if usual == self._usual:
            return
        self._usual = usual
        for name, request in self._requests.items():
            if is_open(request):
                line = self._line_of[name]
                line.demand = Demand(request, usual)
                line.fits_empty = None

    def _queue_key(self, request: Request) -> tuple[object, ...]:
        """Requests of one line with equal keys are refused alike by quotas and caps."""
        limits = self._quotas.limits
        owner = request.owner if user_scope(request.owner) in limits else None
        workspace = request.workspace if workspace_scope(request.workspace) in limits else None
        if not request.max_slots:
            return (owner, workspace)
        return (owner, workspace, group_of(request), request.max_slots)

    def _follow_scopes(self) -> None:
        """Sort into other queues when another scope is bounded, or one no longer is."""
        if self._scopes_version == self._quotas.scopes_version:
            return
        self._scopes_version = self._quotas.scopes_version
        for line in self._lines.values():
            line.queues = {}
        for name, request in self._requests.items():
            insort(self._line_of[name].queues.setdefault(self._queue_key(request), []), turn_of(request))

    def check(self, usual: str) -> None:
        """Raise ``BrokenInvariant`` where a line stands for other slots than its requests ask for."""
        for name, request in self._requests.items():
            if Demand(request, usual).slots_by_kind != self._line_of[name].demand.slots_by_kind:
                raise BrokenInvariant("its line asks for slots of another kind", object=name)

    def line_of(self, name: RequestId) -> Line:
        return self._line_of[name]

    def snapshot(self) -> dict[RequestId, Request]:
        return self._requests.copy()

    def slots(self) -> int:
        """All slots that are waited for."""
        return sum(slots_wanted(request) for request in self._requests.values())
