"""``clutch up`` as one process: a master and its agents side by side, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import msgspec

from clutch.agent import main as agent_main
from clutch.agent.settings import AgentSettings
from clutch.agent.slots import SlotWish
from clutch.cli import home
from clutch.master import main as master_main
from clutch.master.settings import MasterSettings
from clutch.wire import events as e
from clutch.wire.errors import ClutchError
from clutch.wire.ids import NodeId


class HouseSettings(msgspec.Struct, frozen=True, kw_only=True):
    master: MasterSettings
    agents: int = 1
    slots: SlotWish = SlotWish()


class Up(msgspec.Struct, frozen=True, kw_only=True):
    """What ``clutch up`` tells its user once everything runs."""

    url: str
    one_time_token: str
    nodes: tuple[str, ...]
    backends: tuple[str, ...]
    join: str = ""
    """The line that adds a second machine."""


def node_names(agents: int) -> list[str]:
    """The host's name, numbered when there are several."""
    host = socket.gethostname()
    return [host] if agents == 1 else [f"{host}-{n}" for n in range(agents)]


class House:
    """One process with everything. ``told`` gets what the user should see, once."""

    def __init__(self, settings: HouseSettings) -> None:
        self.settings = settings
        self.data = settings.master.data
        self.stop = asyncio.Event()
        self.told: asyncio.Future[Up] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Members go on under their shims; the next ``up`` finds them again."""
        running = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            running.add_signal_handler(number, self.stop.set)
        with home.holding(self.data):
            try:
                await master_main.run(self.settings.master, ready=self._live, stop=self.stop)
            finally:
                if not self.told.done():
                    self.told.cancel()

    async def _live(self, master: master_main.Running) -> None:
        """While the master leads: its agents, and the files by which the user's other programs find it."""
        names = node_names(self.settings.agents)
        await self._reopen(master, names)
        token_file = await master.services.access.local_token()
        endpoint = home.Endpoint(url=master.url, token_file=str(token_file))
        home.write_private(self.data / home.ENDPOINT, msgspec.json.encode(endpoint).decode())
        up = Up(
            url=master.url,
            one_time_token=await master.services.access.make_one_time("admin"),
            nodes=tuple(names),
            backends=("process",),
            join="",
        )
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._agent(master, name))
            self.told.set_result(up)

    async def _agent(self, master: master_main.Running, name: str) -> None:
        token = await master.services.access.agent_token(name)
        settings = AgentSettings(
            masters=(master.url,),
            data=self.data / "agents" / name,
            node=name,
            token=token,
            slots=self.settings.slots,
        )
        await agent_main.run(settings, stop=self.stop)

    async def _reopen(self, master: master_main.Running, names: list[str]) -> None:
        """Nodes that ``clutch down`` emptied may have work again."""
        drained = self.data / home.DRAINED
        if not drained.exists():
            return
        for node in names:
            try:
                await master.services.loop.ask(e.OpenNode(cause="clutch up", node=NodeId(node)))
            except ClutchError:
                continue  # it was never drained, or is not known any more
        drained.unlink()
