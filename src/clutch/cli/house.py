"""``clutch up`` as one process: a master and its agents side by side, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from clutch.agent import main as agent_main
from clutch.agent.settings import AgentSettings
from clutch.agent.slots import SlotWish
from clutch.cli import home
from clutch.cli.backends import docker_version, engine_socket
from clutch.cli.seen import Up
from clutch.master import main as master_main
from clutch.master.server import HttpServer, bind
from clutch.master.settings import MasterSettings
from clutch.master.tls import TLS_FOLDER, TlsFiles, ensure_certificates, fingerprint
from clutch.sdk.where import ENDPOINT, Endpoint
from clutch.wire import events as e
from clutch.wire.access import TokenKind, TokenView
from clutch.wire.errors import ClutchError
from clutch.wire.ids import NodeId
from clutch.wire.outcomes import NodeState

JOIN_TOKEN_S = 86400.0
AGENTS_WITHIN_S = 10.0
"""A user is told that the cluster is up when its own nodes may get work, or after so long without them."""
LOOK_S = 0.01


class HouseSettings(msgspec.Struct, frozen=True, kw_only=True):
    master: MasterSettings
    agents: int = 1
    slots: SlotWish = SlotWish()
    join: bool = False
    join_host: str = ""
    """How other machines reach this one; empty: found out."""


def node_names(agents: int) -> list[str]:
    """The host's name, numbered when there are several."""
    host = socket.gethostname()
    return [host] if agents == 1 else [f"{host}-{n}" for n in range(agents)]


class House:
    """One process with everything. ``tell`` is called once, when a user can begin."""

    def __init__(self, settings: HouseSettings, tell: Callable[[Up], None]) -> None:
        self.settings = settings
        self.data = settings.master.data
        self.stop = asyncio.Event()
        self._tell = tell

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Members go on under their shims; the next ``up`` finds them again."""
        running = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            running.add_signal_handler(number, self.stop.set)
        with home.holding(self.data):
            await master_main.run(self.settings.master, ready=self._live, stop=self.stop)

    async def _live(self, master: master_main.Running) -> None:
        """While the master leads: its agents, and the files by which the user's other programs find it."""
        names = node_names(self.settings.agents)
        access = master.services.access
        await self._reopen(master)
        endpoint = Endpoint(url=master.url, token_file=str(await access.local_token()))
        home.write_private(self.data / ENDPOINT, msgspec.json.encode(endpoint).decode())
        version = await docker_version()
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._agent(master, name))
            joining = ""
            if self.settings.join:
                server, joining = await self._open(master)
                group.create_task(server.run())
            up = Up(
                url=master.url,
                one_time_token=await access.make_one_time(),
                nodes=tuple(names),
                backends=("process", f"docker {version}") if version else ("process",),
                join=joining,
            )
            await self._heard_of(master, names)
            self._tell(up)

    async def _heard_of(self, master: master_main.Running, names: list[str]) -> None:
        """Until each of these nodes has reported, so that nobody's first command meets a cluster without any."""
        nodes, heard = master.services.loop.state.nodes, (NodeState.READY, NodeState.DRAINING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGENTS_WITHIN_S):
                while not self.stop.is_set():
                    states = [node.state for name in names if (node := nodes.get(NodeId(name))) is not None]
                    if len(states) == len(names) and all(state in heard for state in states):
                        return
                    await asyncio.sleep(LOOK_S)

    async def _agent(self, master: master_main.Running, name: str) -> None:
        view = TokenView(id="", kind=TokenKind.AGENT, user="", description="clutch up", node=name)
        made = await master.services.access.make_token(view, 0.0)
        settings = AgentSettings(
            masters=(master.url,),
            data=self.data / "agents" / name,
            node=name,
            token=made.token,
            slots=self.settings.slots,
            docker_socket=engine_socket(),
        )
        await agent_main.run(settings, stop=self.stop)

    async def _open(self, master: master_main.Running) -> tuple[HttpServer, str]:
        """A second door, for other machines: TLS with an authority of our own, pinned by the line that is printed."""
        host = self.settings.join_host or _address()
        files = await asyncio.to_thread(self._certificates, host)
        listener = bind("0.0.0.0", 0)
        settings = msgspec.structs.replace(
            self.settings.master, tls_cert=str(files.certificate), tls_key=str(files.key)
        )
        server = HttpServer(master.app, listener, settings, self.stop)
        view = TokenView(id="", kind=TokenKind.ENROL, user="admin", description="clutch up --join")
        made = await master.services.access.make_token(view, JOIN_TOKEN_S)
        pin = fingerprint(await asyncio.to_thread(files.authority.read_text))
        return server, f"clutch agent --master https://{host}:{server.port} --token {made.token} --fingerprint {pin}"

    def _certificates(self, host: str) -> TlsFiles:
        hosts = (host, socket.gethostname(), "localhost", "127.0.0.1")
        return ensure_certificates(self.data / TLS_FOLDER, tuple(dict.fromkeys(hosts)), datetime.now(UTC))

    async def _reopen(self, master: master_main.Running) -> None:
        """Nodes that ``clutch down`` emptied may have work again."""
        for node in await asyncio.to_thread(_drained, self.data / home.DRAINED):
            try:
                await master.services.loop.ask(e.OpenNode(cause="clutch up", node=NodeId(node)))
            except ClutchError:
                continue  # it is not known any more, or was opened since
        await asyncio.to_thread((self.data / home.DRAINED).unlink, missing_ok=True)


def _drained(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _address() -> str:
    """The address of this machine on its network: the one it would send from. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        found: str = probe.getsockname()[0]
        return found
