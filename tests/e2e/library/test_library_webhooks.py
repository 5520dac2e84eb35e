"""Webhooks: real messages to a real receiver, signed, tried again, told once."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
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
from clutch.wire.errors import BadRequest, NotAuthenticated, Unavailable
from clutch.wire.events import SettleEffect
from clutch.wire.experiment_words import StateChanged
from clutch.wire.journal import OutboxItem
from clutch.wire.library import NewWebhook, WebhookChange
from clutch.workloads.experiment.library.delivering import KIND, Deliverer, Sender
from clutch.workloads.experiment.library.models import Who

WHO = Who("ada", 5.0)
SCOPE = "workspace:default"


def item(token: str = "e-1:1", **fields: Any) -> OutboxItem:
    plain = {
        "experiment": "e-1", "name": "digits", "workspace": "default", "project": "p", "owner": "ada",
        "state": "completed", "detail": "", "at": 77.0,
    }  # fmt: skip
    change = msgspec.convert({**plain, **fields}, StateChanged)
    return OutboxItem(token, KIND, 1_000_000.0, msgspec.msgpack.encode(change))


async def add(house: House, receiver: Receiver, name: str = "w", **fields: Any) -> str:
    """A webhook to the receiver; its secret."""
    new = msgspec.convert({"name": name, "scope": SCOPE, "url": receiver.url, **fields}, NewWebhook)
    return (await house.library.webhooks.create(new, WHO))[1]


async def test_a_message_is_signed_and_says_what_happened(house: House, receiver: Receiver) -> None:
    secret = await add(house, receiver)
    assert await house.library.deliverer.deliver(item(detail="done")) == SettleEffect(cause="webhook", token="e-1:1")
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
    (logged,) = await house.library.webhooks.deliveries((await house.library.webhooks.find(SCOPE, "w")).id, 0, 10)
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
    ],
    ids=str,
)
async def test_only_who_wants_it_is_told(
    house: House, receiver: Receiver, fields: dict[str, Any], change: dict[str, Any], told: bool
) -> None:
    await add(house, receiver, **fields)
    await house.library.deliverer.deliver(item(**change))
    assert bool(receiver.got) is told


async def test_slack_gets_what_slack_shows(house: House, receiver: Receiver) -> None:
    await add(house, receiver, format="slack")
    await house.library.deliverer.deliver(item(name="<b>&digits", state="failed", detail="it broke"))
    body = msgspec.json.decode(receiver.got[0].body)
    assert body["text"] == "Experiment &lt;b&gt;&amp;digits (e-1) is failed"
    (shown,) = body["attachments"]
    assert shown["color"] == "#e01e5a" and shown["blocks"][1]["elements"][0]["text"] == "it broke"


async def test_a_failure_is_tried_again_only_with_those_who_lack_it(house: House, receiver: Receiver) -> None:
    await add(house, receiver, "good")
    async with open_receiver() as ailing:
        secret = await add(house, ailing, "ailing")
        ailing.answers = [500, 429]
        for _ in range(2):
            with pytest.raises(Unavailable, match="ailing: it answered"):
                await house.library.deliverer.deliver(item())
        await house.library.deliverer.deliver(item())
        assert len(receiver.got) == 1 and len(ailing.got) == 3
        tokens = [receiving.verify(secret, got.headers, got.body, now=house.clock.time) for got in ailing.got]
        assert tokens == ["e-1:1"] * 3
        hook = await house.library.webhooks.find(SCOPE, "ailing")
        log = await house.library.webhooks.deliveries(hook.id, 0, 10)
        assert [(each.status, each.again) for each in log] == [(200, False), (429, True), (500, True)]
        await house.library.deliverer.deliver(item())  # the word about it was lost: everybody has it
        assert len(receiver.got) == 1 and len(ailing.got) == 3


@pytest.mark.parametrize("status", [301, 307, 400, 404, 410])
async def test_what_will_never_be_taken_is_not_tried_again(house: House, receiver: Receiver, status: int) -> None:
    await add(house, receiver)
    receiver.answers, receiver.location = [status], receiver.url
    await house.library.deliverer.deliver(item())
    await house.library.deliverer.deliver(item())
    assert len(receiver.got) == 1
    hook = await house.library.webhooks.find(SCOPE, "w")
    (logged,) = await house.library.webhooks.deliveries(hook.id, 0, 10)
    assert logged.status == status and logged.error and not logged.again


async def test_one_that_is_gone_or_silent_does_not_keep_the_others_waiting(house: House, receiver: Receiver) -> None:
    await add(house, receiver, "good")
    async with open_receiver() as gone:
        await add(house, gone, "gone")
    with pytest.raises(Unavailable, match="gone: Connect"):
        await house.library.deliverer.deliver(item())
    assert len(receiver.got) == 1
    await house.library.webhooks.change(SCOPE, "gone", WebhookChange(enabled=False))
    await house.library.deliverer.deliver(item())  # nobody wants it any more


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


async def test_the_performer_tries_until_it_is_taken_and_gives_up_what_is_no_message(
    house: House, receiver: Receiver
) -> None:
    await add(house, receiver)
    receiver.answers = [500, 503, 500]
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
    assert [got.headers["x-clutch-delivery"] for got in receiver.got] == ["e-1:1"] * 4
    with pytest.raises(BadRequest):
        await house.library.deliverer.deliver(broken)


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

    deliverer = Deliverer(house.library.webhooks, house.clock, Sender(resolver))
    new = NewWebhook(name="w", scope=SCOPE, url="http://metadata.internal/keys")
    await house.library.webhooks.create(new, WHO)
    await deliverer.deliver(item())
    hook = await house.library.webhooks.find(SCOPE, "w")
    (logged,) = await house.library.webhooks.deliveries(hook.id, 0, 10)
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

    deliverer = Deliverer(
        house.library.webhooks, house.clock, Sender(resolver, ssl.create_default_context(cafile=str(pem)))
    )
    async with secure_receiver(pem) as receiver:
        for name, host in (("right", "hooks.example"), ("wrong", "other.example")):
            new = NewWebhook(name=name, scope=SCOPE, url=f"https://{host}:{receiver.port}/x")
            await house.library.webhooks.create(new, WHO)
        with pytest.raises(Unavailable, match="wrong: ConnectError"):
            await deliverer.deliver(item())
        (got,) = receiver.got
        assert got.headers["host"] == f"hooks.example:{receiver.port}"
    await deliverer.sender.close()
