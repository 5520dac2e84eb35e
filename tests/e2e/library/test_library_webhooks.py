"""Webhooks: real messages to a real receiver, signed, tried again, told once."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from library_house import House, Received, Receiver, open_receiver

from clutch.master.effects import Performer, PerformerSettings
from clutch.sdk import webhooks as receiving
from clutch.wire.errors import BadRequest, NotAuthenticated
from clutch.wire.events import SettleEffect
from clutch.wire.experiment_words import ExperimentNews
from clutch.wire.journal import OutboxItem
from clutch.wire.library import Delivery, NewWebhook, WebhookChange
from clutch.workloads.experiment.library.delivering import EACH_AT_ONCE, GIVE_UP_S, KIND, Deliverer, Sender
from clutch.workloads.experiment.library.models import Who
from clutch.workloads.experiment.library.waiting import WAITING_MAX

WHO = Who("ada", 5.0)
SCOPE = "workspace:default"


def item(token: str = "e-1:1", **fields: Any) -> OutboxItem:
    plain = {
        "experiment": "e-1", "name": "digits", "workspace": "default", "project": "p", "owner": "ada",
        "state": "completed", "detail": "", "at": 77.0,
    }  # fmt: skip
    change = msgspec.convert({**plain, **fields}, ExperimentNews)
    return OutboxItem(token, KIND, 1_000_000.0, msgspec.msgpack.encode(change))


async def add(house: House, receiver: Receiver, name: str = "w", **fields: Any) -> str:
    """A webhook to the receiver; its secret."""
    new = msgspec.convert({"name": name, "scope": SCOPE, "url": receiver.url, **fields}, NewWebhook)
    return (await house.library.webhooks.create(new, WHO))[1]


@asynccontextmanager
async def speaking(deliverer: Deliverer) -> AsyncIterator[None]:
    running = asyncio.create_task(deliverer.run())
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def tell(house: House, *items: OutboxItem, deliverer: Deliverer | None = None) -> None:
    """These items are accepted, and everything that is due is said."""
    deliverer = deliverer or house.library.deliverer
    for one in items:
        assert await deliverer.accept(one) == SettleEffect(cause="webhook", token=one.token)
    deliverer.nudge()
    async with speaking(deliverer), asyncio.timeout(20):
        await deliverer.idle.wait()


async def log_of(house: House, name: str = "w") -> list[Delivery]:
    return await house.library.webhooks.deliveries((await house.library.webhooks.find(SCOPE, name)).id, 0, 200)


async def test_a_message_is_signed_and_says_what_happened(house: House, receiver: Receiver) -> None:
    secret = await add(house, receiver)
    await tell(house, item(detail="done"))
    (got,) = receiver.got
    message = receiving.read(secret, got.headers, got.body, now=house.clock.time)
    assert (message.id, message.webhook, message.experiment, message.state) == ("e-1:1", "w", "e-1", "completed")
    assert (message.name, message.owner, message.detail, message.at, message.test) == (
        "digits",
        "ada",
        "done",
        77.0,
        False,
    )
    assert (got.path, got.headers["x-clutch-delivery"]) == ("/hook?room=1", "e-1:1")
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert got.headers["content-type"] == "application/json"
    check_forgeries(secret, got, house.clock.time)
    (logged,) = await log_of(house)
    assert (logged.status, logged.error, logged.again, logged.experiment) == (200, "", False, "e-1")


def check_forgeries(secret: str, got: Received, now: float) -> None:
    """Whatever is changed about a message, or when it is old, it is not genuine."""
    for headers, body, moment, key in (
        (got.headers, got.body + b" ", now, secret),
        (got.headers, got.body, now, secret + "x"),
        (got.headers, got.body, now + 301, secret),
        (got.headers, got.body, now - 301, secret),
        ({**got.headers, "x-clutch-timestamp": str(int(now) + 1)}, got.body, now, secret),
        ({**got.headers, "x-clutch-signature": "sha256=" + "0" * 64}, got.body, now, secret),
        ({name: value for name, value in got.headers.items() if "timestamp" not in name}, got.body, now, secret),
        ({}, got.body, now, secret),
    ):
        with pytest.raises(NotAuthenticated):
            receiving.verify(key, headers, body, now=moment)
    assert receiving.verify(secret, got.headers, got.body, now=now + 299) == "e-1:1"


@pytest.mark.parametrize(
    ("fields", "change", "told"),
    [
        ({}, {}, True),
        ({}, {"state": "active"}, False),
        ({"triggers": ["active", "paused"]}, {"state": "active"}, True),
        ({}, {"workspace": "other"}, False),
        ({"scope": "cluster"}, {"workspace": "other"}, True),
        ({"enabled": False}, {}, False),
        ({"enabled": False}, {"webhooks": ["w"]}, False),
        ({"experiments": ["dig*", "x"]}, {}, True),
        ({"experiments": ["Dig*"]}, {}, False),
        ({"experiments": ["other"]}, {"webhooks": ["w"]}, True),
        ({"on_request": True}, {}, False),
        ({"on_request": True}, {"webhooks": ["v", "w"]}, True),
        ({"on_request": True}, {"webhooks": ["w"], "state": "active"}, False),
        ({}, {"event": "matched", "rule": "oom", "trial": 3}, False),
        ({"triggers": ["matched"]}, {"event": "matched", "rule": "oom"}, True),
        ({"triggers": ["matched"]}, {"state": "failed"}, False),
        ({"triggers": ["failed", "matched:oom"]}, {"event": "matched", "rule": "oom"}, True),
        ({"triggers": ["matched:other"]}, {"event": "matched", "rule": "oom"}, False),
    ],
    ids=str,
)
async def test_only_who_wants_it_is_told(
    house: House, receiver: Receiver, fields: dict[str, Any], change: dict[str, Any], told: bool
) -> None:
    await add(house, receiver, **fields)
    await tell(house, item(**change))
    assert bool(receiver.got) is told


async def test_slack_gets_what_slack_shows(house: House, receiver: Receiver) -> None:
    await add(house, receiver, format="slack")
    await tell(house, item(name="<b>&digits", state="failed", detail="it broke"))
    body = msgspec.json.decode(receiver.got[0].body)
    assert body["text"] == "Experiment &lt;b&gt;&amp;digits (e-1) is failed"
    (shown,) = body["attachments"]
    assert shown["color"] == "#e01e5a" and shown["blocks"][1]["elements"][0]["text"] == "it broke"


async def test_a_failure_is_tried_again_only_with_those_who_lack_it(house: House, receiver: Receiver) -> None:
    await add(house, receiver, "good")
    async with open_receiver() as ailing:
        secret = await add(house, ailing, "ailing")
        ailing.answers = [500, 429]
        await tell(house, item())
        for rest_s in (1.0, 2.0):
            await tell(house)  # it rests
            house.clock.time += rest_s
            await tell(house)
        assert len(receiver.got) == 1 and len(ailing.got) == 3
        tokens = [receiving.verify(secret, got.headers, got.body, now=house.clock.time) for got in ailing.got]
        assert tokens == ["e-1:1"] * 3
        log = await log_of(house, "ailing")
        assert [(each.status, each.again) for each in log] == [(200, False), (429, True), (500, True)]
        await tell(house, item())  # the word that it was accepted was lost: everybody has it
        assert len(receiver.got) == 1 and len(ailing.got) == 3
        assert await house.library.messages.queues() == {}


@pytest.mark.parametrize("status", [301, 307, 400, 404, 410])
async def test_what_will_never_be_taken_is_not_tried_again(house: House, receiver: Receiver, status: int) -> None:
    await add(house, receiver)
    receiver.answers, receiver.location = [status], receiver.url
    await tell(house, item())
    await tell(house, item())
    assert len(receiver.got) == 1
    (logged,) = await log_of(house)
    assert logged.status == status and logged.error and not logged.again


async def test_one_that_never_answers_keeps_nobody_waiting_but_itself(house: House, receiver: Receiver) -> None:
    async with open_silence() as (silent, connected):
        silence = Receiver()
        silence.port = silent
        await add(house, silence, "silent")
        await add(house, receiver, "good")
        deliverer = house.library.deliverer
        async with speaking(deliverer), asyncio.timeout(8):  # less than the time that the silent one is given
            for number in range(20):
                await deliverer.accept(item(f"e-1:{number}"))
            while len(receiver.got) < 20:
                await receiver.more.wait()
                receiver.more.clear()
        assert 1 <= connected() <= EACH_AT_ONCE, "the silent one has a few messages at a time, and nobody else's place"
    queues = await house.library.messages.queues()
    silent_hook = await house.library.webhooks.find(SCOPE, "silent")
    assert queues[silent_hook.id].count == 20


async def test_what_is_not_taken_in_time_is_given_up_and_said_so(house: House) -> None:
    async with open_receiver() as gone:
        await add(house, gone)
    await tell(house, item("e-1:1"), item("e-1:2"), item("e-1:3"))
    assert all(each.again and "Connect" in each.error for each in await log_of(house))
    hook = await house.library.webhooks.find(SCOPE, "w")
    assert (await house.library.messages.queues())[hook.id].count == 3
    house.clock.time += GIVE_UP_S
    await tell(house)
    house.clock.time += 120.0
    await tell(house)
    newest = (await log_of(house))[0]
    assert "given up" in newest.error and not newest.again
    assert await house.library.messages.queues() == {}


async def test_a_queue_has_a_bound_and_says_what_it_dropped(house: House) -> None:
    async with open_receiver() as gone:
        await add(house, gone)
    house.clock.time += 1.0
    for number in range(WAITING_MAX + 2):
        house.clock.time += 0.001
        await house.library.deliverer.accept(item(f"e-1:{number}"))
    hook = await house.library.webhooks.find(SCOPE, "w")
    assert (await house.library.messages.queues())[hook.id].count == WAITING_MAX
    assert [each.id for each in await log_of(house)] == ["e-1:1", "e-1:0"]
    assert all(each.error.startswith("given up:") for each in await log_of(house))
    await house.library.webhooks.delete(SCOPE, "w")
    assert await house.library.messages.queues() == {}


async def test_one_that_is_disabled_is_told_nothing_of_what_waited(house: House) -> None:
    async with open_receiver() as gone:
        await add(house, gone)
    await tell(house, item())
    await house.library.webhooks.change(SCOPE, "w", WebhookChange(enabled=False))
    house.clock.time += 60.0
    await tell(house)
    assert await house.library.messages.queues() == {} and len(await log_of(house)) == 1


@asynccontextmanager
async def open_silence() -> AsyncIterator[tuple[int, Callable[[], int]]]:
    """A port that takes connections and never says a word, and how many there were."""
    held: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], lambda: len(held)
    finally:
        for writer in held:
            writer.close()
        server.close()


class Desk:
    """The outbox as a performer sees it, and the loop that folds results."""

    def __init__(self, *items: OutboxItem) -> None:
        self.clock = self
        self.serving, self.owing, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.serving.set()
        self.items = {item.token: item for item in items}

    def now(self) -> float:
        return 1_000_000.0

    async def pending(self, limit: int) -> list[OutboxItem]:
        return list(self.items.values())[:limit]

    async def ask(self, event: Any) -> None:
        del self.items[event.token]
        if not self.items:
            self.over.set()


async def test_the_outbox_is_done_when_it_waits_for_its_webhooks(house: House, receiver: Receiver) -> None:
    await add(house, receiver)
    receiver.answers = [500]
    broken = OutboxItem("broken", KIND, 1_000_000.0, b"\xc1")
    desk = Desk(item(), item("e-2:1", experiment="e-2", workspace="other"), broken)
    quick = PerformerSettings(retry_s=0.01, retry_max_s=0.02, look_s=0.05)
    running = asyncio.create_task(Performer(desk, desk, house.library.effects(), quick).run())  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(20):
            await desk.over.wait()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert receiver.got == [], "nobody was spoken to while the outbox was worked off"
    await tell(house)
    house.clock.time += 1.0
    await tell(house)
    assert [got.headers["x-clutch-delivery"] for got in receiver.got] == ["e-1:1"] * 2
    with pytest.raises(BadRequest):
        await house.library.deliverer.accept(broken)


async def test_a_test_is_sent_though_it_is_disabled_and_is_not_tried_again(house: House, receiver: Receiver) -> None:
    secret = await add(house, receiver, enabled=False, triggers=["failed"])
    receiver.answers = [200, 500]
    hook = await house.library.webhooks.find(SCOPE, "w")
    took = await house.library.deliverer.test(hook, "ada")
    failed = await house.library.deliverer.test(hook, "ada")
    assert (took.status, took.error, failed.status, failed.again) == (200, "", 500, False)
    message = receiving.read(secret, receiver.got[0].headers, receiver.got[0].body, now=house.clock.time)
    assert (message.test, message.state, message.workspace) == (True, "failed", "default")


async def test_a_name_that_leads_to_a_metadata_server_is_refused_at_the_moment_of_sending(house: House) -> None:
    asked: list[str] = []

    async def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["10.1.2.3", "169.254.169.254"]

    deliverer = Deliverer(house.library.webhooks, house.library.messages, house.clock, Sender(resolver))
    new = NewWebhook(name="w", scope=SCOPE, url="http://metadata.internal/keys")
    await house.library.webhooks.create(new, WHO)
    await tell(house, item(), deliverer=deliverer)
    (logged,) = await log_of(house)
    assert asked == ["metadata.internal"] and "no webhook may reach" in logged.error and not logged.again
    await deliverer.sender.close()


# -- TLS ----------------------------------------------------------------------------------------------------------


def certificate(name: str, folder: Path) -> Path:
    """A certificate of this name that signs itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    plain = serialization.NoEncryption()
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@asynccontextmanager
async def secure_receiver(pem: Path) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


async def test_a_certificate_is_checked_against_the_name_though_we_connect_to_the_address(
    house: House, tmp_path: Path
) -> None:
    pem = certificate("hooks.example", tmp_path)

    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    sender = Sender(resolver, ssl.create_default_context(cafile=str(pem)))
    deliverer = Deliverer(house.library.webhooks, house.library.messages, house.clock, sender)
    async with secure_receiver(pem) as receiver:
        for name, host in (("right", "hooks.example"), ("wrong", "other.example")):
            new = NewWebhook(name=name, scope=SCOPE, url=f"https://{host}:{receiver.port}/x")
            await house.library.webhooks.create(new, WHO)
        await tell(house, item(), deliverer=deliverer)
        assert "ConnectError" in (await log_of(house, "wrong"))[0].error
        (got,) = receiver.got
        assert got.headers["host"] == f"hooks.example:{receiver.port}"
    await deliverer.sender.close()
