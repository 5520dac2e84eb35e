"""A program with a port: answers HTTP with what it was asked, and echoes WebSocket messages."""

from __future__ import annotations

import asyncio
import json
import os
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response


def answer(connection: ServerConnection, request: Request) -> Response | None:
    if "upgrade" in request.headers.get("Connection", "").lower():
        return None
    said = {"path": request.path, "headers": dict(request.headers.raw_items())}
    body = json.dumps(said).encode()
    head = Headers([("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    if request.path == "/moved":
        return Response(302, "Found", Headers([("Location", "/there"), ("Content-Length", "0")]), b"")
    return Response(HTTPStatus.OK, "OK", head, body)


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def main() -> None:
    async with serve(echo, "127.0.0.1", int(os.environ["CLUTCH_PORT_0"]), process_request=answer) as server:
        await server.serve_forever()


asyncio.run(main())
