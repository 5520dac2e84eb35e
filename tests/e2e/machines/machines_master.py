"""A master's loop with its provisioner in a process of its own, over a SQLite file and agents on this machine: to be
killed. ``machines_master.py FOLDER NODES_MIN NODES_MAX`` says what it has, as JSON lines."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from random import Random

from clutch.backends.journal.opening import open_journal
from clutch.backends.machines.local import LocalMachines
from clutch.backends.machines.site import Site
from clutch.master.effects import Performer, PerformerSettings
from clutch.master.loop import Loop, LoopSettings
from clutch.master.provisioner import Provisioner, ProvisionerSettings
from clutch.testing import machines_agent
from clutch.wire import events as e
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.machines import LocalTemplate
from clutch.wire.specs import Autoscale, PoolSpec

POOL = PoolName("local")


class Clock:
    def now(self) -> float:
        return time.time()


class Silence:
    def say(self, node: NodeId, message: object) -> None:
        """These agents only stand there."""


async def main(folder: Path, nodes_min: int, nodes_max: int) -> None:
    journal = await open_journal(str(folder / "journal.db"))
    loop = Loop(journal, Clock(), Silence(), {}, Random(), LoopSettings(holder="m", beat_s=0.05))
    site = Site(
        cluster="kill",
        pool=POOL,
        masters=("http://127.0.0.1:1",),
        token_file=folder / "token",
        folder=folder / "machines",
        agent=(sys.executable, str(Path(machines_agent.__file__))),
        environment={"PATH": "/usr/bin:/bin"},
    )
    machines = LocalMachines(LocalTemplate(stop_s=0.5), site)
    provisioner = Provisioner(loop, {POOL: machines}, ProvisionerSettings("kill", look_s=0.1))
    performer = Performer(loop, journal, provisioner.effects(), PerformerSettings(retry_s=0.05, look_s=0.2))
    async with asyncio.TaskGroup() as group:
        for part in (loop, performer, provisioner):
            group.create_task(part.run())
        await loop.serving.wait()
        scale = Autoscale(nodes_min=nodes_min, nodes_max=nodes_max, starting_s=3600.0)
        await loop.ask(e.PutPool(cause="admin", pool=PoolSpec(POOL, autoscale=scale)))
        while True:
            state = await loop.settled()
            has = {machine.machine: machine.state for machine in state.machines.values()}
            print(json.dumps({"machines": has, "waiting": len(await journal.pending(100))}), flush=True)
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
