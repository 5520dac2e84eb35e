"""A master's loop in a process of its own: submits what it reads, says what was acknowledged. Made to be killed.

python loop_child.py JOURNAL_URL HOLDER
"""

from __future__ import annotations

import asyncio
import sys
import time
from random import Random

from clutch.backends.journal.opening import open_journal
from clutch.master.loop import Loop, LoopSettings
from clutch.wire import events as e
from clutch.wire.ids import NodeId, PoolName, TaskId
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, PoolSpec, RoleSpec, TaskSpec

POOL = PoolName("main")
ROLE = RoleSpec(name="main", shape=Members(count=1, each=Resources(slots=1)))


class RealClock:
    def now(self) -> float:
        return time.time()


class NobodyThere:
    """Links to agents when there are none."""

    def say(self, node: NodeId, message: object) -> None:
        raise AssertionError(f"nothing should be said to {node}: it never reported")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def submit_lines(loop: Loop) -> None:
    await loop.serving.wait()
    await loop.ask(e.PutPool(cause="test", pool=PoolSpec(name=POOL)))
    say(f"serving {loop.state.term} {loop.state.index} {len(loop.state.tasks)}")
    reader = asyncio.StreamReader()
    running = asyncio.get_running_loop()
    await running.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as group:
        while line := (await reader.readline()).decode().strip():
            group.create_task(submit(loop, line))


async def submit(loop: Loop, name: str) -> None:
    spec = TaskSpec(kind="trial", name=name, pool=POOL, roles=(ROLE,))
    task = await loop.ask(e.Submit(cause="test", task=TaskId(name), spec=spec, key=name))
    say(f"acknowledged {task}")


async def main(url: str, holder: str) -> None:
    journal = await open_journal(url)
    settings = LoopSettings(holder=holder, lead_s=2.0, snapshot_rows=60)
    loop = Loop(journal, RealClock(), NobodyThere(), {}, Random(0), settings)
    async with asyncio.TaskGroup() as group:
        group.create_task(loop.run())
        group.create_task(submit_lines(loop))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
