"""A master with only the agents' routes, in a process of its own: real loop, real SQLite, real HTTP. Made to be killed.

python master_child.py FOLDER PORT    (0: any; it says which)

It answers one JSON object a line: ``{"do": VERB, ...}`` in, ``{"said": ...}`` out.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import structlog
import uvicorn
from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import NotAuthorizedException
from litestar.handlers.base import BaseRouteHandler
from litestar.params import SkipValidation

from clutch.backends.journal.opening import open_journal
from clutch.core.recorded import Recorded
from clutch.core.story import tell
from clutch.master.access.caller import Caller
from clutch.master.api.agents import ROUTES
from clutch.master.bulk import OutputFrame
from clutch.master.link import AgentLinks
from clutch.master.loop import Loop, LoopSettings
from clutch.master.monitor import Monitor
from clutch.master.output.lane import OutputLane
from clutch.master.output.opening import open_output
from clutch.master.services import Services
from clutch.wire import events as e
from clutch.wire.access import CallerKind
from clutch.wire.containers import RunAs
from clutch.wire.errors import ClutchError
from clutch.wire.ids import MemberId, NodeId, PoolName, TaskId
from clutch.wire.link import OutputCommitted, OutputPiece
from clutch.wire.programs import Kit, KitRequest, Program
from clutch.wire.resources import ARTIFICIAL, Resources
from clutch.wire.specs import Members, OnNodeLost, PoolSpec, RoleSpec, TaskSpec

POOL = PoolName("default")


class WallClock:
    def now(self) -> float:
        return time.time()


class CountingLane:
    """The real lane, and how many bytes were carried to it."""

    def __init__(self, lane: OutputLane) -> None:
        self.lane = lane
        self.carried_bytes = 0
        self.writes = 0
        self.first_at: dict[str, float] = {}
        self.opened = lane.opened

    async def write(self, frames: Sequence[OutputFrame]) -> list[OutputCommitted]:
        self.writes += 1
        self.carried_bytes += sum(len(frame.data) for frame in frames if isinstance(frame, OutputPiece))
        committed = await self.lane.write(frames)
        for frame in frames:
            self.first_at.setdefault(frame.member.task, time.monotonic())
        return committed


class PlainKits:
    """Secrets are what their names say; a task called ``refused`` gets none."""

    async def kit(self, node: NodeId, request: KitRequest) -> Kit:
        if request.member.task.startswith("refused"):
            return Kit(request.member, request.fence, error="there is no secret named moon")
        if request.member.task.startswith("slowkit"):
            await asyncio.sleep(600)
        run_as = RunAs(65534, 65534) if request.member.task.startswith("nobody") else None
        return Kit(request.member, request.fence, {"CLUTCH_TOKEN": "t", "SECRET": "s3cret"}, run_as)


async def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """A token is ``node-NAME``."""
    token = connection.headers.get("authorization", "").removeprefix("Bearer ")
    if not token.startswith("node-"):
        raise NotAuthorizedException("no token")
    connection.scope["state"]["caller"] = Caller(CallerKind.AGENT, token.removeprefix("node-"))


def make_app(links: AgentLinks) -> Litestar:
    async def give_services() -> Any:
        return SimpleNamespace(links=links)

    async def give_caller(scope: Any) -> Any:
        return scope["state"]["caller"]

    return Litestar(
        ROUTES,
        guards=[guard],
        dependencies={"services": Provide(give_services), "caller": Provide(give_caller)},
        signature_namespace={"Services": SkipValidation[Services], "Caller": SkipValidation[Caller]},
        openapi_config=None,
        logging_config=None,
    )


class House:
    def __init__(self, loop: Loop, links: AgentLinks, lane: CountingLane, monitor: Monitor) -> None:
        self.loop = loop
        self.links = links
        self.lane = lane
        self.monitor = monitor
        self.stories: dict[str, list[str]] = {}
        loop.listeners.append(self._listen)

    def _listen(self, recorded: Sequence[Recorded]) -> None:
        for entry in recorded:
            words = tell(entry.fact)
            for task in self.loop.state.tasks.keys() | self.stories.keys():
                if task in words:
                    self.stories.setdefault(task, []).append(words)

    async def do(self, wish: dict[str, Any]) -> Any:
        match wish.pop("do"):
            case "submit":
                return await self.submit(**wish)
            case "kill":
                await self.loop.ask(e.Kill(task=TaskId(wish["task"])))
            case "cancel":
                await self.loop.ask(e.Cancel(task=TaskId(wish["task"])))
            case "state":
                return await self.state()
            case "reasons":
                return [
                    self.monitor.exit_reason(key[0], key[1])
                    for key in list(self.monitor._exits)
                    if key[0].task == wish["task"]
                ]
            case "story":
                return self.stories.get(wish["task"], [])
            case "use":
                use = self.monitor.node(NodeId(wish["node"]))
                return None if use is None else msgspec.to_builtins(use)
            case "lane":
                return {"carried": self.lane.carried_bytes, "writes": self.lane.writes}
            case "output":
                return b64encode(await self.output(**wish)).decode()
            case "latency":
                return await self.latency(wish["task"])
            case "echo":
                return await self.echo(**wish)
        return None

    async def output(self, task: str, stream: str) -> bytes:
        found = bytearray()
        for state in await self.lane.lane.store.streams(TaskId(task)):
            if state.stream == stream:
                async for data in self.lane.lane.raw(state.member, state.fence, stream, 0, state.committed):
                    found += data
        return bytes(found)

    async def submit(
        self, task: str, program: dict[str, Any], slots: int = 1, on_lost: str = "restart", leave_s: float = 30.0
    ) -> str:
        role = RoleSpec(name="main", shape=Members(count=1, each=Resources(slots=slots, kind=ARTIFICIAL)))
        spec = TaskSpec(
            kind="command",
            name=task,
            pool=POOL,
            roles=(role,),
            max_restarts=0,
            on_node_lost=OnNodeLost(on_lost),
            leave_within_s=leave_s,
            payload=msgspec.msgpack.encode(msgspec.convert(program, Program)),
        )
        return str(await self.loop.ask(e.Submit(task=TaskId(task), spec=spec, key=task)))

    async def state(self) -> dict[str, Any]:
        state = await self.loop.settled()
        return {
            "term": state.term,
            "nodes": {node: found.state for node, found in state.nodes.items()},
            "tasks": {task: found.state for task, found in state.tasks.items()},
            "members": {str(m): found.state for m, found in state.members.items()},
            "exits": {
                str(m): found.exit and list(msgspec.to_builtins(found.exit)) for m, found in state.members.items()
            },
        }

    async def latency(self, task: str) -> dict[str, float]:
        """Seconds from a submission to its acknowledgement, and from there to its first durable byte."""
        began = time.monotonic()
        await self.submit(task, {"argv": ["echo", "up"]})
        asked = time.monotonic()
        while task not in self.lane.first_at:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return {"submit": asked - began, "first_byte": self.lane.first_at[task] - asked}

    async def echo(self, task: str, size: int) -> dict[str, Any]:
        """Send so many bytes to a task's first port and count what comes back, both at once."""
        member = self.loop.state.members[MemberId(TaskId(task), "main", 0)]
        assert member.placement is not None
        node, fence = member.placement.node, member.fence(self.loop.state.generation)
        uses = [use for use in self.monitor.members(node) if use.member == member.member]
        tunnel = await self.links.tunnels.open(node, member.member, fence, uses[0].ports[0])
        block = bytes(range(256)) * 256
        began = time.monotonic()

        async def send() -> None:
            for _ in range(size // len(block)):
                await tunnel.write(block)
            await tunnel.finish()

        received = bytearray()
        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            while data := await tunnel.read():
                received += data
        await tunnel.close()
        return {"same": received == block * (size // len(block)), "seconds": time.monotonic() - began}


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def answer(house: House) -> None:
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            say({"said": await house.do(json.loads(line))})
        except* (ClutchError, KeyError, IndexError) as group:
            error = group.exceptions[0]
            say({"error": str(error), "code": getattr(error, "code", "")})


async def main(folder: Path, port: int) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    journal = await open_journal(f"sqlite:///{folder / 'journal.sqlite'}")
    async with open_output(str(folder / "output.db"), lambda task: False) as lane:
        await serve(folder, port, journal, CountingLane(lane))


async def serve(folder: Path, port: int, journal: Any, lane: CountingLane) -> None:
    monitor = Monitor()
    links = AgentLinks(lane, PlainKits(), monitor, lambda member, fence: 0)
    loop = Loop(journal, WallClock(), links, {}, Random(0), LoopSettings(holder=f"child-{time.time()}", lead_s=1.0))
    links.serve(loop)
    listening = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(make_app(links), log_level="warning", lifespan="off", ws="websockets-sansio")
    async with asyncio.TaskGroup() as group:
        group.create_task(loop.run())
        await loop.serving.wait()
        await loop.ask(e.PutPool(pool=PoolSpec(name=POOL, node_lost_after_s=3.0)))
        group.create_task(uvicorn.Server(config).serve(sockets=[listening]))
        say({"port": listening.getsockname()[1], "term": loop.state.term})
        await answer(House(loop, links, lane, monitor))
        raise SystemExit(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
