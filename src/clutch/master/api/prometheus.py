"""``/metrics`` for Prometheus."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from clutch.master.prometheus import CONTENT_TYPE, Scrape
from clutch.master.services import Services
from clutch.wire.access import Needs


@get(
    "/metrics",
    operation_id="get_metrics",
    tags=["master"],
    opt={"needs": Needs.CLUSTER_VIEWER},
    media_type="text/plain",
)
async def get_metrics(request: Request[Any, Any, Any], services: Services) -> Response[bytes]:
    """Counters and gauges in Prometheus' text format."""
    scrape = Scrape()
    scrape.add_output(await services.output.store.size_bytes())
    state = await services.loop.settled()
    scrape.add_state(state, services.loop.plans.items())
    scrape.add_use(services.monitor.nodes())
    return Response(scrape.text(request.app.state.traffic), media_type=CONTENT_TYPE)


ROUTES: list[Any] = [get_metrics]
