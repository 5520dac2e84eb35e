"""Answers that stream: events, output, code; and how they end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
from api_house import DEADLINE_S, House, decoded, open_house, submission, until

from clutch.wire import events as e
from clutch.wire.access import Role
from clutch.wire.api import CodeView, EventView, MasterInfo, NodeDetail, Page, PoolDetail
from clutch.wire.ids import Fence, MemberId, NodeId, TaskId
from clutch.wire.link import OutputPiece
from clutch.wire.output import OutputPage
from clutch.wire.views import NodeView


async def submit(client: httpx.AsyncClient, **fields: Any) -> str:
    answer = await client.post("/api/v1/tasks", json=submission(**fields))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["task"])


# -- events -------------------------------------------------------------------------------------------------------


async def heard(answer: httpx.Response) -> Any:
    """The events of a stream, one by one."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


async def test_events_come_as_pages_and_as_they_happen(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        task = await submit(client)
        page = decoded(await client.get("/api/v1/events"), Page[EventView])
        assert [view.index for view in page.items] == list(range(1, len(page.items) + 1)) and page.next == ""
        kinds = [view.kind for view in page.items]
        assert kinds == ["term_began", "pool_put", "task_submitted"]
        assert page.items[2].workspace == "default" and page.items[2].object == task
        assert f"task={task}" in page.items[2].text and page.items[2].cause == "api:admin"
        first = decoded(await client.get("/api/v1/events?limit=1"), Page[EventView])
        assert first.next == "1"
        only = decoded(await client.get(f"/api/v1/events?kind=task_submitted,task_ended&task={task}"), Page[EventView])
        assert [view.index for view in only.items] == [3]
        for bad in ("after=x", "after=-1", f"after={2**80}", "limit=0", "kind=a%00"):
            assert (await client.get(f"/api/v1/events?{bad}")).status_code == 400, bad

        async with asyncio.timeout(DEADLINE_S):
            async with client.stream("GET", "/api/v1/events", headers={"Accept": "text/event-stream"}) as live:
                assert live.headers["content-type"].startswith("text/event-stream")
                events = heard(live)
                other = await submit(client)
                event = await anext(events)
                assert event["event"] == "task_submitted" and json.loads(event["data"])["object"] == other
                last = event["id"]
                await client.post(f"/api/v1/tasks/{other}/kill")
                assert (await anext(events))["event"] == "task_wished"
            headers = {"Last-Event-ID": last}
            async with client.stream("GET", "/api/v1/events?follow=true&kind=task_ended", headers=headers) as again:
                event = await anext(heard(again))
                assert event["event"] == "task_ended" and json.loads(event["data"])["object"] == other


async def test_events_of_other_workspaces_and_of_the_cluster_are_not_shown(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as admin:
        await house.workspace("lab")
        await house.user("ada", Role.VIEWER, "workspace:lab")
        await house.node("n1")
        await submit(admin)
        mine = await submit(admin, workspace="lab")
        async with house.client("ada") as ada:
            await house.state_is(mine, "running")
            page = decoded(await ada.get("/api/v1/events"), Page[EventView])
            assert page.items and {view.workspace for view in page.items} == {"lab"}
            assert {"task_submitted", "allocation_granted"} <= {view.kind for view in page.items}


async def test_a_reader_far_behind_reads_the_journal(tmp_path: Path) -> None:
    """More facts than the feed keeps in memory: a follower from the first row misses none."""
    async with open_house(tmp_path) as house:
        feed = house.services.feed
        feed._recent = type(feed._recent)(maxlen=50)
        async with house.client() as client, asyncio.timeout(DEADLINE_S):
            tasks = [await submit(client) for _ in range(80)]
            async with client.stream("GET", "/api/v1/events?follow=true&after=0&kind=task_submitted") as live:
                events = heard(live)
                seen = [json.loads((await anext(events))["data"])["object"] for _ in tasks]
            assert seen == tasks


# -- output -------------------------------------------------------------------------------------------------------


def piece(task: str, text: bytes, offset: int = 0, stream: str = "stdout", rank: int = 0) -> OutputPiece:
    return OutputPiece(MemberId(TaskId(task), "main", rank), Fence(1, 1, 1), stream, offset, time.time(), text)


async def test_output_is_paged_followed_and_exact(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client, asyncio.timeout(DEADLINE_S):
        task = await submit(client)
        lane = house.services.output
        await lane.write([piece(task, b"one\ntwo\nthree\n"), piece(task, b"oh: ERROR no\n", stream="stderr")])
        page = decoded(await client.get(f"/api/v1/tasks/{task}/output"), OutputPage)
        assert [line.text for line in page.lines] == ["one", "oh: ERROR no", "two", "three"] or len(page.lines) == 4
        tail = decoded(await client.get(f"/api/v1/tasks/{task}/output?tail=1&streams=stdout"), OutputPage)
        assert [line.text for line in tail.lines] == ["three"]
        found = decoded(await client.get(f"/api/v1/tasks/{task}/output?regex=t[wh]&ranks=0&ranks=1"), OutputPage)
        assert [line.text for line in found.lines] == ["two", "three"]
        worse = decoded(await client.get(f"/api/v1/tasks/{task}/output?level=error"), OutputPage)
        assert [line.text for line in worse.lines] == ["oh: ERROR no"]
        for bad in (
            "regex=(",
            "after=nonsense",
            "head=1&tail=1",
            "limit=0",
            "streams=x",
            "level=x",
            "since=nan",
            "ranks=-1",
        ):
            assert (await client.get(f"/api/v1/tasks/{task}/output?{bad}")).status_code == 400, bad

        raw = await client.get(f"/api/v1/tasks/{task}/output/raw?start=4&stop=8")
        assert raw.content == b"two\n" and raw.headers["clutch-fence"] == "g1e1i1"
        assert (await client.get(f"/api/v1/tasks/{task}/output/raw?rank=5")).status_code == 404
        assert (await client.get(f"/api/v1/tasks/{task}/output/raw?start=0&stop=900")).status_code == 404

        async with client.stream("GET", f"/api/v1/tasks/{task}/output?follow=true&streams=stdout") as live:
            lines = live.aiter_lines()

            async def said() -> OutputPage:
                async for line in lines:
                    if line:
                        return decoded(httpx.Response(200, content=line), OutputPage)
                raise AssertionError("the stream ended")

            assert [line.text for line in (await said()).lines] == ["one", "two", "three"]
            await lane.write([piece(task, b"four\n", 14)])
            assert [line.text for line in (await said()).lines] == ["four"]
            await client.post(f"/api/v1/tasks/{task}/kill")
            assert [line async for line in lines if line] == [], "it ends with its task"


# -- code ---------------------------------------------------------------------------------------------------------


async def test_code_is_uploaded_checked_and_given_to_whom_it_belongs(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as admin:
        await house.workspace("lab")
        await house.user("ada", Role.EDITOR, "workspace:lab")
        await house.user("eve", Role.VIEWER, "workspace:lab")
        await house.user("bob", Role.EDITOR, "workspace:default")
        await house.node("n1")
        data = os.urandom(300_000)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        path = f"/api/v1/code/{digest}"
        async with house.client("ada") as ada, house.client("eve") as eve, house.client("bob") as bob:
            assert (await ada.head(path)).status_code == 404
            wrong = await ada.put(path, content=data[:-1])
            assert wrong.status_code == 400 and wrong.json()["path"] == "digest"
            assert (await ada.head(path)).status_code == 404, "nothing of it is kept"
            large = await ada.put(path, content=b"x" * (2**20 + 1))
            assert large.status_code == 413 and "1 MiB" in large.json()["cause"]

            async def endless() -> Any:
                for _ in range(40):
                    yield b"x" * 2**16

            large = await ada.put(path, content=endless())
            assert large.status_code == 413, "without a length that was said beforehand, too"
            assert (await eve.put(path, content=data)).status_code == 403, "who may submit nowhere uploads nothing"
            for _ in range(2):
                assert decoded(await ada.put(path, content=data), CodeView).size_bytes == len(data)
            assert (await ada.head(path)).status_code == 200 and (await ada.get(path)).content == data
            assert (await bob.get(path)).status_code == 404 and (await eve.get(path)).status_code == 404
            stolen = await bob.post("/api/v1/tasks", json=submission(program={"argv": ["x"], "code": digest}))
            assert stolen.status_code == 400, "knowing a digest is no right to what it stands for"
            assert (await bob.put(path, content=b"guess")).status_code == 400
            assert (await bob.get(path)).status_code == 404
            task = await submit(ada, workspace="lab", program={"argv": ["x"], "code": digest})
            assert (await eve.get(path)).content == data, "a reader of the workspace in which it runs"
            await house.state_is(task, "running")
            state = house.services.loop.state
            member = MemberId(TaskId(task), "main", 0)
            token = house.services.access.task_token(member, state.members[member].fence(state.generation))
            headers = {"Authorization": f"Bearer {token}"}
            assert (await eve.get(path, headers=headers)).content == data
            other = "sha256:" + hashlib.sha256(b"other").hexdigest()
            await admin.put(f"/api/v1/code/{other}", content=b"other")
            assert (await eve.get(f"/api/v1/code/{other}", headers=headers)).status_code == 404
        assert (await admin.get("/api/v1/code/sha256:zz")).status_code == 400


# -- nodes, pools, the master -------------------------------------------------------------------------------------


async def test_nodes_and_pools(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        node = await house.node("gpu-1", 4)
        house.measure(node)
        assert [v.key for v in decoded(await client.get("/api/v1/nodes?state=ready"), Page[NodeView]).items] == [
            "gpu-1"
        ]
        detail = decoded(await client.get("/api/v1/nodes/gpu"), NodeDetail)
        assert len(detail.slots) == 4 and detail.use is not None and detail.use.cpu_percent == 42.0
        assert (await client.put("/api/v1/nodes/gpu-1/slots", json={"disabled": [1, 3]})).status_code == 204
        assert decoded(await client.get("/api/v1/nodes/gpu-1"), NodeDetail).disabled == (1, 3)
        assert (await client.put("/api/v1/nodes/gpu-1/slots", json={"disabled": [9]})).status_code == 400
        task = await submit(client)
        await house.state_is(task, "running")
        pool = decoded(await client.get("/api/v1/pools/default"), PoolDetail)
        assert (pool.nodes, pool.slots, pool.slots_held, pool.running, pool.waiting) == (1, 4, 1, 1, 0)
        (member,) = decoded(await client.get("/api/v1/nodes/gpu-1"), NodeDetail).members
        assert member.member == f"{task}/main.0"
        assert (await client.delete("/api/v1/nodes/gpu-1")).status_code == 409
        assert (await client.post("/api/v1/nodes/gpu-1/drain")).status_code == 204
        await client.post(f"/api/v1/tasks/{task}/kill")
        await until(lambda: not house.services.loop.state.members_on.get(NodeId("gpu-1")))
        assert (await client.post("/api/v1/nodes/gpu-1/open")).status_code == 204
        assert (await client.post("/api/v1/nodes/gpu-1/drain")).status_code == 204
        assert (await client.delete("/api/v1/nodes/gpu-1")).status_code == 204
        assert (await client.get("/api/v1/nodes/gpu-1")).status_code == 404
        made = await client.put("/api/v1/pools/big", json={"name": "big", "interactive_headroom": 2})
        assert decoded(made, PoolDetail).pool.interactive_headroom == 2
        assert (await client.put("/api/v1/pools/big", json={"name": "small"})).status_code == 400
        names = [p.pool.name for p in decoded(await client.get("/api/v1/pools"), Page[PoolDetail]).items]
        assert names == ["big", "default"]


async def test_the_master_says_what_it_is_and_counts(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        await house.node("n1")
        house.measure(NodeId("n1"))
        await submit(client)
        info = decoded(await client.get("/api/v1/master"), MasterInfo)
        assert info.store == "sqlite" and info.term == 1 and info.nodes == 1 and info.tasks == 1
        assert sorted(info.promises) == [f"P{n}" for n in range(1, 9)] and "SQLite" in info.promises["P1"]
        text = (await client.get("/metrics")).text
        for line in (
            'clutch_nodes{pool="default",state="ready"} 1.0',
            'clutch_slots{kind="artificial",pool="default"} 2.0',
            'clutch_slots_held{pool="default"} 1.0',
            'clutch_tasks{pool="default",state="queued"} 0.0',
            'clutch_queue_length{pool="default"} 0.0',
            'clutch_node_cpu_percent{node="n1"} 42.0',
            'clutch_http_requests_total{operation="submit_task",status="2xx"} 1.0',
        ):
            assert line in text, line
        assert "clutch_commit_seconds_count" in text and "clutch_decision_seconds_bucket" in text


# -- how it ends --------------------------------------------------------------------------------------------------


async def test_stopping_cuts_what_would_go_on(tmp_path: Path) -> None:
    async def ended(house: House, path: str) -> None:
        async with house.client() as client, client.stream("GET", path) as live:
            async for _ in live.aiter_bytes():
                pass

    async with open_house(tmp_path) as house, house.client() as client:
        task = await submit(client)
        paths = ("/api/v1/events?follow=true", f"/api/v1/tasks/{task}/output?follow=true")
        streams = [asyncio.create_task(ended(house, path)) for path in paths]
        traffic = house.server.app.state.traffic
        began = time.monotonic()
        await until(lambda: len(house.server._server.server_state.tasks) >= 2)
        house.services.stopping.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*streams)
        assert time.monotonic() - began < 4.0, "cut at once, not after the server's grace"
        assert traffic is not None


async def test_a_standby_says_so(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        house.services.loop.serving.clear()
        health = await client.get("/health")
        assert health.status_code == 200 and health.json()["status"] == "standby"
        for path in ("/api/v1/tasks", "/nowhere", "/docs"):
            answer = await client.get(path)
            assert answer.status_code == 421 and answer.json()["code"] == "not_leader", path
        house.services.loop.serving.set()
        assert (await client.get("/health")).json()["status"] == "serving"
        await house.services.loop.ask(e.Tick())
