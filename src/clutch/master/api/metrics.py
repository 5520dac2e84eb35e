"""What tasks reported, for those who look: series by metric, and the newest values."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.di import Provide
from litestar.params import Parameter, QueryParameter

from clutch.master.access.caller import Caller
from clutch.master.api.paging import After, check_cursor
from clutch.master.api.tasks import TASK, Name
from clutch.master.finding import find_task
from clutch.master.services import Services
from clutch.wire.access import Needs
from clutch.wire.api import Page
from clutch.wire.errors import BadRequest
from clutch.wire.ids import TaskId
from clutch.wire.metrics import (
    EXACT_MAX_POINTS,
    NAME_MAX,
    SERIES_MAX_POINTS,
    LatestValue,
    MetricsQuery,
    Series,
    spoken,
)

NAMES_MAX = 100
EXACT_PAGE = 50_000

Group = Annotated[str, Parameter(max_length=NAME_MAX, description="training, validation, or another.")]
Metrics = Annotated[list[str] | None, QueryParameter(name="name", max_items=NAMES_MAX, description="These metrics.")]
Epochs = Annotated[list[int] | None, QueryParameter(name="epoch", max_items=NAMES_MAX, description="These epochs.")]
Points = Annotated[int, Parameter(ge=0, le=SERIES_MAX_POINTS, description="At most so many a series; 0 for all.")]
Exact = Annotated[bool, Parameter(description="Every point, by pages, instead of a choice of them.")]
PagePoints = Annotated[int, Parameter(ge=1, le=EXACT_MAX_POINTS, description="About so many points on an exact page.")]
FirstStep = Annotated[int | None, Parameter(description="From this step on.")]
LastStep = Annotated[int | None, Parameter(description="Up to this step.")]


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


class Form(msgspec.Struct, frozen=True):
    """The query parameters that say how points are answered."""

    points: int
    first_step: int | None
    last_step: int | None
    exact: bool
    after: str
    limit: int


async def give_form(
    points: Points = 1000,
    first_step: FirstStep = None,
    last_step: LastStep = None,
    exact: Exact = False,
    after: After = "",
    limit: PagePoints = EXACT_PAGE,
) -> Form:
    if after and not exact:
        raise BadRequest("only exact reading has pages", object="metrics", path="after", next_step="Give exact=true.")
    return Form(points, first_step, last_step, exact, check_cursor(after), limit)


@get(
    f"{TASK}/metrics",
    operation_id="list_metrics",
    tags=["tasks"],
    dependencies={"asked": Provide(give_asked), "form": Provide(give_form)},
    opt={"needs": Needs.VIEWER},
)
async def list_metrics(
    services: Services, caller: Caller, task: Name, asked: Asked, form: Form, superseded: bool = True
) -> Page[Series]:
    """What a task reported, as one series for each metric, member and epoch, downsampled to ``points``; or, ``exact``,
    every point, by pages, on which a series comes in pieces."""
    found = await find_task(services, caller, task)
    query = MetricsQuery(
        task=TaskId(found.key),
        group=asked.group,
        names=asked.names,
        epochs=asked.epochs,
        first_step=form.first_step,
        last_step=form.last_step,
        points_max=form.points,
        superseded=superseded,
    )
    if form.exact:
        page = await services.metrics.exact(query, form.after, form.limit)
        return Page(tuple(readable(one) for one in page.items), page.next)
    return Page(tuple(readable(one) for one in await services.metrics.series(query)))


@get(f"{TASK}/metrics/latest", operation_id="get_latest_metrics", tags=["tasks"], opt={"needs": Needs.VIEWER})
async def get_latest_metrics(services: Services, caller: Caller, task: Name, group: Group = "") -> Page[LatestValue]:
    """The newest value of each metric of a task."""
    found = await find_task(services, caller, task)
    latest = await services.metrics.latest(TaskId(found.key), group)
    return Page(tuple(msgspec.structs.replace(one, value=spoken(one.value)) for one in latest))


def readable(series: Series) -> Series:
    """For JSON, which has neither NaN nor infinities."""
    if all(type(point.value) is not float or math.isfinite(point.value) for point in series.points):
        return series
    points = tuple(msgspec.structs.replace(point, value=spoken(point.value)) for point in series.points)
    return msgspec.structs.replace(series, points=points)


ROUTES: list[Any] = [list_metrics, get_latest_metrics]
