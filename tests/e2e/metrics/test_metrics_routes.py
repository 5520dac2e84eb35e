"""Charts and exact pages over HTTP from a real master, and what a file of them holds: CSV, Parquet, TensorBoard."""

from __future__ import annotations

import asyncio
import csv
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from clutch.master.api import metrics as metrics_routes
from clutch.master.api.app import make_app
from clutch.master.server import bind
from clutch.sdk.metric_export import export, pages
from clutch.testing.push_master import PushMaster, _serve, push_master
from clutch.wire.api import Page
from clutch.wire.ids import MemberId, TaskId
from clutch.wire.metrics import MetricBatch, MetricPoint, Series, Value

ODD: list[Value] = [math.nan, math.inf, -math.inf, 2**63 - 1, 'text, "quoted"\nand more', -0.0, 5e-324, 0.1]
POINTS = 60_000


@asynccontextmanager
async def reading(master: PushMaster) -> AsyncIterator[httpx.AsyncClient]:
    token = await master.user("looker", "viewer", "default")
    listener = bind("127.0.0.1", 0)
    server = _serve(make_app(master.services, metrics_routes.ROUTES))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/api/v1/tasks/task"
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
        yield client
    server.should_exit = True
    await serving


async def get(client: httpx.AsyncClient, **query: Any) -> Page[Series]:
    answer = await client.get("/metrics", params=query)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=Page[Series])


async def test_charts_and_exports(tmp_path: Path) -> None:
    async with push_master(tmp_path / "data") as master:
        await master.submit("task")
        member = MemberId(TaskId("task"), "main", 0)
        fence = master.loop.state.members[member].fence(master.loop.state.generation)
        for sequence in range(6):
            first = sequence * 10_000
            points = [MetricPoint("training", n, {"loss": n / 7}, n / 2) for n in range(first, first + 10_000)]
            await master.services.metrics.write(member, fence, [MetricBatch(sequence + 1, tuple(points))])
        odd = [MetricPoint("odd", n, {"value": value}, float(n)) for n, value in enumerate(ODD)]
        await master.services.metrics.write(member, fence, [MetricBatch(7, tuple(odd))])
        async with reading(master) as client:
            chart = await get(client, name="loss", points=100)
            assert chart.items[0].total == POINTS
            assert len(chart.items[0].points) <= 101
            zoomed = await get(client, name="loss", points=1_000, first_step=500, last_step=600)
            assert [one.step for one in zoomed.items[0].points] == list(range(500, 601))
            found: list[Page[Series]] = []
            after = ""
            while not found or after:
                found.append(await get(client, exact=True, limit=7_000, after=after))
                after = found[-1].next
            refused = await client.get("/metrics", params={"after": "1.1.1"})
            assert refused.status_code == 400
            assert (await client.get("/metrics", params={"exact": True, "after": "x"})).status_code == 400
    assert len(found) > 4
    assert max(sum(one.total for one in page.items) for page in found) <= 7_000 + len(ODD)
    asked = dict(zip(["", *(page.next for page in found)], found, strict=False))
    await asyncio.to_thread(_check_files, lambda cursor: asked[cursor], tmp_path)


def _check_files(ask: Any, folder: Path) -> None:
    total = POINTS + len(ODD)
    assert export(pages(ask), folder / "all.csv") == total
    with (folder / "all.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    loss = [row for row in rows if row["name"] == "loss"]
    assert [(int(row["step"]), float(row["at"]), float(row["value"])) for row in loss] == [
        (n, n / 2, n / 7) for n in range(POINTS)
    ]
    assert [row["value"] for row in rows if row["name"] == "value"] == [
        "NaN", "Infinity", "-Infinity", str(2**63 - 1), ODD[4], "-0.0", "5e-324", "0.1",
    ]  # fmt: skip
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export(pages(ask), folder / "all.parquet") == total
    table = parquet.read_table(folder / "all.parquet").to_pylist()
    assert [row["value"] for row in table if row["name"] == "loss"] == [n / 7 for n in range(POINTS)]
    odd = [row for row in table if row["name"] == "value"]
    assert (odd[3]["integer"], odd[4]["text"], odd[4]["value"]) == (2**63 - 1, ODD[4], None)
    assert math.isnan(odd[0]["value"])
    assert export(pages(ask), folder / "board") == total - 1, "a text is no scalar"
    _check_board(folder / "board" / "task-main-0")


def _check_board(run: Path) -> None:
    """The real reader of TensorBoard."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(run), size_guidance={accumulator.SCALARS: 0})
    reader.Reload()
    assert reader.Tags()["scalars"] == ["training/loss", "odd/value"]
    loss = reader.Scalars("training/loss")
    assert [(one.step, one.wall_time) for one in loss] == [(n, n / 2) for n in range(POINTS)]
    assert all(math.isclose(one.value, one.step / 7, rel_tol=1e-6) for one in loss)
    odd = [one.value for one in reader.Scalars("odd/value")]
    assert math.isnan(odd[0])
    assert odd[1:3] == [math.inf, -math.inf]
    assert len(odd) == len(ODD) - 1
