"""A real master over loopback: SQLite, the loop, access, output, blobs, the app on uvicorn; and agents whose hands do
nothing but say that it was done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec

from clutch.agent import brain as agent
from clutch.backends.blobs.opening import open_blobs
from clutch.backends.journal.opening import open_journal
from clutch.core.recorded import Recorded
from clutch.master.access.door import Access, live_in
from clutch.master.access.usage import Usage
from clutch.master.api.app import make_app
from clutch.master.events import EventFeed
from clutch.master.kits import Kits
from clutch.master.link import AgentLinks
from clutch.master.loop import Loop, LoopSettings
from clutch.master.metrics_lane.opening import open_metrics
from clutch.master.monitor import Monitor
from clutch.master.output.lane import OutputLane
from clutch.master.output.opening import beside, open_output
from clutch.master.proxy.door import Proxy
from clutch.master.push.service import Push
from clutch.master.server import HttpServer, bind
from clutch.master.services import Services
from clutch.master.settings import MasterSettings
from clutch.wire import events as e
from clutch.wire.access import NewUser, NewWorkspace, Role, RoleGrant, TokenKind, TokenView
from clutch.wire.facts import TaskEnded
from clutch.wire.ids import Fence, MemberId, NodeId, PoolName, TaskId
from clutch.wire.link import MemberUse, NodeUse, SlotUse
from clutch.wire.messages import Exit, ExitCause, Hello, Refusal, Wanted
from clutch.wire.resources import Capacity, Slot
from clutch.wire.specs import PoolSpec
from clutch.workloads.experiment.config import check_partial
from clutch.workloads.experiment.controller.controller import ExperimentController
from clutch.workloads.experiment.library.opening import open_library
from clutch.workloads.experiment.library.part import library_part
from clutch.workloads.experiment.service.part import experiments_part
from clutch.workloads.experiment.service.service import ExperimentService, open_experiments

DEADLINE_S = 30.0
POOL = PoolName("default")


class WallClock:
    def now(self) -> float:
        return time.time()


class Puppets:
    """Agents with the production brain; members start when they are told to and end when the test says so."""

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.brains: dict[NodeId, agent.Brain] = {}
        self.starting = True
        """Whether members come up at once."""

    def add(self, name: str, slots: int = 2, pool: PoolName = POOL) -> NodeId:
        node = NodeId(name)
        capacity = Capacity(tuple(Slot(n, "artificial") for n in range(slots)), 8000, 16 * 2**30)
        self.brains[node] = agent.Brain(node, pool, f"session-{name}", capacity)
        self.beat(node)
        return node

    def beat(self, node: NodeId) -> None:
        self._do(node, self.brains[node].beat())

    def say(self, node: NodeId, message: Hello | Wanted | Refusal) -> None:
        brain = self.brains.get(node)
        if brain is None:
            return
        if isinstance(message, Hello):
            effects = brain.greeted(message)
        else:
            effects = brain.ordered(message) if isinstance(message, Wanted) else []
        asyncio.get_running_loop().call_soon(self._do, node, effects)

    def _do(self, node: NodeId, effects: list[agent.Effect]) -> None:
        brain = self.brains[node]
        for effect in effects:
            match effect:
                case agent.Say(report):
                    assert self.loop is not None
                    self.loop.hear(report)
                case agent.Start(member) if self.starting:
                    self._do(node, brain.started(member.member, member.fence))
                case agent.End(member, fence):
                    self._do(node, brain.exited(member, fence, Exit(-9, ExitCause.ENDED)))
                case _:
                    pass

    def end(self, member: MemberId, code: int = 0) -> None:
        """The member's process exits by itself."""
        for node, brain in self.brains.items():
            for known, fence in list(brain.records):
                if known == member and brain.records[known, fence].exit is None:
                    self._do(node, brain.exited(member, fence, Exit(code)))


class House:
    """A running master and ways to talk to it."""

    def __init__(
        self,
        services: Services,
        server: HttpServer,
        puppets: Puppets,
        tokens: dict[str, str],
        experiments: ExperimentService,
    ) -> None:
        self.services = services
        self.experiments = experiments
        self.server = server
        self.puppets = puppets
        self.tokens = tokens
        self.url = server.url

    def client(self, who: str = "admin", **options: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if who else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=DEADLINE_S, trust_env=False, **options)

    async def token(self, user: str, *, limits: tuple[Role | None, str] = (None, "")) -> str:
        role, workspace = limits
        view = TokenView(id="", kind=TokenKind.PERSONAL, user=user, role=role, workspace=workspace)
        return (await self.services.access.make_token(view, 3600.0)).token

    async def user(self, name: str, role: Role | None = None, scope: str = "") -> str:
        """A new user, who may have a role; their token."""
        store = self.services.access.store
        await store.users.create(NewUser(name), "", time.time())
        if role is not None:
            await store.grants.put(RoleGrant(subject=f"user:{name}", role=role, scope=scope))
        self.tokens[name] = await self.token(name)
        return self.tokens[name]

    async def workspace(self, name: str) -> None:
        await self.services.access.store.workspaces.create(NewWorkspace(name), "admin", time.time())

    async def node(self, name: str, slots: int = 2) -> NodeId:
        """A node that is ready."""
        node = self.puppets.add(name, slots)
        await until(lambda: node in self.services.loop.state.nodes)
        await until(lambda: self.services.loop.state.nodes[node].state == "ready")
        return node

    def measure(self, node: NodeId, *members: MemberUse) -> None:
        use = NodeUse(
            node=node, at=time.time(), cpu_percent=42.0, memory_bytes=2**30, backends=("process",),
            slots=(SlotUse(0, 80),), members=members,
        )  # fmt: skip
        self.services.monitor.take(node, use)

    async def state_is(self, task: str, state: str) -> None:
        async def there() -> bool:
            view = await self.services.journal.view("tasks", task)
            return view is not None and getattr(view, "state", "") == state

        await until_true(there)


