"""A master as far as the library goes: real databases, a real loop and app, checkpoints in memory, a real receiver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import httpx
import msgspec
from litestar import get

from clutch.backends.journal.opening import open_journal
from clutch.master.access.caller import Caller
from clutch.master.access.door import Access, live_in
from clutch.master.api import access as roles
from clutch.master.api import users, workspaces
from clutch.master.api.app import make_app
from clutch.master.loop import Loop, LoopSettings
from clutch.master.server import HttpServer, listen
from clutch.master.services import Services
from clutch.master.settings import MasterSettings
from clutch.wire.access import Needs, TokenKind, TokenView
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.experiment_api import CheckpointDetail, ConfigProblem
from clutch.wire.experiment_views import CheckpointRow
from clutch.wire.ids import NodeId
from clutch.wire.messages import Hello, Refusal, Wanted
from clutch.workloads.experiment.library.opening import Library, open_library
from clutch.workloads.experiment.library.part import library_part

API = "/api/v1"


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time


class Silence:
    """Agents that hear nothing."""

    def say(self, node: NodeId, message: Hello | Wanted | Refusal) -> None:
        pass


def checkpoint(key: str, **fields: Any) -> CheckpointRow:
    plain: dict[str, Any] = {
        "experiment": "e-1", "trial": "e-1.1", "task": "e-1.1", "workspace": "default", "step": 10, "epoch": 1,
        "state": "committed", "size_bytes": 7, "storage": "", "has_value": True, "value": 0.25, "pins": "",
        "committed_at": 1.0,
    }  # fmt: skip
    return CheckpointRow(key=key, **plain | fields)


class Checkpoints:
    """Experiments as the library knows them: their checkpoints, and who holds which. ``before`` is run before each word
    is heard, ``after`` when it was heard but is not answered yet; either may raise or wait."""

    def __init__(self) -> None:
        self.rows: dict[str, CheckpointRow] = {}
        self.held: dict[str, set[str]] = {}
        self.needed: set[tuple[str, str]] = set()
        self.before: Callable[[str, bool], Any] | None = None
        self.after: Callable[[str, bool], Any] | None = None

    def add(self, *keys: str, **fields: Any) -> None:
        for key in keys:
            self.rows[key] = checkpoint(key, **fields)
            self.held[key] = set()

    async def checkpoint(self, checkpoint: str) -> CheckpointRow | None:
        return self.rows.get(checkpoint)

    async def needs(self, checkpoint: str, holder: str) -> bool:
        return (checkpoint, holder) in self.needed

    async def pin(self, checkpoints: tuple[str, ...], by: str, hold: bool) -> None:
        if self.before is not None:
            await _awaited(self.before(by, hold))
        for key in checkpoints:
            if key not in self.rows:
                raise NotFound("there is no such checkpoint", object=key)
            if hold and self.rows[key].state != "committed":
                raise Conflict("its files are being removed", object=key)
            self.held[key].add(by) if hold else self.held[key].discard(by)
        if self.after is not None:
            await _awaited(self.after(by, hold))


async def _awaited(found: Any) -> None:
    if asyncio.iscoroutine(found):
        await found


def check_config(config: Mapping[str, Any]) -> tuple[ConfigProblem, ...]:
    """A part of a configuration that only knows three words."""
    for name in config:
        if name not in ("resources", "max_restarts", "searcher", "old"):
            raise BadRequest("there is no such setting", object="config", path=name, next_step="See the reference.")
    return (ConfigProblem(path="old", problem="it is now called max_restarts"),) if "old" in config else ()


@get("/api/v1/checkpoints/{checkpoint:str}", opt={"needs": Needs.USER}, operation_id="a_checkpoint")
async def a_checkpoint(library: Library, caller: Caller, checkpoint: str) -> CheckpointDetail:
    """Stands in for the checkpoints' own route, of which registering asks the whole id."""
    row = await library.holds.look(checkpoint)
    return CheckpointDetail(row=row, files=(), metadata={}, prefix="")


