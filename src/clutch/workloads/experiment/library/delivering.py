"""Messages to webhooks: news of an experiment go, signed, to every webhook that wants them.

The news is in the outbox since the transaction that decided it. From there it goes into a queue of each webhook that
wants it, and that is all the outbox waits for. Each queue is worked off by itself: a receiver that is slow or gone
keeps nobody waiting but itself, and rests longer after each failure. What is not taken in time is given up, which its
log says. So a receiver sees a message once, or, when a master dies between its answer and the log, again with the same
id.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import secrets
import ssl
import time
from typing import TYPE_CHECKING

import msgspec
import structlog

from clutch.master.effects import Effect
from clutch.master.loop import Clock
from clutch.wire.access import CLUSTER
from clutch.wire.errors import BadRequest, ClutchError, Unavailable
from clutch.wire.events import Event, SettleEffect
from clutch.wire.experiment_words import ExperimentNews
from clutch.wire.experiments import ExperimentState
from clutch.wire.journal import OutboxItem
from clutch.wire.library import (
    DELIVERY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    Delivery,
    sign,
)
from clutch.wire.version import VERSION
from clutch.workloads.experiment.library.addresses import Resolve, Target, allowed_addresses, parse_target, resolve
from clutch.workloads.experiment.library.hooks import Hook, Webhooks
from clutch.workloads.experiment.library.messages import body_of
from clutch.workloads.experiment.library.waiting import WAITING_MAX, Messages, Waiting, settled, tried

if TYPE_CHECKING:
    import httpx

KIND = "webhook"
"""The kind of the items in the outbox."""
TIMEOUT_S = 10.0
GIVE_UP_S = 1800.0
"""A message that has waited for so long is given up with its next failure."""
ADDRESSES_TRIED = 3
HOOKS_AT_ONCE = 32
"""Webhooks that are spoken to side by side,"""
EACH_AT_ONCE = 4
"""and messages to one of them; to one that failed last, one."""
REST_S, REST_MAX_S = 1.0, 60.0
"""After a failure; each one in a row makes it twice as long."""
LOOK_S = 5.0
AGAIN = (408, 425, 429)
"""Besides everything from 500 on: the receiver may take it later."""
WORDS_MAX = 300


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How one try went."""

    status: int = 0
    error: str = ""
    again: bool = False