async def until(holds: Callable[[], bool]) -> None:
    async def asked() -> bool:
        return holds()

    await until_true(asked)


async def until_true(holds: Callable[[], Awaitable[bool]]) -> None:
    """Returns when it holds; fails after a generous deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.005)


def submission(argv: tuple[str, ...] = ("true",), **fields: Any) -> dict[str, Any]:
    """A body for POST /tasks."""
    resources = {"slots": 1, "kind": "artificial"}
    return {"program": {"argv": list(argv)}, "resources": resources, **fields}


@asynccontextmanager
async def open_house(data: Path, *, settings: MasterSettings | None = None) -> AsyncIterator[House]:
    """A master that leads, with its administrator's token and one pool."""
    settings = settings or MasterSettings(data=data, upload_max_bytes=2**20)
    clock, stopping, puppets, monitor = WallClock(), asyncio.Event(), Puppets(), Monitor()
    address = settings.db or str(data / "journal.db")
    async with AsyncExitStack() as stack:
        journal = await open_journal(address)
        stack.push_async_callback(journal.close)
        blobs = await open_blobs(str(data / "blobs"))
        stack.push_async_callback(blobs.close)
        controllers = {"experiment": ExperimentController()}
        loop = Loop(journal, clock, puppets, controllers, Random(1), LoopSettings(holder="api-house"))
        puppets.loop = loop
        is_member = live_in(lambda: loop.state)

        def is_live(member: MemberId, fence: Fence) -> bool:
            return is_member(member, fence) or experiments.detached.is_live(loop.state, member, fence)

        access = await Access.open(settings, clock, is_live)
        stack.push_async_callback(access.close)
        lane = await stack.enter_async_context(
            open_output(beside(address, "output"), lambda task: TaskId(task) not in loop.state.tasks)
        )
        metrics = await stack.enter_async_context(open_metrics(beside(address, "metrics")))
        links = AgentLinks(lane, Kits(access, loop.settled, lambda: ()), monitor, metrics.reached)
        feed, push = EventFeed(journal, loop), Push(loop, blobs, metrics, clock)
        usage = Usage(access.store.usage, journal, clock, loop.settled, monitor.nodes)
        loop.listeners += [feed.heard, push.heard, usage.hear, lambda recorded: _wake(lane, recorded)]
        services = Services(
            settings=settings, clock=clock, loop=loop, journal=journal, blobs=blobs, access=access, output=lane,
            metrics=metrics, links=links, monitor=monitor, feed=feed, push=push,
            usage=usage, proxy=Proxy(loop, clock, access, links.tunnels, monitor, access.keys), stopping=stopping,
        )  # fmt: skip
        library = await open_library(settings, clock, access.keys, check_partial)
        stack.push_async_callback(library.close)
        experiments = open_experiments(services, library)
        stack.push_async_callback(experiments.close)
        library.serve(experiments)
        parts = (experiments_part(experiments), library_part(library))
        server = HttpServer(make_app(services, parts=parts), bind("127.0.0.1", 0), settings, stopping)
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(work) for work in (loop.run(), access.run(), push.run(), experiments.lead())]
            serving = group.create_task(server.run())
            async with asyncio.timeout(DEADLINE_S):
                await loop.serving.wait()
                await access.bootstrap()
                await loop.ask(e.PutPool(cause="test", pool=PoolSpec(name=POOL)))
            admin = (await access.local_token()).read_text().strip()
            try:
                yield House(services, server, puppets, {"admin": admin}, experiments)
            finally:
                stopping.set()
                await serving
                for task in working:
                    task.cancel()


def _wake(lane: OutputLane, recorded: Sequence[Recorded]) -> None:
    """Followers of a task's output end with it."""
    for entry in recorded:
        if isinstance(entry.fact, TaskEnded):
            lane.wake(entry.fact.task)


def decoded(answer: httpx.Response, kind: type[Any]) -> Any:
    assert answer.status_code < 400, answer.text
    return msgspec.json.decode(answer.content, type=kind)
