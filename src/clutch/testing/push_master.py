"""A master for tests of what members say: the real app on a real port, a real loop and journal, real blobs.

Its one node is an agent's real brain in the same process, with hands that succeed at once: a member runs as soon as it
is wanted. After a restart the brain finds the members that ran before, as an agent does.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import uvicorn

from clutch.agent.brain import Brain, End, Record, Say, Start
from clutch.backends.blobs.base import FullBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.backends.journal.opening import open_journal
from clutch.core.member import PRESENT
from clutch.master.access.door import Access, live_in
from clutch.master.api import code as code_routes
from clutch.master.api import push as push_routes
from clutch.master.api.app import make_app
from clutch.master.loop import Loop, LoopSettings
from clutch.master.metrics_lane.opening import open_metrics
from clutch.master.push.service import Push
from clutch.master.server import bind
from clutch.master.services import Services
from clutch.master.settings import MasterSettings
from clutch.wire import events as e
from clutch.wire.access import NewUser, NewWorkspace, Role, RoleGrant, TokenKind, TokenView
from clutch.wire.errors import Conflict
from clutch.wire.ids import Fence, MemberId, NodeId, PoolName, TaskId
from clutch.wire.messages import Exit, Hello, MemberStatus, Refusal
from clutch.wire.programs import Program
from clutch.wire.resources import Capacity, Resources, Slot
from clutch.wire.specs import Members, OnDeath, PoolSpec, RoleSpec, TaskSpec

POOL, NODE = PoolName("pool"), NodeId("n1")
BEAT_S = 0.2
PATIENCE_S = 30.0
SLOTS = 64


class WallClock:
    def now(self) -> float:
        return time.time()


class MovableClock:
    """Seconds that never jump by themselves; a test may let some pass."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def pass_time(self, seconds: float) -> None:
        self._ahead += seconds


class ReadyAgent:
    """The brain of an agent whose members run as soon as they are wanted and end as soon as they are not."""

    def __init__(self) -> None:
        self._loop: Loop | None = None
        self._brain: Brain | None = None

    def serve(self, loop: Loop) -> None:
        self._loop = loop

    def say(self, node: NodeId, message: Any) -> None:
        asyncio.get_running_loop().call_soon(self._hear, message)

    def exit(self, member: MemberId, fence: Fence, code: int) -> None:
        """A member's process has ended."""
        assert self._brain is not None
        self._do(self._brain.exited(member, fence, Exit(code)))

    async def run(self) -> None:
        assert self._loop is not None
        await self._loop.serving.wait()
        state = self._loop.state
        found = [
            (m.member, m.fence(state.generation), Record(MemberStatus.RUNNING))
            for m in state.members.values()
            if m.state in PRESENT
        ]
        capacity = Capacity(tuple(Slot(i, "artificial") for i in range(SLOTS)), 64_000, 2**36)
        self._brain = Brain(NODE, POOL, f"start-{time.time_ns()}", capacity, found)
        while True:
            self._do(self._brain.beat())
            await asyncio.sleep(BEAT_S)

    def _hear(self, message: Any) -> None:
        if self._brain is None or isinstance(message, Refusal):  # its pool is made a moment after the start
            return
        self._do(self._brain.greeted(message) if isinstance(message, Hello) else self._brain.ordered(message))

    def _do(self, effects: list[Any]) -> None:
        assert self._brain is not None and self._loop is not None
        for effect in effects:
            if isinstance(effect, Say):
                self._loop.hear(effect.report)
            elif isinstance(effect, Start):
                self._do(self._brain.started(effect.member.member, effect.member.fence))
            elif isinstance(effect, End):
                self._do(self._brain.exited(effect.member, effect.fence, Exit(-9)))


