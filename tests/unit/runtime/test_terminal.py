"""A terminal over a real WebSocket: a real shell under a real PTY, left and found again."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from clutch.wire.proof import PROOF_HEADER, proof

TOKEN = "the member's own"


@asynccontextmanager
async def terminal(*command: str) -> AsyncIterator[str]:
    """The address of a terminal that runs as a task would run it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "clutch.runtime.terminal", "--", *command,
        env={"CLUTCH_TOKEN": TOKEN, "PATH": "/usr/bin:/bin", "PS1": "> "},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            port = int((await process.stdout.readline()).split()[-1])
        yield f"ws://127.0.0.1:{port}/"
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()


def enter(address: str) -> connect:
    return connect(address, additional_headers={PROOF_HEADER: proof(TOKEN)}, proxy=None)


async def read_until(connection: ClientConnection, pattern: bytes) -> bytes:
    shown = b""
    async with asyncio.timeout(30):
        while not re.search(pattern, shown):
            message = await connection.recv()
            assert isinstance(message, bytes), (message, shown)
            shown += message
    return shown


async def test_what_is_typed_runs_and_its_exit_code_comes_back() -> None:
    async with terminal("/bin/sh") as address, enter(f"{address}?rows=40&cols=132") as connection:
        await connection.send(b"stty size; tty; echo term=$TERM\n")
        await read_until(connection, rb"40 132\r\n/dev/pts/\d+\r\nterm=xterm-256color\r\n")
        await connection.send(json.dumps({"rows": 10, "cols": 20}))
        await connection.send(b"stty size\n")
        await read_until(connection, rb"10 20\r\n")
        await connection.send(b"exit 7\n")
        async with asyncio.timeout(30):
            while isinstance(message := await connection.recv(), bytes):
                pass
        assert json.loads(message) == {"exit": 7}


async def test_a_session_that_was_left_is_found_again() -> None:
    async with terminal("/bin/sh") as address:
        async with enter(f"{address}?session=mine") as connection:
            await connection.send(b"kept=again; echo gone-$((20+2))\n")
            await read_until(connection, rb"gone-22")
        async with enter(f"{address}?session=mine") as connection:
            await read_until(connection, rb"gone-22")  # the last screenful
            await connection.send(b"echo $kept\n")
            await read_until(connection, rb"(?<!=)again\r\n")
        async with enter(f"{address}?session=other") as connection:
            await connection.send(b"echo [$kept]\n")
            await read_until(connection, rb"\[\]\r\n")


@pytest.mark.parametrize("headers", [{}, {PROOF_HEADER: proof("another's")}])
async def test_who_did_not_come_through_the_proxy_stays_outside(headers: dict[str, str]) -> None:
    async with terminal("/bin/sh") as address:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address, additional_headers=headers, proxy=None):
                pass
        assert refused.value.response.status_code == 403


async def test_a_command_that_cannot_be_run_says_so() -> None:
    async with terminal("/no/such/shell") as address, enter(address) as connection:
        await read_until(connection, rb"No such file or directory")
