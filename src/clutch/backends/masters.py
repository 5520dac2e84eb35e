"""The masters of a cluster, asked over HTTP: whichever leads now gives the answer.

An address that does not answer, does not lead or has no time is followed by the next one, again and again until the
call's time is over. Only what may be said twice is said twice: a call that is not to be repeated goes to another
address only if it surely did not arrive.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import httpx
import msgspec

from clutch.wire.errors import ClutchError, Unavailable
from clutch.wire.refusals import error_said

T = TypeVar("T")

TRY_S = 8.0
PAUSE_S = 0.1
PAUSE_MAX_S = 1.0
READ_S = 30.0
CONNECT_S = 5.0
CONNECTIONS_MAX = 8
"""More would be slower: httpx looks at every one of them for every request."""
WAITING_MAX = 256
"""Long polls have connections of their own, so that nothing waits behind them."""

_ELSEWHERE = (421, 503)
"""Another address may know better."""


class Masters:
    """One client of a cluster. ``addresses`` are base URLs, in any order."""

    def __init__(self, addresses: tuple[str, ...], token: str, *, ca_file: str = "", try_s: float = TRY_S) -> None:
        self._addresses = tuple(address.rstrip("/") for address in addresses)
        self._current = 0
        self._try_s = try_s
        self._token = token
        secure = any(address.startswith("https:") for address in self._addresses)
        self._trusted = _trust(ca_file) if secure else False  # loading the machine's authorities takes a while
        self._quick, self._waiting = self._client(CONNECTIONS_MAX), self._client(WAITING_MAX)

    def _client(self, connections: int) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            verify=self._trusted,
            trust_env=False,
        )

    async def ask(
        self,
        method: str,
        path: str,
        *,
        repeat: bool = True,
        waits_s: float = 0.0,
        **sent: Any,
    ) -> httpx.Response:
        """The answer of whoever leads; the error it says otherwise, ``Unavailable`` when nobody answers in time.

        ``waits_s`` is how long the call itself may wait at the master (a long poll). ``sent`` goes to httpx.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._try_s
        pause = PAUSE_S
        timeout = httpx.Timeout(READ_S + waits_s, connect=CONNECT_S)
        client = self._waiting if waits_s else self._quick
        while True:
            address = self._addresses[self._current % len(self._addresses)]
            try:
                answer = await client.request(method, address + path, timeout=timeout, **sent)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure: ClutchError = _unavailable(address, error)
            except httpx.HTTPError as error:
                failure = _unavailable(address, error)
                if not repeat:
                    raise failure from error
            else:
                if answer.status_code < 400:
                    return answer
                failure = error_said(answer.status_code, answer.content, f"{method} {path}")
                if answer.status_code not in _ELSEWHERE:
                    raise failure
            self._current += 1
            if loop.time() + pause > until:
                raise Unavailable(failure.cause, object=failure.object, next_step=failure.next_step)
            await asyncio.sleep(pause)
            pause = min(PAUSE_MAX_S, pause * 1.5)

    async def tell(self, method: str, path: str, kind: type[T], body: Any = None, **more: Any) -> T:
        """The answer decoded; ``body`` is sent as JSON."""
        if body is not None:
            more["content"] = msgspec.json.encode(body)
            more["headers"] = {"Content-Type": "application/json", **more.get("headers", {})}
        answer = await self.ask(method, path, **more)
        return msgspec.json.decode(answer.content, type=kind)

    async def close(self) -> None:
        await self._quick.aclose()
        await self._waiting.aclose()


def _unavailable(address: str, error: Exception) -> Unavailable:
    said = str(error) or type(error).__name__
    return Unavailable(f"no answer: {said}", object=address, next_step="Is a master running there?")


def _trust(ca_file: str) -> Any:
    """Whom to believe over TLS: the cluster's own authority, or the machine's."""
    import ssl

    return ssl.create_default_context(cafile=ca_file or None)