class PushMaster:
    """One start of it."""

    def __init__(self, services: Services, agent: ReadyAgent, url: str) -> None:
        self.services = services
        self.loop, self.push, self.access = services.loop, services.push, services.access
        self.agent = agent
        self.url = url

    async def submit(
        self, task: str, count: int = 1, on_death: str = "end", workspace: str = "default", code: str = ""
    ) -> dict[int, str]:
        """A task whose members run; their tokens by rank."""
        shape = Members(count, Resources(1, "artificial"))
        roles = (RoleSpec("main", shape, on_death=OnDeath(on_death), count_max=8 if on_death == "respawn" else 0),)
        spec = TaskSpec(
            kind="command",
            name=task,
            pool=POOL,
            roles=roles,
            workspace=workspace,
            leave_within_s=30.0,
            payload=msgspec.msgpack.encode(Program(argv=("true",), code=code)),
        )
        await self.loop.ask(e.Submit(cause="test", task=TaskId(task), spec=spec))
        return await self.tokens(task)

    async def upload(self, archive: bytes) -> str:
        """The digest under which members can fetch this archive."""
        digest = f"sha256:{hashlib.sha256(archive).hexdigest()}"
        await self.services.blobs.put(code_routes.blob_key(digest), archive)
        return digest

    async def tokens(self, task: str) -> dict[int, str]:
        """The tokens of a task's members, once all of them are up."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            state = await self.loop.settled()
            members = list(state.members_of(TaskId(task)))
            if members and all(m.state == "running" for m in members):
                return {m.member.rank: self.access.task_token(m.member, m.fence(state.generation)) for m in members}
            assert time.monotonic() < deadline, f"{task} is not running: {members}"
            await asyncio.sleep(0.01)

    def exit(self, task: str, rank: int, code: int) -> None:
        member = MemberId(TaskId(task), "main", rank)
        self.agent.exit(member, self.loop.state.members[member].fence(self.loop.state.generation), code)

    async def user(self, name: str, role: str, workspace: str) -> str:
        """The token of a user with this role in a workspace; both are made if need be."""
        store = self.access.store
        with suppress(Conflict):
            await store.users.create(NewUser(name), "", time.time())
        with suppress(Conflict):
            await store.workspaces.create(NewWorkspace(workspace), name, time.time())
        await store.grants.put(RoleGrant(subject=f"user:{name}", role=Role(role), scope=f"workspace:{workspace}"))
        return (await self.access.make_token(TokenView(id="", kind=TokenKind.PERSONAL, user=name), 3600.0)).token


class _Server(uvicorn.Server):
    """Signals belong to the test."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def push_master(
    folder: Path,
    *,
    port: int = 0,
    blobs: FullBlobs | None = None,
    journal: str = "",
    metrics: str = "",
    monotonic: Callable[[], float] = time.monotonic,
) -> AsyncIterator[PushMaster]:
    """A master that serves. What it keeps is in ``folder``; ``blobs``, ``journal`` and ``metrics`` may be elsewhere."""
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    settings = MasterSettings(data=folder)
    clock, agent = WallClock(), ReadyAgent()
    async with AsyncExitStack() as stack:
        opened = await open_journal(journal or str(folder / "journal.db"))
        stack.push_async_callback(opened.close)
        store = blobs or await open_blobs(str(folder / "blobs"))
        lane = await stack.enter_async_context(open_metrics(metrics or str(folder / "metrics.db")))
        loop = Loop(opened, clock, agent, {}, Random(), LoopSettings(holder="push-master", lead_s=1.8))
        agent.serve(loop)
        access = await Access.open(settings, clock, live_in(lambda: loop.state))
        stack.push_async_callback(access.close)
        push = Push(loop, store, lane, clock, monotonic=monotonic)
        loop.listeners.append(push.heard)
        services = _services(
            settings=settings, clock=clock, loop=loop, journal=opened, blobs=store, access=access, push=push,
            metrics=lane, stopping=asyncio.Event(),
        )  # fmt: skip
        async with _running(services, agent, bind("127.0.0.1", port)) as master:
            yield master


@asynccontextmanager
async def _running(services: Services, agent: ReadyAgent, listener: socket.socket) -> AsyncIterator[PushMaster]:
    loop, push, access = services.loop, services.push, services.access
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with asyncio.TaskGroup() as group:
        working = [group.create_task(work) for work in (loop.run(), agent.run(), access.run(), push.run())]
        server = _serve(make_app(services, [*push_routes.ROUTES, *code_routes.ROUTES]))
        serving = group.create_task(server.serve(sockets=[listener]))
        try:
            await loop.serving.wait()
            await access.bootstrap()
            await loop.ask(e.PutPool(cause="test", pool=PoolSpec(name=POOL)))
            yield PushMaster(services, agent, url)
        finally:
            push.close()
            server.should_exit = True
            await serving
            for task in working:
                task.cancel()


def _services(**parts: Any) -> Services:
    """A master with these parts only: whoever asks for another one has come to the wrong master."""
    given: dict[str, Any] = dict.fromkeys(Services.__struct_fields__)
    return Services(**{**given, **parts})


def _serve(app: Any) -> _Server:
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=75, timeout_graceful_shutdown=1
    )
    return _Server(config)
