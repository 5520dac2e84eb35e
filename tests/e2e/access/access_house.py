"""A master as far as access goes: its loop over a real journal, its real app, and clients with tokens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import httpx
import msgspec

from clutch.backends.journal.opening import open_journal
from clutch.master.access.door import Access, live_in
from clutch.master.access.login import Logins
from clutch.master.access.usage import Usage
from clutch.master.api import access as roles
from clutch.master.api import (
    audit,
    enrol,
    groups,
    login,
    quotas,
    secrets,
    tokens,
    usage,
    users,
    workspaces,
)
from clutch.master.api.app import make_app
from clutch.master.loop import Loop, LoopSettings
from clutch.master.services import Services
from clutch.master.settings import MasterSettings
from clutch.wire import events as e
from clutch.wire.access import MadeToken, TokenView
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.messages import Hello, Refusal, Report, Wanted
from clutch.wire.resources import Capacity, Slot
from clutch.wire.specs import PoolSpec

FILES: tuple[Any, ...] = (
    roles, audit, enrol, groups, login, quotas, secrets, tokens, usage, users, workspaces,
)  # fmt: skip
ROUTES = [route for file in FILES for route in file.ROUTES]
API = "/api/v1"


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time


class Silence:
    """Agents that hear nothing: what they would say, a test says."""

    def say(self, node: NodeId, message: Hello | Wanted | Refusal) -> None:
        pass


class Client:
    """Somebody with a token."""

    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        self.http = http
        self.token = token

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        path = path if path.startswith("/agent") else API + path
        return await self.http.request(method, path, headers=headers, json=body, params=query or None)

    async def get(self, path: str, **query: Any) -> Any:
        return _good(await self.ask("GET", path, **query)).json()

    async def items(self, path: str, **query: Any) -> list[Any]:
        return cast(list[Any], (await self.get(path, **query))["items"])

    async def post(self, path: str, **body: Any) -> Any:
        return _good(await self.ask("POST", path, body)).json()

    async def put(self, path: str, **body: Any) -> Any:
        return _good(await self.ask("PUT", path, body)).json()

    async def patch(self, path: str, **body: Any) -> Any:
        return _good(await self.ask("PATCH", path, body)).json()

    async def delete(self, path: str, **query: Any) -> None:
        _good(await self.ask("DELETE", path, **query))

    async def status(self, method: str, path: str, body: Any = None, **query: Any) -> int:
        """What it was answered with; an error must be one of ours."""
        answer = await self.ask(method, path, body, **query)
        if answer.status_code >= 400:
            assert answer.json()["code"] and answer.status_code < 500, answer.text
        return answer.status_code


def _good(answer: httpx.Response) -> httpx.Response:
    assert answer.status_code < 300, f"{answer.request.method} {answer.request.url}: {answer.text}"
    return answer


class House:
    def __init__(self, services: Services, http: httpx.AsyncClient, usage: Usage) -> None:
        self.services = services
        self.access = services.access
        self.loop = services.loop
        self.http = http
        self.usage = usage
        self.clock = cast(Hand, services.clock)
        self.nobody = Client(http, "")

    async def admin(self) -> Client:
        path = await self.access.local_token()
        return Client(self.http, path.read_text().strip())

    async def token(self, user: str, **view: Any) -> Client:
        made: MadeToken = await self.access.make_token(
            msgspec.convert({"id": "", "kind": "personal", "user": user, **view}, TokenView), 3600.0
        )
        return Client(self.http, made.token)

    async def user(self, name: str, **roles: str) -> Client:
        """A user with these roles by workspace (``cluster`` for all of it)."""
        admin = await self.admin()
        await admin.post("/users", name=name)
        for place, role in roles.items():
            scope = place if place == "cluster" else f"workspace:{place}"
            await admin.put("/roles", subject=f"user:{name}", role=role, scope=scope)
        return await self.token(name)

    async def add_node(self, node: str = "n", slots: int = 4) -> None:
        """An agent that has reported."""
        state = self.loop.state
        report = Report(
            node=NodeId(node),
            pool=PoolName("default"),
            session="s",
            sequence=1,
            wanted_sequence=state.index,
            generation=state.generation,
            term=state.term,
            greeting=1,
            capacity=Capacity(tuple(Slot(i, "cuda") for i in range(slots)), 8000, 2**30),
        )
        await self.loop.ask(e.Reported(cause=f"agent:{node}", report=report))


@asynccontextmanager
async def open_house(data: Path, db: str = "") -> AsyncIterator[House]:
    """One start of a master; what it leaves in ``data`` is there for the next."""
    settings = MasterSettings(data=data, db=db)
    clock = Hand()
    journal = await open_journal(db or str(data / "journal.db"))
    loop = Loop(journal, clock, Silence(), {}, Random(1), LoopSettings(holder="test", lead_s=60.0))
    access = await Access.open(settings, clock, live_in(lambda: loop.state))
    access.logins = Logins(access, cost=(4, 8, 1))  # what a guess costs is tried elsewhere
    await access.bootstrap()
    accounts = Usage(access.store.usage, journal, clock, loop.settled, list)
    loop.listeners.append(accounts.hear)
    parts: dict[str, Any] = dict.fromkeys(Services.__struct_fields__)  # those these routes never touch are absent
    parts.update(settings=settings, clock=clock, loop=loop, journal=journal, access=access, usage=accounts)
    services = Services(**parts | {"stopping": asyncio.Event()})
    working = [asyncio.create_task(loop.run()), asyncio.create_task(access.run())]
    try:
        async with asyncio.timeout(30):
            await loop.serving.wait()
        if PoolName("default") not in loop.state.pools:
            await loop.ask(e.PutPool(cause="test", pool=PoolSpec(PoolName("default"))))
        transport = httpx.ASGITransport(app=cast(Any, make_app(services, ROUTES)), client=("10.1.2.3", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://master") as http:
            yield House(services, http, accounts)
    finally:
        for task in working:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*working, return_exceptions=True)
        await access.close()
        await journal.close()
