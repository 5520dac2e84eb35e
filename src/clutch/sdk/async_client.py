"""``clutch.AsyncClient``: a cluster for programs on an event loop. The same calls as ``Client``, over httpx."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import msgspec

from clutch.sdk import calls
from clutch.sdk.async_task import AsyncTask
from clutch.sdk.call import JSON, Call, decode, rebuild
from clutch.sdk.client import PATIENCE_S, SILENCE_S
from clutch.sdk.code import Packed, Progress, pack
from clutch.sdk.connection import CONNECT_S, parse_address
from clutch.sdk.retry import STATUSES, Attempts, Mishap, explain
from clutch.sdk.where import Given, find, split_masters, surroundings
from clutch.sdk.wish import Wish, submission
from clutch.wire.api import Page, SubmitTask
from clutch.wire.errors import ClutchError, NotFound
from clutch.wire.version import VERSION
from clutch.wire.views import TaskView

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncClient:
    """A cluster. ``masters`` is one address, several (standbys), or nothing: then the login or ``clutch up`` of this
    machine is used. Use it as a context, or ``aclose`` it."""

    def __init__(
        self,
        masters: str | Sequence[str] = (),
        token: str = "",
        *,
        ca_file: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        named = split_masters(masters) if isinstance(masters, str) else tuple(masters)
        if not named:
            where = find(surroundings(), Given(token=token, ca_file=ca_file))
            named, token, ca_file = where.masters, where.token, where.ca_file
        self.addresses = tuple(parse_address(text) for text in named)
        self.patience_s = patience_s
        self._headers = {"User-Agent": f"clutch/{VERSION}"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._ca_file = ca_file
        self._current = 0
        self._http: httpx.AsyncClient | None = None

    @classmethod
    def find(cls, environment: Mapping[str, str], *, patience_s: float = PATIENCE_S) -> Self:
        """The cluster that an environment names (the process's own: CLUTCH_MASTER, CLUTCH_TOKEN), or this machine's."""
        where = find(environment)
        return cls(where.masters, where.token, ca_file=where.ca_file, patience_s=patience_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            import ssl

            import httpx

            verify = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else True
            self._http = httpx.AsyncClient(headers=self._headers, verify=verify, trust_env=False)
        return self._http

    def _request(
        self, call: Call[Any], attempts: Attempts, silence_s: float, content: Any, size: int = 0
    ) -> httpx.Request:
        import httpx

        headers = {"Content-Type": JSON} if call.body else {}
        if size:
            headers = {"Content-Type": "application/gzip", "Content-Length": str(size)}
        return self._client().build_request(
            call.method,
            f"{self.addresses[attempts.index]}{call.target}",
            content=content if content is not None else call.body or None,
            headers=headers,
            timeout=httpx.Timeout(silence_s, connect=CONNECT_S),
        )

    # -- calls ----------------------------------------------------------------------------------------------------

    async def perform(self, call: Call[T], *, packed: Packed | None = None, progress: Progress | None = None) -> T:
        """The answer of a call, however many tries and masters that takes."""
        import httpx

        attempts = self._attempts(call)
        while True:
            content = _pieces(packed, progress) if packed is not None else None
            within_s = attempts.answer_s(call.answer_s)
            request = self._request(call, attempts, within_s, content, packed.size_bytes if packed else 0)
            try:
                response = await self._client().send(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                await self._pause(attempts, Mishap.UNREACHED, explain(Mishap.UNREACHED, _words(error), self._names()))
            except httpx.TransportError as error:
                await self._pause(attempts, Mishap.BROKEN, explain(Mishap.BROKEN, _words(error), str(request.url)))
            else:
                if response.status_code not in STATUSES:
                    self._current = attempts.index
                    return decode(call, response.status_code, response.content)
                failure = rebuild(response.status_code, response.content, call)
                await self._pause(attempts, STATUSES[response.status_code], failure)

    async def lines(self, call: Call[Any], *, silence_s: float = SILENCE_S) -> AsyncIterator[bytes]:
        """The lines of a streamed answer as they come, empty ones too. Ends when the master ends it; ``Unavailable``
        when it breaks, and then the caller asks again from where it was."""
        import httpx

        attempts = self._attempts(call)
        while True:
            request = self._request(call, attempts, silence_s, None)
            begun = False
            try:
                response = await self._client().send(request, stream=True)
                try:
                    if response.status_code < 400:
                        self._current, begun, rest = attempts.index, True, b""
                        async for piece in response.aiter_raw():
                            *whole, rest = (rest + piece).split(b"\n")
                            for line in whole:
                                yield line
                        return
                    error: ClutchError = rebuild(response.status_code, await response.aread(), call)
                    if response.status_code not in STATUSES:
                        raise error
                    mishap = STATUSES[response.status_code]
                finally:
                    await response.aclose()
            except (httpx.ConnectError, httpx.ConnectTimeout) as unreached:
                mishap, error = Mishap.UNREACHED, explain(Mishap.UNREACHED, _words(unreached), self._names())
            except httpx.TransportError as broken:
                mishap, error = Mishap.BROKEN, explain(Mishap.BROKEN, _words(broken), str(request.url))
                if begun:
                    raise error from broken
            await self._pause(attempts, mishap, error)

    async def items(self, call: Call[Page[T]]) -> AsyncIterator[T]:
        """Everything of a list, page by page."""
        while True:
            page = await self.perform(call)
            for item in page.items:
                yield item
            if not page.next:
                return
            kept = tuple(pair for pair in call.query if pair[0] != "after")
            call = msgspec.structs.replace(call, query=(*kept, ("after", page.next)))

    def _attempts(self, call: Call[Any]) -> Attempts:
        until = time.monotonic() + self.patience_s
        return Attempts(len(self.addresses), repeatable=call.repeatable, until=until, first=self._current)

    async def _pause(self, attempts: Attempts, mishap: Mishap, error: ClutchError) -> None:
        pause = attempts.failed(mishap, time.monotonic(), random.random())
        if pause is None:
            raise error
        await asyncio.sleep(pause)

    def _names(self) -> str:
        return ", ".join(str(address) for address in self.addresses)

    # -- what people do most --------------------------------------------------------------------------------------

    async def run(
        self,
        *argv: str,
        code: str | Path | None = ".",
        progress: Progress | None = None,
        **wish: Unpack[Wish],
    ) -> AsyncTask:
        """A command on the cluster, in a copy of the folder ``code`` (None: in an empty one)."""
        digest = await self.upload(Path(code), progress=progress) if code is not None else ""
        return await self.submit(submission(argv, digest, os.urandom(16).hex(), wish))

    async def submit(self, task: SubmitTask) -> AsyncTask:
        """A task as it stands. Without a key it gets one, so that it is safe to try again."""
        if not task.key:
            task = msgspec.structs.replace(task, key=os.urandom(16).hex())
        submitted = await self.perform(calls.submit(task))
        return AsyncTask(self, submitted.task, submitted.name)

    async def upload(self, directory: Path, *, progress: Progress | None = None) -> str:
        """The digest of a working directory that the cluster has from then on. Packed beside the event loop."""
        with await asyncio.to_thread(pack, directory) as packed:
            try:
                await self.perform(calls.has_code(packed.digest))
            except NotFound:
                await self.perform(calls.put_code(packed.digest), packed=packed, progress=progress)
            return packed.digest

    async def task(self, task: str) -> AsyncTask:
        """A task by its id, its name or a unique prefix. ``NotFound`` if there is none."""
        found = (await self.perform(calls.get_task(task))).task
        return AsyncTask(self, found.key, found.name)

    def tasks(self, **filters: Any) -> AsyncIterator[TaskView]:
        """Tasks, the newest first; see ``calls.list_tasks`` for the filters."""
        return self.items(calls.list_tasks(**filters))


async def _pieces(packed: Packed, progress: Progress | None) -> AsyncIterator[bytes]:
    for piece in packed.chunks(progress):
        yield piece


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
