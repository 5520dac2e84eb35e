"""A pool as it was when a plan was made: what reasons are worked out from, even after the ledger has moved on.

Copies of the books, shared where they can be; never changed.
"""

from __future__ import annotations

from clutch.core.scheduling.ledger import Ledger
from clutch.core.scheduling.room_index import RoomIndex
from clutch.wire.ids import NodeId, RequestId
from clutch.wire.schedule import Holding, Request
from clutch.wire.specs import PoolSpec


class Snapshot:
    """Rooms, holdings, waiting requests, quotas, at one moment."""

    def __init__(self, ledger: Ledger) -> None:
        self.pool: PoolSpec = ledger.pool
        self.version = ledger.version
        self.index: RoomIndex = ledger.index.fork()
        self.empty: RoomIndex = ledger.empty_index()
        self.usual_kind = ledger.usual_kind
        self.waiting: dict[RequestId, Request] = ledger.lines.snapshot()
        self.holdings: dict[RequestId, Holding] = dict(ledger.holdings)
        self.limits: dict[str, int] = dict(ledger.quotas.limits)
        self.nodes: tuple[NodeId, ...] = tuple(ledger.index.nodes)
