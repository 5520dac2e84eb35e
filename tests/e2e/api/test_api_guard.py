"""The guard and the envelope around every request, with routes of the test's own on a real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import websockets
from api_house import DEADLINE_S, House, open_house, submission, until
from litestar import WebSocket, get, post, websocket
from websockets.asyncio.client import connect

from clutch.master.access.caller import Caller
from clutch.master.api.app import BODY_MAX_BYTES, all_routes, make_app
from clutch.master.server import HttpServer, bind
from clutch.master.services import Services
from clutch.wire.access import AuditEntry, Needs, Role
from clutch.wire.api import Page
from clutch.wire.errors import BrokenInvariant, NotAllowed
from clutch.wire.link import FRAME_MAX_BYTES


class Body(msgspec.Struct):
    number: int
    numbers: list[int] = []


@get("/t/forgetful", opt={"needs": Needs.VIEWER})
async def forgetful(services: Services, caller: Caller) -> dict[str, str]:
    """Looks into a workspace without asking whether the caller may."""
    return {"secret": "of the lab"}


@get("/t/both", opt={"needs": Needs.MEMBER_OR_USER})
async def forgetful_of_users(caller: Caller) -> dict[str, str]:
    return {"secret": "of the lab"}


@websocket("/t/socket-forgetful", opt={"needs": Needs.VIEWER})
async def forgetful_socket(socket: WebSocket[Any, Any, Any], caller: Caller) -> None:
    await socket.accept()
    await socket.send_text("secret of the lab")


@websocket("/t/socket", opt={"needs": Needs.USER})
async def echo(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    while True:
        said = await socket.receive_text()
        if said == "trouble":
            raise NotAllowed("no trouble here", object="socket")
        await socket.send_text(str(len(said)))


@get("/t/bug", opt={"needs": Needs.USER})
async def buggy() -> None:
    raise RuntimeError("a password: hunter2")


@post("/t/body", opt={"needs": Needs.USER}, operation_id="post_body")
async def body(data: Body) -> Body:
    return data


@get("/t/for-ever", opt={"needs": Needs.USER})
async def for_ever() -> None:
    await asyncio.Event().wait()


OWN: list[Any] = [forgetful, forgetful_of_users, forgetful_socket, echo, buggy, body, for_ever]


@asynccontextmanager
async def own_routes(tmp_path: Path) -> AsyncIterator[tuple[House, httpx.AsyncClient]]:
    """A house with a second server that has the test's routes too."""
    async with open_house(tmp_path) as house:
        services = house.services
        app = make_app(services, [*all_routes(), *OWN])
        server = HttpServer(app, bind("127.0.0.1", 0), services.settings, services.stopping)
        serving = asyncio.create_task(server.run())
        house.server, house.url = server, server.url
        async with house.client() as client:
            yield house, client
        services.stopping.set()
        await serving


async def test_a_forgotten_question_is_a_bug_and_nothing_leaves(tmp_path: Path) -> None:
    async with own_routes(tmp_path) as (house, client):
        for path in ("/t/forgetful", "/t/both"):
            answer = await client.get(path)
            assert answer.status_code == 500 and answer.json()["code"] == "broken_invariant"
            assert "secret" not in answer.text
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            await connect(
                house.url.replace("http", "ws") + "/t/socket-forgetful",
                additional_headers={"Authorization": f"Bearer {house.tokens['admin']}"},
            )
        assert refused.value.response.status_code == 500


async def test_bugs_and_bad_bodies_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with own_routes(tmp_path) as (_, client):
        answer = await client.get("/t/bug", headers={"X-Request-Id": "my-id"})
        assert answer.status_code == 500 and answer.json()["code"] == "bug" and "hunter2" not in answer.text
        assert answer.headers["x-request-id"] == "my-id" and answer.headers["x-content-type-options"] == "nosniff"
        assert "my-id" in capsys.readouterr().out, "the log has the trace under the same id"
        answer = await client.get("/t/bug", headers={"X-Request-Id": "bad id\tx"})
        assert answer.headers["x-request-id"] != "bad id\tx"
        answer = await client.post("/t/body", json={"number": "x", "numbers": [1, "y"]})
        assert answer.status_code == 400 and answer.json()["path"] in ("number", "numbers[1]")
        for content in (b"", b"{", b'{"number": 1', b"\xff\xfe", b'{"number": "\\ud800"}', b"[]", b"null", b"[" * 5000):
            answer = await client.post("/t/body", content=content)
            assert answer.status_code == 400 and answer.json()["code"] == "bad_request", content[:20]
        answer = await client.post("/t/body", content=b" " * (BODY_MAX_BYTES + 1))
        assert answer.status_code == 413 and answer.json()["code"] == "too_large"
        answer = await client.get("/t/body")
        assert answer.status_code == 405 and "POST" in answer.headers["allow"] and answer.json()["code"]
        answer = await client.get("/nowhere/%00/%ff")
        assert answer.status_code == 404 and answer.json()["code"] == "not_found"


