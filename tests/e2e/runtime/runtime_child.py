"""A master for runs, in a process of its own, made to be killed. See ``clutch.testing.push_master``.

    python runtime_child.py FOLDER PORT

Lines on standard input say what happens, and each is answered with one line of JSON:

    submit TASK    member TASK    pause TASK    resume TASK    cancel TASK    exit TASK CODE
    points TASK    state TASK
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from clutch.testing.push_master import PushMaster, push_master
from clutch.wire import events as e
from clutch.wire.ids import TaskId
from clutch.wire.metrics import MetricsQuery, spoken


class Orders:
    def __init__(self, master: PushMaster) -> None:
        self.master = master

    async def submit(self, task: str) -> Any:
        await self.master.submit(task)
        return await self.member(task)

    async def member(self, task: str) -> Any:
        """What its only member finds in its environment."""
        token = (await self.master.tokens(task))[0]
        state = await self.master.loop.settled()
        found = next(iter(state.members_of(TaskId(task))))
        return {
            "CLUTCH_TASK": task,
            "CLUTCH_FENCE": str(found.fence(state.generation)),
            "CLUTCH_TOKEN": token,
            "CLUTCH_CHECKPOINT": state.tasks[TaskId(task)].checkpoint,
        }

    async def pause(self, task: str) -> None:
        await self.master.loop.ask(e.Pause(cause="test", task=TaskId(task)))

    async def resume(self, task: str) -> Any:
        await self.master.loop.ask(e.Resume(cause="test", task=TaskId(task)))
        return await self.member(task)

    async def cancel(self, task: str) -> None:
        await self.master.loop.ask(e.Cancel(cause="test", task=TaskId(task)))

    async def exit(self, task: str, code: str) -> None:
        self.master.exit(task, 0, int(code))

    async def points(self, task: str) -> Any:
        """Every value of it: group, name, epoch, step, value."""
        found = await self.master.services.metrics.series(MetricsQuery(task=TaskId(task)))
        return [
            [series.group, series.name, series.epoch, point.step, spoken(point.value)]
            for series in found
            for point in series.points
        ]

    async def state(self, task: str) -> Any:
        return msgspec.to_builtins(await self.master.services.journal.view("tasks", task))


def say(what: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.flush()


async def main(folder: Path, port: int) -> None:
    async with push_master(folder, port=port) as master:
        orders = Orders(master)
        say({"serving": master.loop.state.term})
        reader = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().split():
            try:
                say({"done": await getattr(orders, line[0])(*line[1:])})
            except Exception as error:
                say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
