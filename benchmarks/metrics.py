"""How fast metrics become durable and charts are answered, beside the bare database, on the same disk in the same run.

    python benchmarks/metrics.py [--points 1000000] [--store sqlite postgres] [--seconds 10]

A point is one value of one metric at one step. First the lane alone: four members report in batches, as rows of ten
metrics and as rows of one; beside it an executemany of the same bytes, and one of the points as plain rows, in as many
commits. Then charts, summaries and exact reading of a series of so many points, through the lane and through the HTTP
route, and one metric of many trials. Then a whole master: another process reports over HTTP at a steady pace while
tasks are submitted one after the other, and what one takes from asking until its grant is durable is told with and
without that load.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import logging
import math
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from clutch.cli.serving import run_loop
from clutch.core.recorded import Recorded
from clutch.master.api.app import make_app
from clutch.master.metrics_lane.lane import MetricsLane
from clutch.master.metrics_lane.opening import open_metrics
from clutch.master.metrics_lane.records import SourceState
from clutch.master.metrics_lane.taking import News
from clutch.master.server import bind
from clutch.master.steadiness import steady
from clutch.testing.postgres import any_server, fresh_database
from clutch.testing.push_master import POOL, PushMaster, _serve, push_master
from clutch.wire import events as e
from clutch.wire.facts import AllocationGranted
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.metrics import TRAINING, MetricBatch, MetricPoint, MetricsQuery
from clutch.wire.programs import Program
from clutch.wire.push import PushMetrics
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, RoleSpec, TaskSpec

FENCE = Fence(1, 1, 1)
MEMBERS = [MemberId(TaskId("benchmark"), "main", rank) for rank in range(4)]
BARS = {"points/s": 100_000, "chart ms": 200.0, "many ms": 1_000.0, "grant ms": 20.0}
NOW = 1_700_000_000.0
TRIALS, TRIAL_POINTS = 100, 10_000


def batches(total: int, rows: int, names: int) -> list[MetricBatch]:
    """So many points in batches of ``rows`` rows with ``names`` metrics each, as a training loop reports them."""
    found = []
    for sequence in range(1, total // (rows * names) + 1):
        steps = range((sequence - 1) * rows, sequence * rows)
        points = [
            MetricPoint(TRAINING, step, {f"metric{k}": _noisy(step, k) for k in range(names)}, NOW + step * 0.137)
            for step in steps
        ]
        found.append(MetricBatch(sequence, tuple(points)))
    return found


def _noisy(step: int, k: int) -> float:
    return math.sin(step / 1_000 + k) + (step * 2_654_435_761 + k * 40_503) % 2**32 / 2**32


async def timed(call: Callable[[], Awaitable[Any]], times: int = 5) -> tuple[float, float, Any]:
    """Milliseconds in the middle and at worst, and the last answer."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        answer = await call()
        taken.append(1e3 * (time.perf_counter() - began))
    return sorted(taken)[times // 2], max(taken), answer


# -- writing ------------------------------------------------------------------------------------------------------


def bodies(made: Sequence[MetricBatch]) -> list[list[tuple[int, bytes, bytes]]]:
    """What the lane would write for one member, commit by commit."""
    state, found = SourceState(MEMBERS[0], FENCE), []
    for one in made:
        news = News(state)
        news.take([one])
        change = news.change([])
        assert change is not None
        found.append([(put.first, put.brief, change.state.latest + put.body) for put in change.puts])
        state = msgspec.structs.replace(change.state, id=1)
    return found


def points_of(made: Sequence[MetricBatch]) -> list[list[tuple[Any, ...]]]:
    """The same points as a plain table would have them, a row each."""
    return [
        [
            (point.group, name, point.step, point.at, value)
            for point in one.points
            for name, value in point.values.items()
        ]
        for one in made
    ]


async def bare(store: str, address: str, folder: Path, commits: list[list[tuple[Any, ...]]]) -> float:
    """Seconds for these rows in as many commits."""
    width = len(commits[0][0])
    if store == "sqlite":
        db = sqlite3.connect(folder / "bare.db", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("DROP TABLE IF EXISTS bare")
        db.execute(f"CREATE TABLE bare ({', '.join(f'c{n}' for n in range(width))})")
        insert = f"INSERT INTO bare VALUES ({', '.join('?' * width)})"
        began = time.perf_counter()
        for rows in commits:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(insert, rows)
            db.execute("COMMIT")
        took = time.perf_counter() - began
        db.close()
        return took
    import asyncpg

    types = {int: "bigint", bytes: "bytea", float: "double precision", str: "text"}
    columns = ", ".join(f"c{n} {types[type(value)]}" for n, value in enumerate(commits[0][0]))
    connection = await asyncpg.connect(address)
    await connection.execute("DROP TABLE IF EXISTS bare")
    await connection.execute(f"CREATE TABLE bare ({columns})")
    insert = f"INSERT INTO bare VALUES ({', '.join(f'${n + 1}' for n in range(width))})"
    began = time.perf_counter()
    for rows in commits:
        async with connection.transaction():
            await connection.executemany(insert, rows)
    took = time.perf_counter() - began
    await connection.close()
    return took


async def write(lane: MetricsLane, members: Sequence[MemberId], made: Sequence[MetricBatch]) -> float:
    """Seconds until every member's batches are durable, each sent when the one before it was acknowledged."""

    async def report(member: MemberId) -> None:
        for one in made:
            await lane.write(member, FENCE, [one])

    began = time.perf_counter()
    await asyncio.gather(*(report(member) for member in members))
    return time.perf_counter() - began


async def measure_writing(store: str, address: str, folder: Path, points: int) -> None:
    for names, rows in ((10, 1_000), (1, 1_000), (1, 10_000), (10, 10)):
        total = points // 4 if rows >= 1_000 else points // 40
        made = batches(total, rows, names)
        members = [msgspec.structs.replace(one, task=TaskId(f"{names}x{rows}")) for one in MEMBERS]
        async with open_metrics(address) as lane:
            took = await write(lane, members, made)
        few = await bare(store, address, folder, bodies(made)) * len(members)
        many = await bare(store, address, folder, points_of(made)) * len(members)
        speed = len(members) * sum(len(one.points) * names for one in made) / took
        print(
            f"  {rows:6,} rows of {names:2} metrics  {speed:10,.0f} points/s   (bar {BARS['points/s']:,})"
            f"   {few / took:5.2f} of an executemany of its bytes, {many / took:.2f} of one of the points"
        )


# -- reading ------------------------------------------------------------------------------------------------------


async def measure_reading(address: str, points: int) -> None:
    task = TaskId("chart")
    async with open_metrics(address) as lane:
        member = MemberId(task, "main", 0)
        await write(lane, [member], batches(points, 1_000, 1))
        for most in (200, 1_000, 5_000):
            query = MetricsQuery(task=task, group=TRAINING, names=("metric0",), points_max=most)
            middle, worst, found = await timed(lambda query=query: lane.series(query))  # type: ignore[misc]
            assert found[0].total == points
            print(
                f"  chart of {points:,} points as {most:5,}  {middle:6.1f} ms in the middle, {worst:.1f} at worst"
                f"   (bar {BARS['chart ms']:.0f})"
            )
        middle, worst, _ = await timed(lambda: lane.summaries(task))
        print(f"  summaries                       {middle:6.1f} ms in the middle, {worst:.1f} at worst")
        began, count, after, pages = time.perf_counter(), 0, "", 0
        while pages == 0 or after:
            page = await lane.exact(MetricsQuery(task=task), after)
            count, after, pages = count + sum(one.total for one in page.items), page.next, pages + 1
        assert count == points
        print(f"  every point, {pages:3} pages          {count / (time.perf_counter() - began):10,.0f} points/s")
        trials = [TaskId(f"trial.{n}") for n in range(TRIALS)]
        made = batches(TRIAL_POINTS, 1_000, 1)
        await write(lane, [MemberId(trial, "main", 0) for trial in trials], made)
        for most in (100, 1_000):
            middle, worst, found = await timed(
                lambda most=most: lane.series_many(trials, TRAINING, "metric0", most),
                3,  # type: ignore[misc]
            )
            assert sum(one.total for one in found) == TRIALS * TRIAL_POINTS
            print(
                f"  {TRIALS} trials x {TRIAL_POINTS:,} as {most:5,}"
                f"     {middle:6.1f} ms in the middle, {worst:.1f} at worst"
                f"   (bar {BARS['many ms']:.0f})"
            )
        middle, worst, _ = await timed(lambda: lane.summaries_many(trials), 3)
        print(f"  summaries of {TRIALS} trials         {middle:6.1f} ms in the middle, {worst:.1f} at worst")


# -- a whole master -----------------------------------------------------------------------------------------------


def send(url: str, token: str, seconds: float, pace: float, form: str) -> None:
    """Report points over HTTP, at most ``pace`` a second; what was acknowledged is printed. A process of its own."""
    names, rows = (10, 1_000) if form == "ten" else (1, 1_000)
    one, host = batches(names * rows, rows, names)[0], urlsplit(url).netloc
    parts = [msgspec.json.encode(PushMetrics(batches=(MetricBatch(n, one.points),))) for n in range(1, 2)]
    tail = parts[0].split(b'"sequence":1', 1)
    connection = http.client.HTTPConnection(host)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    began, done, sequence = time.perf_counter(), 0, 0
    while (now := time.perf_counter() - began) < seconds:
        if done > now * pace:
            time.sleep(done / pace - now)
        sequence += 1
        connection.request("POST", "/api/v1/run/metrics", (b'"sequence":%d' % sequence).join(tail), headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        done += names * rows
    print(done / (time.perf_counter() - began))


class Grants:
    """Asks for tasks, one after the other, and hears when the grant of each is durable."""

    def __init__(self, master: PushMaster) -> None:
        self._loop = master.loop
        self._waiting: dict[TaskId, asyncio.Future[None]] = {}
        self._loop.listeners.append(self._heard)

    def _heard(self, recorded: Sequence[Recorded]) -> None:
        for entry in recorded:
            if isinstance(entry.fact, AllocationGranted) and entry.fact.task in self._waiting:
                self._waiting.pop(entry.fact.task).set_result(None)

    async def measure(self, seconds: float) -> list[float]:
        """Milliseconds from asking until the grant was durable."""
        roles = (RoleSpec("main", Members(1, Resources(0, ""))),)
        payload = msgspec.msgpack.encode(Program(argv=("true",)))
        taken: list[float] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            task = TaskId(f"g{time.time_ns()}")
            spec = TaskSpec(kind="command", name=task, pool=POOL, roles=roles, workspace="default", payload=payload)
            granted = self._waiting[task] = asyncio.get_running_loop().create_future()
            began = time.perf_counter()
            await self._loop.ask(e.Submit(cause="benchmark", task=task, spec=spec))
            await granted
            taken.append(1e3 * (time.perf_counter() - began))
            await self._loop.ask(e.Cancel(cause="benchmark", task=task))
            await asyncio.sleep(0.02)
        return sorted(taken)


def told(words: str, taken: list[float]) -> None:
    p50, p99 = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
    bar = f"(bar {BARS['grant ms']:.0f} at p99)"
    print(f"  {words:30} {p50:6.1f} ms p50, {p99:.1f} p99, {taken[-1]:.1f} worst of {len(taken)}   {bar}")


async def sender(*words: object) -> float:
    """The points a second that another process could report."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--send", *map(str, words), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return float(said)


async def measure_master(addresses: tuple[str, str], folder: Path, seconds: float, points: int) -> None:
    journal, metrics = addresses
    async with push_master(folder, journal=journal, metrics=metrics) as master:
        asking = Grants(master)
        steady()
        told("grants, no load", await asking.measure(seconds / 2))
        for form in ("ten", "one"):
            for pace in (BARS["points/s"], 1e12):
                token = (await master.submit(f"load.{form}.{int(pace)}"))[0]
                sending = asyncio.create_task(sender(master.url, token, seconds, pace, form))
                taken = await asking.measure(seconds - 0.5)
                speed = await sending
                told(f"grants, rows of {form}, {speed:,.0f}/s", taken)
        await measure_route(master, points)


async def measure_route(master: PushMaster, points: int) -> None:
    """A chart as a browser asks for it."""
    import httpx

    from clutch.master.api import metrics as metrics_routes

    token = (await master.submit("route"))[0]
    identity = MemberId(TaskId("route"), "main", 0)
    fence = master.loop.state.members[identity].fence(master.loop.state.generation)
    for one in batches(points, 10_000, 1):
        await master.services.metrics.write(identity, fence, [one])
    user = await master.user("looker", "viewer", "default")
    app = make_app(master.services, metrics_routes.ROUTES)
    listener = bind("127.0.0.1", 0)
    server = _serve(app)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/api/v1/tasks/route/metrics"
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {user}"}, trust_env=False, timeout=60) as client:

        async def chart() -> Any:
            answer = await client.get(url, params={"name": "metric0", "group": TRAINING, "points": 1_000})
            assert answer.status_code == 200, answer.text
            return answer.json()

        middle, worst, found = await timed(chart)
        assert found["items"][0]["total"] == points, found["items"][0]["total"]
        print(
            f"  chart of {points:,} points by HTTP  {middle:6.1f} ms in the middle, {worst:.1f} at worst"
            f"   (bar {BARS['chart ms']:.0f})"
        )
    assert token
    server.should_exit = True
    await serving


# -- all of it ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def databases(store: str, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The addresses of a journal and of metrics."""
    if store == "sqlite":
        yield str(folder / "journal.db"), str(folder / "metrics.db")
        return
    with any_server() as server:
        async with fresh_database(server, "benchmark_metrics") as database:
            yield database, database


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--store", nargs="*", default=["sqlite", "postgres"])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", default=["writing", "reading", "master"])
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for store in given.store:
        print(store)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            async with databases(store, folder) as (journal, metrics):
                if "writing" in given.only:
                    await measure_writing(store, metrics, folder, given.points)
                if "reading" in given.only:
                    await measure_reading(metrics, given.points)
                if "master" in given.only:
                    await measure_master((journal, metrics), folder, given.seconds, given.points)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--send"]:
        send(sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]), sys.argv[6])
    else:
        run_loop(main())