async def test_tokens_come_by_header_or_address_and_never_by_cookie(tmp_path: Path) -> None:
    async with own_routes(tmp_path) as (house, _):
        token, url = house.tokens["admin"], house.url
        cookie = {"Cookie": f"clutch_token={token}"}
        async with house.client("") as client:
            assert (await client.get("/api/v1/me", headers=cookie)).status_code == 401
            assert (await client.get(f"/api/v1/me?token={token}")).status_code == 200
            assert (await client.get("/api/v1/me", headers={"Authorization": f"Basic {token}"})).status_code == 401
            change = {"json": {"number": 1}}
            own = {**cookie, "Origin": url}
            assert (await client.post("/t/body", headers=own, **change)).status_code == 401, "pages of tasks have it"
            answer = await client.post(f"/t/body?token={token}", **change)
            assert answer.status_code == 401, "a link that holds a token only reads"
        socket = url.replace("http", "ws") + "/t/socket"
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            await connect(socket, additional_headers=own)
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body or b"{}")["code"] == "not_authenticated"
        async with connect(f"{socket}?token={token}") as open_socket:
            await open_socket.send("four")
            assert await open_socket.recv() == "4"


async def test_sockets_have_a_frame_limit_and_close_with_reasons(tmp_path: Path) -> None:
    async with own_routes(tmp_path) as (house, _), asyncio.timeout(DEADLINE_S):
        headers = {"Authorization": f"Bearer {house.tokens['admin']}"}
        socket = house.url.replace("http", "ws") + "/t/socket"
        async with connect(socket, additional_headers=headers, max_size=None) as talk:
            await talk.send("x" * FRAME_MAX_BYTES)
            assert await talk.recv() == str(FRAME_MAX_BYTES)
            await talk.send("trouble")
            with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
                await talk.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4403
            assert closed.value.rcvd.reason == "not_allowed: no trouble here"
        async with connect(socket, additional_headers=headers, max_size=None) as talk:
            await talk.send("x" * (FRAME_MAX_BYTES + 1))
            with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
                await talk.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            await connect(house.url.replace("http", "ws") + "/nowhere", additional_headers=headers)
        assert refused.value.response.status_code == 404


async def test_who_waits_is_told_when_the_master_ends(tmp_path: Path) -> None:
    async with own_routes(tmp_path) as (house, client), asyncio.timeout(DEADLINE_S):
        waiting = asyncio.create_task(client.get("/t/for-ever"))
        envelope = house.server.app.state.envelope
        await until(lambda: bool(envelope._under_way))
        began = time.monotonic()
        house.services.stopping.set()
        answer = await waiting
        assert answer.status_code == 503 and answer.json()["code"] == "unavailable"
        assert time.monotonic() - began < 4.0


async def test_changes_are_audited_reads_are_not(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client() as client:
        await house.user("eve", Role.VIEWER, "workspace:default")
        task = (await client.post("/api/v1/tasks", json=submission())).json()["task"]
        await client.get("/api/v1/tasks")
        async with house.client("eve") as eve:
            assert (await eve.post(f"/api/v1/tasks/{task}/kill")).status_code == 403
        await house.services.access.audited()
        page = msgspec.json.decode((await client.get("/api/v1/audit")).content, type=Page[AuditEntry])
        told = [(entry.who, entry.action, entry.object, entry.status) for entry in page.items]
        assert ("user:admin", "submit_task", "/api/v1/tasks", 201) in told
        assert ("user:eve", "kill_task", f"/api/v1/tasks/{task}/kill", 403) in told
        assert not any(action == "list_tasks" for _, action, _, _ in told)


async def test_the_page_about_the_api_needs_nobody_else(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client("") as client:
        page = await client.get("/docs")
        assert page.status_code == 200 and "<title>Clutch API" in page.text
        assert "http://" not in page.text and "https://" not in page.text, "no asset from elsewhere"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        document = (await client.get("/openapi.json")).json()
        assert document["paths"]["/api/v1/tasks"]["post"]["operationId"] == "submit_task"
        assert document["paths"]["/api/v1/tasks"]["post"]["x-needs"] == "editor"
        assert "Submit a task" in document["paths"]["/api/v1/tasks"]["post"]["summary"]
        names = {p["name"] for p in document["paths"]["/api/v1/tasks"]["get"]["parameters"]}
        assert {
            "state",
            "owner",
            "workspace",
            "pool",
            "kind",
            "project",
            "name",
            "live",
            "order",
            "limit",
            "after",
        } <= names
        operations = [operation for verbs in document["paths"].values() for operation in verbs.values()]
        every = {p["name"] for operation in operations for p in operation.get("parameters", ())}
        assert not every & {"services", "caller", "window", "filters", "asked", "which", "wanted", "states"}


async def test_a_route_must_say_what_it_needs(tmp_path: Path) -> None:
    @get("/t/undeclared")
    async def undeclared() -> None: ...

    @get("/t/open", opt={"needs": Needs.PUBLIC})
    async def open_to_all() -> None: ...

    async with open_house(tmp_path) as house:
        with pytest.raises(BrokenInvariant, match="does not say what it needs"):
            make_app(house.services, [undeclared])
        with pytest.raises(BrokenInvariant, match="not one of the public routes"):
            make_app(house.services, [open_to_all])
