"""Messages to webhooks: a change of an experiment's state goes, signed, to every webhook that wants it.

The change is in the outbox since the transaction that decided it. Whatever takes the message, or refuses it for good,
is written into the log; a try again goes only to the others. So a receiver sees a message once, or, when a master dies
between its answer and the log, again with the same id.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import ssl
import time
from typing import Any

import httpx
import msgspec
import structlog

from clutch.master.effects import Effect
from clutch.master.loop import Clock
from clutch.wire.access import CLUSTER
from clutch.wire.errors import BadRequest, ClutchError, Unavailable
from clutch.wire.events import Event, SettleEffect
from clutch.wire.experiment_words import StateChanged
from clutch.wire.journal import OutboxItem
from clutch.wire.library import (
    DELIVERY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    Delivery,
    WebhookFormat,
    WebhookMessage,
    sign,
)
from clutch.wire.version import VERSION
from clutch.workloads.experiment.library.addresses import Resolve, Target, allowed_addresses, parse_target, resolve
from clutch.workloads.experiment.library.hooks import Hook, Webhooks

KIND = "webhook"
"""The kind of the items in the outbox."""
TIMEOUT_S = 10.0
GIVE_UP_S = 1800.0
ADDRESSES_TRIED = 3
AT_ONCE = 16
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


class Deliverer:
    """What the performer of the outbox calls for each change of state."""

    def __init__(self, hooks: Webhooks, clock: Clock, sender: Sender | None = None) -> None:
        self.hooks = hooks
        self.clock = clock
        self.sender = sender or Sender()
        self._busy = asyncio.Semaphore(AT_ONCE)
        self._log = structlog.get_logger("webhooks")

    def effect(self) -> Effect:
        return Effect(perform=self.deliver, give_up=self.give_up, give_up_s=GIVE_UP_S, attempt_s=120.0)

    async def deliver(self, item: OutboxItem) -> Event:
        """Tell everybody who wants to know and does not yet. ``Unavailable`` when somebody is to be told again."""
        try:
            change = msgspec.msgpack.decode(item.payload, type=StateChanged)
        except msgspec.DecodeError as error:
            raise BadRequest(f"it is no change of an experiment: {error}", object=f"outbox {item.token}") from None
        settled = await self.hooks.settled(item.token)
        found = await self.hooks.of_scopes((CLUSTER, f"workspace:{change.workspace}"))
        due = [hook for hook in found if hook.id not in settled]
        due = [hook for hook in due if hook.wants(change.name, change.state, change.webhooks)]
        tried = await asyncio.gather(*(self._one(hook, change, item.token) for hook in due))
        failed = [f"{hook.view.name}: {each.error}" for hook, each in zip(due, tried, strict=True) if each.again]
        if failed:
            raise Unavailable("; ".join(failed), object=f"webhooks of {change.experiment}")
        return SettleEffect(cause="webhook", token=item.token)

    def give_up(self, item: OutboxItem, error: ClutchError) -> Event:
        self._log.warning("a message is given up", token=item.token, error=str(error))
        return SettleEffect(cause=f"webhook:given up: {error.cause[:WORDS_MAX]}", token=item.token)

    async def test(self, hook: Hook, by: str) -> Delivery:
        """Send a sample, whether the webhook is enabled or not; how it went."""
        change = StateChanged(
            experiment="e-sample",
            name="sample",
            workspace=hook.view.scope.removeprefix("workspace:"),
            project="",
            owner=by,
            state=hook.view.triggers[0],
            detail="A test of this webhook.",
            at=self.clock.now(),
        )
        return await self._one(hook, change, f"test-{secrets.token_hex(8)}", test=True)

    async def _one(self, hook: Hook, change: StateChanged, token: str, *, test: bool = False) -> Delivery:
        began = time.monotonic()
        async with self._busy:
            answer = await self._post(hook, change, token, test=test)
        delivery = Delivery(
            number=0,
            id=token,
            experiment=change.experiment,
            state=change.state,
            status=answer.status,
            error=answer.error[:WORDS_MAX],
            again=answer.again and not test,
            took_s=time.monotonic() - began,
            at=self.clock.now(),
        )
        return await self.hooks.note(hook.id, delivery)

    async def _post(self, hook: Hook, change: StateChanged, token: str, *, test: bool) -> Answer:
        try:
            opened = hook.opened(self.hooks.keys)
        except ClutchError as error:
            return Answer(error=str(error))
        body = body_of(hook, change, token, test=test)
        timestamp = str(int(self.clock.now()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"clutch/{VERSION}",
            TIMESTAMP_HEADER: timestamp,
            SIGNATURE_HEADER: sign(opened.secret, timestamp, body),
            DELIVERY_HEADER: token,
        }
        return await self.sender.post(opened.url, headers, body)


# -- what is said -------------------------------------------------------------------------------------------------


def body_of(hook: Hook, change: StateChanged, token: str, *, test: bool = False) -> bytes:
    if hook.view.format is WebhookFormat.SLACK:
        return msgspec.json.encode(slack_of(change, test=test))
    fields = {name: getattr(change, name) for name in StateChanged.__struct_fields__ if name != "webhooks"}
    return msgspec.json.encode(WebhookMessage(id=token, webhook=hook.view.name, test=test, **fields))


_COLOURS = {"completed": "#2eb67d", "failed": "#e01e5a", "cancelled": "#ecb22e", "paused": "#36c5f0"}


def slack_of(change: StateChanged, *, test: bool = False) -> dict[str, Any]:
    """What Slack shows: a line for the notification, and the facts beneath it."""
    name = escaped(change.name or change.experiment)
    line = f"{'Test: ' if test else ''}Experiment {name} ({escaped(change.experiment)}) is {escaped(change.state)}"
    facts = [("Workspace", change.workspace), ("Project", change.project), ("Owner", change.owner)]
    fields = [{"type": "mrkdwn", "text": f"*{title}*\n{escaped(value)}"} for title, value in facts if value]
    blocks: list[dict[str, Any]] = [{"type": "section", "text": {"type": "mrkdwn", "text": line}}]
    if fields:
        blocks[0]["fields"] = fields
    if change.detail:
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": escaped(change.detail)[:2000]}]})
    return {"text": line, "attachments": [{"color": _COLOURS.get(change.state, "#888888"), "blocks": blocks}]}


def escaped(text: str) -> str:
    """A text in which Slack finds no markup of its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