class Person:
    """Somebody with a token."""

    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        self.http = http
        self.token = token

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return await self.http.request(method, API + path, headers=headers, json=body, params=query or None)

    async def good(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        answer = await self.ask(method, path, body, **query)
        assert answer.status_code < 300, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    async def items(self, path: str, **query: Any) -> list[Any]:
        return cast(list[Any], (await self.good("GET", path, **query))["items"])

    async def refused(self, method: str, path: str, body: Any = None, **query: Any) -> int:
        """The status of an error, which must be one of ours and say what to look at."""
        answer = await self.ask(method, path, body, **query)
        assert 400 <= answer.status_code < 500, answer.text
        said = answer.json()
        assert said["code"] and said["cause"] and said["object"], said
        return answer.status_code


class House:
    def __init__(
        self, services: Services, library: Library, checkpoints: Checkpoints, http: httpx.AsyncClient, app: Any
    ) -> None:
        self.services = services
        self.library = library
        self.checkpoints = checkpoints
        self.http = http
        self.app = app
        self.clock = cast(Hand, services.clock)

    async def admin(self) -> Person:
        path = await self.services.access.local_token()
        return Person(self.http, path.read_text().strip())

    async def user(self, name: str, **roles: str) -> Person:
        """A user with these roles by workspace (``cluster`` for all of it)."""
        admin = await self.admin()
        await admin.good("POST", "/users", {"name": name})
        for place, role in roles.items():
            scope = place if place == "cluster" else f"workspace:{place}"
            await admin.good("PUT", "/roles", {"subject": f"user:{name}", "role": role, "scope": scope})
        made = await self.services.access.make_token(TokenView(id="", kind=TokenKind.PERSONAL, user=name), 3600.0)
        return Person(self.http, made.token)


@asynccontextmanager
async def served(house: House) -> AsyncIterator[str]:
    """The address at which the house really listens."""
    server = HttpServer(house.app, listen(house.services.settings), house.services.settings, house.services.stopping)
    running = asyncio.create_task(server.run())
    try:
        yield server.url
    finally:
        house.services.stopping.set()
        await running


@asynccontextmanager
async def open_house(data: Path, db: str = "") -> AsyncIterator[House]:
    """One start of a master; what it leaves in ``data`` is there for the next."""
    settings, clock = MasterSettings(data=data, db=db), Hand()
    journal = await open_journal(db or str(data / "journal.db"))
    loop = Loop(journal, clock, Silence(), {}, Random(1), LoopSettings(holder="test", lead_s=60.0))
    access = await Access.open(settings, clock, live_in(lambda: loop.state))
    await access.bootstrap()
    checkpoints = Checkpoints()
    library = await open_library(settings, clock, access.keys, check_config)
    library.serve(checkpoints)
    parts: dict[str, Any] = dict.fromkeys(Services.__struct_fields__)  # those these routes never touch are absent
    parts.update(settings=settings, clock=clock, loop=loop, journal=journal, access=access, stopping=asyncio.Event())
    services = Services(**parts)
    working = [asyncio.create_task(loop.run()), asyncio.create_task(access.run())]
    try:
        async with asyncio.timeout(30):
            await loop.serving.wait()
        routes = [*roles.ROUTES, *users.ROUTES, *workspaces.ROUTES, a_checkpoint]
        app = make_app(services, routes, [library_part(library)])
        transport = httpx.ASGITransport(app=cast(Any, app), client=("10.1.2.3", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://master") as http:
            yield House(services, library, checkpoints, http, app)
    finally:
        for task in working:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*working, return_exceptions=True)
        await library.close()
        await access.close()
        await journal.close()


# -- a receiver of webhooks ---------------------------------------------------------------------------------------


class Received(msgspec.Struct, frozen=True):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """A real HTTP server. It answers with the next of ``answers``, and 200 when there is none left."""

    def __init__(self) -> None:
        self.got: list[Received] = []
        self.more = asyncio.Event()
        self.answers: list[int] = []
        self.location = ""
        self.port = 0
        self.host = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/hook?room=1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.got.append(Received(line.split()[1], headers, body))
            self.more.set()
            status = self.answers.pop(0) if self.answers else 200
            where = f"Location: {self.location}\r\n" if self.location else ""
            writer.write(f"HTTP/1.1 {status} Whatever\r\n{where}Content-Length: 2\r\n\r\nok".encode())
            await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def open_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver
