"""What tasks reported, for those who look: series by metric, and the newest values."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.di import Provide
from litestar.params import Parameter, QueryParameter

from clutch.master.access.caller import Caller
from clutch.master.api.tasks import TASK, Name
from clutch.master.finding import find_task
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import Page
from clutch.wire.errors import BadRequest
from clutch.wire.ids import TaskId
from clutch.wire.metrics import NAME_MAX, SERIES_MAX_POINTS, LatestValue, MetricsQuery, Series, spoken

NAMES_MAX = 100

Group = Annotated[str, Parameter(max_length=NAME_MAX, description="training, validation, or another.")]
Metrics = Annotated[list[str] | None, QueryParameter(name="name", max_items=NAMES_MAX, description="These metrics.")]
Epochs = Annotated[list[int] | None, QueryParameter(name="epoch", max_items=NAMES_MAX, description="These epochs.")]
Points = Annotated[int, Parameter(ge=0, le=SERIES_MAX_POINTS, description="At most so many a series; 0 for all.")]


class Asked(msgspec.Struct, frozen=True):
    """The query parameters that choose points."""

    group: str
    names: tuple[str, ...]
    epochs: tuple[int, ...]


async def give_asked(group: Group = "", name: Metrics = None, epoch: Epochs = None) -> Asked:
    for value in epoch or ():
        if not 0 < value < 2**31:
            raise BadRequest(f"{value} is not an epoch", object="metrics", path="epoch")
    return Asked(group, tuple(name or ()), tuple(epoch or ()))


@get(
    f"{TASK}/metrics",
    operation_id="list_metrics",
    tags=["tasks"],
    dependencies={"asked": Provide(give_asked)},
    opt={"needs": Needs.VIEWER},
)
async def list_metrics(
    services: Services, caller: Caller, task: Name, asked: Asked, points: Points = 1000, superseded: bool = True
) -> Page[Series]:
    """What a task reported, as one series for each metric, member and epoch, downsampled to ``points``."""
    found = await find_task(services, caller, task)
    query = MetricsQuery(
        task=TaskId(found.key),
        group=asked.group,
        names=asked.names,
        epochs=asked.epochs,
        points_max=points,
        superseded=superseded,
    )
    series = await services.metrics.series(query)
    return Page(tuple(readable(one) for one in series))


@get(f"{TASK}/metrics/latest", operation_id="get_latest_metrics", tags=["tasks"], opt={"needs": Needs.VIEWER})
async def get_latest_metrics(services: Services, caller: Caller, task: Name, group: Group = "") -> Page[LatestValue]:
    """The newest value of each metric of a task."""
    found = await find_task(services, caller, task)
    latest = await services.metrics.latest(TaskId(found.key), group)
    return Page(tuple(msgspec.structs.replace(one, value=spoken(one.value)) for one in latest))


def readable(series: Series) -> Series:
    """For JSON, which has neither NaN nor infinities."""
    points = tuple(msgspec.structs.replace(point, value=spoken(point.value)) for point in series.points)
    return msgspec.structs.replace(series, points=points)


ROUTES: list[Any] = [list_metrics, get_latest_metrics]