class Sender:
    """Posts to receivers. What was resolved and checked is what is connected to; redirects are not followed."""

    def __init__(self, resolver: Resolve = resolve, trust: ssl.SSLContext | None = None) -> None:
        self._resolver = resolver
        self._trust = trust
        self._client: httpx.AsyncClient | None = None

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            import httpx  # only where webhooks are: it would be a tenth of what a master loads at its start

            # no connection is kept: two hosts at one address must not share what was verified for one of them
            self._client = httpx.AsyncClient(
                verify=self._trust or ssl.create_default_context(),
                trust_env=False,
                follow_redirects=False,
                timeout=TIMEOUT_S,
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        import httpx

        try:
            target = parse_target(url)
            async with asyncio.timeout(TIMEOUT_S):
                addresses = await allowed_addresses(target, self._resolver)
                return await self._try(target, addresses, headers, body)
        except TimeoutError:
            return Answer(error=f"no answer within {TIMEOUT_S:g} s", again=True)
        except ClutchError as error:
            return Answer(error=str(error), again=error.blame == "cluster")
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            return Answer(error=f"{type(error).__name__}: {error}"[:WORDS_MAX], again=True)

    async def _try(self, target: Target, addresses: list[str], headers: dict[str, str], body: bytes) -> Answer:
        import httpx

        last: httpx.HTTPError | None = None
        for address in addresses[:ADDRESSES_TRIED]:
            try:
                return await self._once(target, address, headers, body)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                last = error
        raise last or Unavailable("its name has no address", object=f"host {target.host}")

    async def _once(self, target: Target, address: str, headers: dict[str, str], body: bytes) -> Answer:
        host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        request = self._http().build_request(
            "POST",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            headers={**headers, "Host": target.host_and_port},
            content=body,
            extensions={"sni_hostname": target.host} if target.scheme == "https" else None,
        )
        answer = await self._http().send(request, stream=True)  # what it says is nobody's business: only its status is
        await answer.aclose()
        return judge(answer.status_code)


def judge(status: int) -> Answer:
    if 200 <= status < 300:
        return Answer(status=status)
    if 300 <= status < 400:
        return Answer(status=status, error="it sends us elsewhere, and redirects are not followed")
    return Answer(status=status, error=f"it answered {status}", again=status in AGAIN or status >= 500)


class _Rest(msgspec.Struct, frozen=True):
    """A webhook that failed: how often in a row, and until when it is left alone. Soft."""

    failures: int = 0
    until: float = 0.0


class Deliverer:
    """``accept`` is what the performer of the outbox calls; ``run`` works the queues off while its master leads."""

    def __init__(self, hooks: Webhooks, messages: Messages, clock: Clock, sender: Sender | None = None) -> None:
        self.hooks = hooks
        self.messages = messages
        self.clock = clock
        self.sender = sender or Sender()
        self.idle = asyncio.Event()
        """Nothing is due, and nobody is being spoken to."""
        self._news = asyncio.Event()
        self._busy: set[str] = set()
        self._rests: dict[str, _Rest] = {}
        self._log = structlog.get_logger("webhooks")

    # -- from the outbox to the queues ---------------------------------------------------------------------------

    def effect(self) -> Effect:
        return Effect(perform=self.accept, give_up=self.give_up, give_up_s=math.inf, attempt_s=30.0)

    async def accept(self, item: OutboxItem) -> Event:
        """Let the news wait for everybody who wants it and does not have it."""
        try:
            news = msgspec.msgpack.decode(item.payload, type=ExperimentNews)
        except msgspec.DecodeError as error:
            raise BadRequest(f"it is no news of an experiment: {error}", object=f"outbox {item.token}") from None
        done = await self.hooks.settled(item.token)
        found = await self.hooks.of_scopes((CLUSTER, f"workspace:{news.workspace}"))
        wanted = [hook.id for hook in found if hook.id not in done and hook.wants(news)]
        if wanted:
            for one in await self.messages.put(wanted, item.token, item.payload, self.clock.now()):
                await self._note_given_up(one, f"given up: more than {WAITING_MAX} messages wait")
            self.nudge()
        return SettleEffect(cause="webhook", token=item.token)

    def give_up(self, item: OutboxItem, error: ClutchError) -> Event:
        """Only what no release of ours has written."""
        self._log.warning("news that cannot be read is given up", token=item.token, error=str(error))
        return SettleEffect(cause=f"webhook:given up: {error.cause[:WORDS_MAX]}", token=item.token)

    # -- the queues ----------------------------------------------------------------------------------------------

    def nudge(self) -> None:
        """Look at the queues now."""
        self.idle.clear()
        self._news.set()

    async def run(self) -> None:
        """Work the queues off, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                try:
                    wait_s = await self._look(group)
                except ClutchError as error:
                    self._log.warning("the queues of webhooks cannot be read now", error=str(error))
                    wait_s = LOOK_S
                try:
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
                except TimeoutError:
                    pass

    async def _look(self, group: asyncio.TaskGroup) -> float:
        """Begin with every webhook that something is due for, and say for how long to wait for the rest."""
        queues = await self.messages.queues()
        self._rests = {hook: rest for hook, rest in self._rests.items() if hook in queues}
        now, wait_s = self.clock.now(), LOOK_S
        for hook, queued in queues.items():
            due_at = max(queued.next_at, self._rests.get(hook, _Rest()).until)
            if hook in self._busy:
                continue
            if due_at > now:
                wait_s = min(wait_s, due_at - now)
            elif len(self._busy) < HOOKS_AT_ONCE:  # else whoever is done first makes room
                self._busy.add(hook)
                group.create_task(self._speak(hook))
        if not self._busy:
            self.idle.set()
        return wait_s

    async def _speak(self, hook: str) -> None:
        try:
            while await self._some(hook):
                pass
        except ClutchError as error:
            self._log.warning("a webhook's queue cannot be worked off now", webhook=hook, error=str(error))
            self._failed(hook)
        finally:
            self._busy.discard(hook)
            self._news.set()

    async def _some(self, id: str) -> bool:
        """Say what is due to one webhook, a few messages at a time; whether to go on."""
        hook = await self.hooks.get(id)
        if hook is None or not hook.view.enabled:
            await self.messages.expire(id, math.inf)
            return False
        limit = 1 if id in self._rests else EACH_AT_ONCE
        due = await self.messages.due(id, self.clock.now(), limit)
        went = await asyncio.gather(*(self._try(hook, one) for one in due))
        if all(went):
            self._rests.pop(id, None)
            return bool(due)
        self._failed(id)
        await self._expire(hook, due[-1])
        return False

    def _failed(self, hook: str) -> None:
        failures = self._rests.get(hook, _Rest()).failures + 1
        self._rests[hook] = _Rest(failures, self.clock.now() + rest_s(failures))

    async def _try(self, hook: Hook, one: Waiting) -> bool:
        """Whether its receiver answered as it should, or at least for good."""
        news = msgspec.msgpack.decode(one.payload, type=ExperimentNews)
        began = time.monotonic()
        answer = await self._post(hook, news, one.token, test=False)
        now, error, again = self.clock.now(), answer.error, answer.again
        if again and now - one.at >= GIVE_UP_S:
            error, again = f"given up after {one.tries + 1} tries: {error}", False
        delivery = _delivery(news, one.token, answer, time.monotonic() - began, now)
        delivery = msgspec.structs.replace(delivery, error=error[:WORDS_MAX], again=again)
        await self.hooks.note(hook.id, delivery, tried(one, now + rest_s(one.tries + 1)) if again else settled(one))
        return not answer.again

    async def _expire(self, hook: Hook, last: Waiting) -> None:
        """What has waited too long is given up with the failure that was one too many, and not tried one by one."""
        count = await self.messages.expire(hook.id, self.clock.now() - GIVE_UP_S)
        if count:
            words = f"given up: {count} messages that have waited for more than {GIVE_UP_S / 60:g} minutes"
            await self._note_given_up(last, words)

    async def _note_given_up(self, one: Waiting, words: str) -> None:
        news = msgspec.msgpack.decode(one.payload, type=ExperimentNews)
        self._log.warning("messages to a webhook are given up", webhook=one.webhook, token=one.token, why=words)
        await self.hooks.note(one.webhook, _delivery(news, one.token, Answer(error=words), 0.0, self.clock.now()))

    # -- one message ---------------------------------------------------------------------------------------------

    async def test(self, hook: Hook, by: str) -> Delivery:
        """Send a sample, whether the webhook is enabled or not; how it went."""
        state = next((word for word in hook.view.triggers if word in tuple(ExperimentState)), "active")
        news = ExperimentNews(
            experiment="e-sample",
            name="sample",
            workspace=hook.view.scope.removeprefix("workspace:"),
            project="",
            owner=by,
            state=state,
            detail="A test of this webhook.",
            at=self.clock.now(),
        )
        token = f"test-{secrets.token_hex(8)}"
        began = time.monotonic()
        answer = await self._post(hook, news, token, test=True)
        delivery = _delivery(news, token, answer, time.monotonic() - began, self.clock.now())
        return await self.hooks.note(hook.id, msgspec.structs.replace(delivery, again=False))

    async def _post(self, hook: Hook, news: ExperimentNews, token: str, *, test: bool) -> Answer:
        try:
            opened = hook.opened(self.hooks.keys)
        except ClutchError as error:
            return Answer(error=str(error))
        body = body_of(hook.view, news, token, test=test)
        timestamp = str(int(self.clock.now()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"clutch/{VERSION}",
            TIMESTAMP_HEADER: timestamp,
            SIGNATURE_HEADER: sign(opened.secret, timestamp, body),
            DELIVERY_HEADER: token,
        }
        return await self.sender.post(opened.url, headers, body)


def rest_s(failures: int) -> float:
    """For how long to wait after so many failures in a row."""
    return min(REST_MAX_S, REST_S * 2.0 ** min(failures - 1, 30))


def _delivery(news: ExperimentNews, token: str, answer: Answer, took_s: float, at: float) -> Delivery:
    return Delivery(
        number=0,
        id=token,
        experiment=news.experiment,
        state=news.told,
        status=answer.status,
        error=answer.error[:WORDS_MAX],
        again=answer.again,
        took_s=took_s,
        at=at,
    )
