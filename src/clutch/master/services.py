"""What the routes stand on: every part of a running master, by name. Made once, in ``main``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from clutch.backends.blobs.base import FullBlobs
from clutch.backends.journal.base import FullJournal
from clutch.master.loop import Clock, Loop
from clutch.master.settings import MasterSettings

if TYPE_CHECKING:
    from clutch.master.access.door import Access
    from clutch.master.access.usage import Usage
    from clutch.master.events import EventFeed
    from clutch.master.link import AgentLinks
    from clutch.master.metrics_lane.lane import MetricsLane
    from clutch.master.monitor import Monitor
    from clutch.master.output.lane import OutputLane
    from clutch.master.proxy.door import Proxy
    from clutch.master.push.service import Push


class Services(msgspec.Struct, frozen=True, kw_only=True):
    settings: MasterSettings
    clock: Clock
    loop: Loop
    journal: FullJournal
    """For reading; only the loop appends."""
    blobs: FullBlobs
    access: Access
    output: OutputLane
    metrics: MetricsLane
    links: AgentLinks
    monitor: Monitor
    feed: EventFeed
    push: Push
    proxy: Proxy
    usage: Usage
    stopping: asyncio.Event
    """Set when this master ends: long answers end too."""
