"""How long a list takes with 10,000 queued tasks and 25 clients, beside a bare litestar that says hello.

    python benchmarks/api.py [--tasks 10000] [--clients 25] [--seconds 10]

A whole master (SQLite, the loop, access, output) runs in a process of its own, as ``clutch up`` runs it; so does the
bare app. The clients keep their connections and ask again as soon as they are answered. Both are asked in the same run,
so the machine is the same for both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HELLO = "/hello"
QUESTIONS = {
    "list, newest 100": "/api/v1/tasks",
    "list, 100 live of a user": "/api/v1/tasks?live=true&owner=admin&order=submitted_at",
    "list, 20 queued": "/api/v1/tasks?state=queued&limit=20",
    "queue, first 20": "/api/v1/queue?limit=20",
    "one task": "/api/v1/tasks/{task}",
}


# -- the servers --------------------------------------------------------------------------------------------------


async def serve_master(data: Path, count: int) -> None:
    """A master with so many queued tasks; says its address, its token and a task on one line when it is ready."""
    from clutch.master.main import Running, run
    from clutch.master.settings import MasterSettings
    from clutch.wire import events as e
    from clutch.wire.ids import PoolName, TaskId
    from clutch.wire.resources import Resources
    from clutch.wire.specs import Members, RoleSpec, TaskSpec

    role = RoleSpec("main", Members(1, Resources(slots=1, kind="artificial")))

    async def fill(running: Running) -> None:
        loop = running.services.loop
        for start in range(0, count, 500):
            asks = [
                loop.ask(
                    e.Submit(
                        cause="benchmark",
                        task=TaskId(f"c-{number:08d}"),
                        spec=TaskSpec(
                            kind="command", name=f"t{number}", pool=PoolName("default"), roles=(role,), owner="admin"
                        ),
                    )
                )
                for number in range(start, min(start + 500, count))
            ]
            await asyncio.gather(*asks)
        token = (await running.services.access.local_token()).read_text().strip()
        print("ready", running.url, token, f"c-{count // 2:08d}", flush=True)

    await run(MasterSettings(data=data), ready=fill)


async def serve_hello() -> None:
    from litestar import Litestar, get

    from clutch.master.server import HttpServer, bind
    from clutch.master.settings import MasterSettings

    @get(HELLO)
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    app = Litestar([hello], logging_config=None, openapi_config=None)
    server = HttpServer(app, bind("127.0.0.1", 0), MasterSettings(data=Path()), asyncio.Event())
    print("ready", server.url, "none", "none", flush=True)
    await server.run()


def child(kind: str, data: str, count: int) -> None:
    import uvloop

    work = serve_master(Path(data), count) if kind == "master" else serve_hello()
    uvloop.run(work)


# -- the clients --------------------------------------------------------------------------------------------------


async def client(url: str, path: str, token: str, until: float, took: list[float]) -> None:
    """Asks over one connection; nothing but the bytes, so that what is measured is the server."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    while time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        took.append(time.perf_counter() - began)
    writer.close()


async def ask(url: str, path: str, token: str, clients: int, seconds: float) -> list[float]:
    took: list[float] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(url, path, token, until, took) for _ in range(clients)))
    return sorted(took)


def show(name: str, took: list[float], seconds: float) -> None:
    def at(part: float) -> float:
        return took[min(len(took) - 1, int(len(took) * part))] * 1000

    rate = len(took) / seconds
    print(f"{name:28} {rate:8.0f}/s   p50 {at(0.5):7.1f} ms   p95 {at(0.95):7.1f} ms   p99 {at(0.99):7.1f} ms")


def start(stack: contextlib.ExitStack, kind: str, data: str, count: int) -> list[str]:
    """A server in a process of its own that ends with the stack; the words it said when it was ready."""
    command = [sys.executable, __file__, "--child", kind, "--data", data, "--tasks", str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if words and words[0] == "ready":
            threading.Thread(target=process.stdout.read, daemon=True).start()  # its log must not fill the pipe
            return words[1:]
    raise SystemExit(f"the {kind} ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--child", default="")
    parser.add_argument("--data", default="")
    given = parser.parse_args()
    if given.child:
        child(given.child, given.data, given.tasks)
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        hello_url, _, _ = start(stack, "hello", folder, 0)
        began = time.perf_counter()
        url, token, task = start(stack, "master", folder, given.tasks)
        print(f"{given.tasks} tasks submitted in {time.perf_counter() - began:.1f} s; {given.clients} clients")
        hello = asyncio.run(ask(hello_url, HELLO, "none", given.clients, given.seconds))
        show("bare litestar, hello", hello, given.seconds)
        for name, path in QUESTIONS.items():
            path = path.format(task=task)
            show(name, asyncio.run(ask(url, path, token, given.clients, given.seconds)), given.seconds)


if __name__ == "__main__":
    main()
