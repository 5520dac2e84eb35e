"""A master in a process of its own, made to be killed. See ``clutch.testing.push_master``.

    python push_child.py FOLDER PORT

Lines on standard input say what happens, and each is answered with one line of JSON:

    submit TASK COUNT ON_DEATH [WORKSPACE]    cancel TASK    exit TASK RANK CODE    resize TASK COUNT
    tokens TASK                               tidy           user NAME ROLE WORKSPACE    blobs
    program TASK COUNT ARCHIVE                state TASK     waiting
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


class Orders:
    def __init__(self, master: PushMaster) -> None:
        self.master = master
        self.tokens = master.tokens
        self.user = master.user

    async def submit(self, task: str, count: str, on_death: str, workspace: str = "default") -> Any:
        return await self.master.submit(task, int(count), on_death, workspace)

    async def program(self, task: str, count: str, archive: str) -> Any:
        digest = await self.master.upload(await asyncio.to_thread(Path(archive).read_bytes))
        return {"digest": digest, "tokens": await self.master.submit(task, int(count), code=digest)}

    async def state(self, task: str) -> Any:
        view = await self.master.services.journal.view("tasks", task)
        return msgspec.to_builtins(view)

    async def cancel(self, task: str) -> None:
        await self.master.loop.ask(e.Cancel(cause="test", task=TaskId(task)))

    async def resize(self, task: str, count: str) -> Any:
        await self.master.loop.ask(e.Resize(cause="test", task=TaskId(task), role="main", count=int(count)))
        return await self.tokens(task)

    async def exit(self, task: str, rank: str, code: str) -> None:
        self.master.exit(task, int(rank), int(code))

    async def waiting(self) -> int:
        return self.master.push.bells.count

    async def tidy(self) -> None:
        await self.master.push.tidy()

    async def blobs(self) -> list[str]:
        return [listed.key async for page in self.master.services.blobs.list() for listed in page]


def say(what: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.flush()


async def main(folder: Path, port: int) -> None:
    async with push_master(folder, port=port) as master:
        orders = Orders(master)
        say({"serving": master.loop.state.term})
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().split():
            try:
                say({"done": await getattr(orders, line[0])(*line[1:])})
            except Exception as error:
                say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
