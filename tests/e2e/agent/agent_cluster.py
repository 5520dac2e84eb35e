"""A small cluster of real processes for tests: one master, some agents, and ways to hurt them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DEADLINE_S = 60.0


async def until(what: Callable[[], Awaitable[Any]], why: str, deadline_s: float = DEADLINE_S) -> Any:
    """Look again until it is so; what it was."""
    deadline = time.monotonic() + deadline_s
    while True:
        found = await what()
        if found:
            return found
        assert time.monotonic() < deadline, why
        await asyncio.sleep(0.02)


class Child:
    """A process of ours, by its pid."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=DEADLINE_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        os.kill(self.process.pid, number)
        return self.process.wait(timeout=DEADLINE_S)


class Master:
    """The master's process and the conversation with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.process: asyncio.subprocess.Process | None = None
        self._talk = asyncio.Lock()

    async def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(HERE / "master_child.py"),
                str(self.folder),
                str(self.port),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                limit=2**28,
            )
        self.port = (await self._line())["port"]

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Nobody asks it anything meanwhile."""
        async with self._talk:
            yield

    async def ask(self, do: str, **more: Any) -> Any:
        assert self.process is not None
        assert self.process.stdin is not None
        async with self._talk:
            self.process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
            answer = await self._line()
        assert "error" not in answer, answer
        return answer["said"]

    async def _line(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            line = await self.process.stdout.readline()
        assert line, f"the master has ended: {(self.folder / 'log').read_text()[-3000:]}"
        return dict(json.loads(line))

    # -- shorter words -------------------------------------------------------------------------------------------

    async def run(self, task: str, *argv: str, **more: Any) -> None:
        program = {"argv": argv, **more.pop("program", {})}
        await self.ask("submit", task=task, program=program, **more)

    async def ended(self, task: str) -> None:
        """Until the task is through and its output is in the store."""
        await until(lambda: self._is_over(task), f"task {task} does not end")

    async def _is_over(self, task: str) -> bool:
        return task not in (await self.ask("state"))["tasks"]

    async def running(self, task: str) -> None:
        async def look() -> bool:
            return bool((await self.ask("state"))["members"].get(f"{task}/main.0") == "running")

        await until(look, f"task {task} does not run")

    async def output(self, task: str, stream: str = "stdout") -> bytes:
        """All that the store holds of a task's stream, over all its incarnations."""
        return b64decode(await self.ask("output", task=task, stream=stream))

    async def node_is(self, node: str, state: str) -> None:
        async def look() -> bool:
            return bool((await self.ask("state"))["nodes"].get(node) == state)

        await until(look, f"node {node} is not {state}")


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = Master(folder / "master")
        self.agents: list[Child] = []

    async def __aenter__(self) -> Cluster:
        await self.master.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self.agents:
            agent.kill()
        if self.master.process is not None and self.master.process.returncode is None:
            await self.master.kill()
        for path in self.folder.glob("*/members/*/started"):
            fields = dict(part.partition(b"=")[::2] for part in path.read_bytes().split(b"\0"))
            if not (path.parent / "exit").exists():
                _end_shim(int(fields[b"shim"]), int(fields[b"shim_ticks"]))

    def agent(self, node: str, folder: str = "", **more: Any) -> Child:
        data = Path(more.pop("data", self.folder / (folder or node)))
        told = {
            "masters": [f"http://127.0.0.1:{self.master.port}"],
            "data": str(data),
            "node": node,
            "token": f"node-{node}",
            **more,
        }
        data.mkdir(exist_ok=True)
        log = data / "log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "agent_child.py"), json.dumps(told)], stdout=file, stderr=file
            )
        self.agents.append(Child(process, log))
        return self.agents[-1]


def _end_shim(pid: int, ticks: int) -> None:
    from clutch.backends.containers import proc

    proc.send(pid, signal.SIGKILL, lambda found: proc.is_process(found, ticks))
