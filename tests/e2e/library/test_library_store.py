"""What the library keeps, on SQLite and on a real PostgreSQL: the same promises."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from library_house import Checkpoints, Hand, check_config
from sqlalchemy import update

from clutch.master.access.keys import MasterKeys
from clutch.master.settings import MasterSettings
from clutch.testing.postgres import fresh_database
from clutch.wire.errors import BadRequest, Conflict, NotFound, TooNew, Unavailable
from clutch.wire.library import (
    Delivery,
    ModelChange,
    NewModel,
    NewWebhook,
    PutConfig,
    RegisterVersion,
    SetAlias,
    VersionChange,
    VersionView,
    WebhookChange,
)
from clutch.workloads.experiment.library import tables
from clutch.workloads.experiment.library.hooks import KEPT
from clutch.workloads.experiment.library.models import ModelFilter, Who
from clutch.workloads.experiment.library.opening import Library, open_library
from clutch.workloads.experiment.library.tables import meta, webhooks
from clutch.workloads.experiment.library.waiting import settled, tried

WHO = Who("ada", 5.0)
KEY = "0123456789abcdef" * 4


class Ground:
    """Where libraries of one database are opened."""

    def __init__(self, folder: Path, db: str) -> None:
        self.settings = MasterSettings(data=folder, db=db)
        self.checkpoints = Checkpoints()
        self.opened: list[Library] = []

    async def open(self, *keys: str) -> Library:
        library = await open_library(self.settings, Hand(), MasterKeys(keys or (KEY,)), check_config)
        library.serve(self.checkpoints)
        self.opened.append(library)
        return library


@pytest.fixture(params=["sqlite", "postgres"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    async def use(found: Ground) -> AsyncIterator[Ground]:
        try:
            yield found
        finally:
            for library in found.opened:
                await library.close()

    if request.param == "sqlite":
        async for found in use(Ground(tmp_path, "")):
            yield found
        return
    address = request.getfixturevalue("postgres_address")
    async with fresh_database(address, f"library_{uuid.uuid4().hex}") as database:
        async for found in use(Ground(tmp_path, database)):
            yield found


async def register(library: Library, model: str, checkpoint: str, **asked: Any) -> VersionView:
    row = await library.holds.look(checkpoint)
    wanted = RegisterVersion(checkpoint=checkpoint, **asked)
    return await library.models.register("default", model, wanted, row, WHO)


# -- models -------------------------------------------------------------------------------------------------------


async def test_a_model_is_kept_and_changed(ground: Ground) -> None:
    library = await ground.open()
    new = NewModel(name="m", description="d", notes="n" * 5000, labels=("a", "b%", "a"), metadata={"x": [1, None, "ü"]})
    made = await library.models.create("default", new, WHO)
    assert made == await library.models.find("default", "m")
    assert (made.labels, made.metadata, made.created_by) == (("a", "b%"), {"x": [1, None, "ü"]}, "ada")
    with pytest.raises(Conflict):
        await library.models.create("default", new, WHO)
    await library.models.create("other", new, WHO)  # a name is unique in its workspace
    later = Who("bob", 9.0)
    changed = await library.models.change("default", "m", ModelChange(archived=True, labels=()), later)
    assert (changed.archived, changed.labels, changed.description, changed.changed_at) == (True, (), "d", 9.0)
    with pytest.raises(NotFound):
        await library.models.change("default", "none", ModelChange(archived=True), later)
    again = await ground.open()
    assert await again.models.find("default", "m") == changed


async def test_models_are_listed_page_by_page_and_filtered(ground: Ground) -> None:
    library = await ground.open()
    for workspace in ("a", "a-b", "b"):
        for name in ("Zed", "apple", "apple_pie", "apple.2"):
            labels = ("fruit", "x") if name.startswith("apple") else ()
            await library.models.create(workspace, NewModel(name=name, labels=labels), WHO)
    await library.models.change("b", "Zed", ModelChange(archived=True), WHO)
    everything = await library.models.page(ModelFilter(archived=True), "", 100)
    assert [(view.workspace, view.name) for view in everything] == sorted(
        (workspace, name) for workspace in ("a", "a-b", "b") for name in ("Zed", "apple", "apple_pie", "apple.2")
    )
    seen, after = [], ""
    while page := await library.models.page(ModelFilter(), after, 2):
        seen += page
        after = f"{page[-1].workspace}/{page[-1].name}"
    assert seen == [view for view in everything if not view.archived]
    assert len(await library.models.page(ModelFilter(label="fruit", workspaces=("a",)), "", 100)) == 3
    assert await library.models.page(ModelFilter(label="fru", workspaces=("a",)), "", 100) == []
    assert await library.models.page(ModelFilter(workspaces=()), "", 100) == []
    begins = await library.models.page(ModelFilter(prefix="apple.", workspaces=("a",)), "", 100)
    assert [view.name for view in begins] == ["apple.2"]


async def test_a_beginning_that_only_one_has_finds_it(ground: Ground) -> None:
    library = await ground.open()
    for name in ("net", "net-large", "other"):
        await library.models.create("default", NewModel(name=name), WHO)
    assert (await library.models.find("default", "net")).name == "net"  # itself, though another begins so
    assert (await library.models.find("default", "net-")).name == "net-large"
    assert (await library.models.find("default", "o")).name == "other"
    with pytest.raises(BadRequest, match="net, net-large"):
        await library.models.find("default", "ne")
    with pytest.raises(NotFound):
        await library.models.find("elsewhere", "net")


# -- versions and the checkpoints they hold -----------------------------------------------------------------------


async def test_a_version_holds_its_checkpoint_until_it_is_gone(ground: Ground) -> None:
    library = await ground.open()
    ground.checkpoints.add("c1", "c2", value=0.5)
    ground.checkpoints.add("c3", has_value=False)
    await library.models.create("default", NewModel(name="m"), WHO)
    first = await register(library, "m", "c1", name="one", labels=("l",), metrics={"f1": 0.9}, aliases=("best",))
    assert (first.number, first.metrics, first.aliases) == (1, {"validation": 0.5, "f1": 0.9}, ("best",))
    assert (first.experiment, first.trial, first.step) == ("e-1", "e-1.1", 10)
    second = await register(library, "m", "c1", metrics={"validation": 1.0})
    third = await register(library, "m", "c3")
    assert (second.metrics, third.metrics) == ({"validation": 1.0}, {})
    assert ground.checkpoints.held["c1"] == {"model:default/m/1", "model:default/m/2"}
    view = await library.models.find("default", "m")
    assert (view.versions, view.latest, view.aliases) == (3, 3, {"best": 1})
    await library.models.delete_version("default", "m", 3)
    await library.models.delete_version("default", "m", 1)
    assert (await library.models.find("default", "m")).aliases == {}
    assert ground.checkpoints.held == {"c1": {"model:default/m/2"}, "c2": set(), "c3": set()}
    assert (await register(library, "m", "c2")).number == 4  # a number is never given again
    await library.models.delete("default", "m")
    assert not any(ground.checkpoints.held.values())
    with pytest.raises(NotFound):
        await library.models.version("default", "m", "latest")


async def test_a_version_is_found_by_number_alias_and_as_the_latest(ground: Ground) -> None:
    library = await ground.open()
    ground.checkpoints.add("c")
    await library.models.create("default", NewModel(name="m"), WHO)
    with pytest.raises(NotFound, match="no version yet"):
        await library.models.version("default", "m", "latest")
    for _ in range(5):
        await register(library, "m", "c")
    await library.models.set_alias("default", "m", "prod", SetAlias(version=2), WHO)
    found = [(await library.models.version("default", "m", word)).number for word in ("4", "prod", "latest")]
    assert found == [4, 2, 5]
    for missing in ("6", "best", "0"):
        with pytest.raises(NotFound):
            await library.models.version("default", "m", missing)
    assert [view.number for view in await library.models.versions("default", "m", 0, 3)] == [5, 4, 3]
    assert [view.number for view in await library.models.versions("default", "m", 3, 3)] == [2, 1]
    changed = await library.models.change_version(
        "default", "m", "prod", VersionChange(notes="hello", metrics={"a": 1.0})
    )
    assert (changed.number, changed.notes, changed.metrics, changed.name) == (2, "hello", {"a": 1.0}, "")


@pytest.mark.parametrize("state", ["deleting", "partial", "deleted", "lost"])
async def test_a_checkpoint_without_its_files_is_no_version(ground: Ground, state: str) -> None:
    library = await ground.open()
    ground.checkpoints.add("c", state=state)
    await library.models.create("default", NewModel(name="m"), WHO)
    with pytest.raises(Conflict, match=state):
        await register(library, "m", "c")
    with pytest.raises(NotFound):
        await library.holds.look("nowhere")


async def test_an_archived_model_takes_nothing_new(ground: Ground) -> None:
    library = await ground.open()
    ground.checkpoints.add("c")
    await library.models.create("default", NewModel(name="m"), WHO)
    await library.models.change("default", "m", ModelChange(archived=True), WHO)
    with pytest.raises(Conflict, match="archived"):
        await register(library, "m", "c")
    with pytest.raises(NotFound):
        await register(library, "none", "c")
    assert ground.checkpoints.held["c"] == set()


async def test_a_hold_that_fails_leaves_no_version_and_is_let_go(ground: Ground) -> None:
    library = await ground.open()
    ground.checkpoints.add("c")
    await library.models.create("default", NewModel(name="m"), WHO)

    def lost(by: str, hold: bool) -> None:
        if hold:
            raise Unavailable("the answer was lost", object="c")

    ground.checkpoints.after = lost  # it was held, and nobody heard that
    with pytest.raises(Unavailable):
        await register(library, "m", "c", aliases=("best",))
    assert ground.checkpoints.held["c"] == {"model:default/m/1"}
    assert (await library.models.find("default", "m")).versions == 0
    assert await library.holds.settle() == 0
    assert ground.checkpoints.held["c"] == set()
    ground.checkpoints.after = None
    assert (await register(library, "m", "c")).number == 2


async def test_what_cannot_be_let_go_now_is_let_go_later(ground: Ground) -> None:
    library = await ground.open()
    ground.checkpoints.add("c", "d")
    await library.models.create("default", NewModel(name="m"), WHO)
    await register(library, "m", "c")
    await register(library, "m", "d")

    def away(by: str, hold: bool) -> None:
        raise Unavailable("not now")

    ground.checkpoints.before = away
    await library.models.delete("default", "m")  # the user need not wait for it
    assert ground.checkpoints.held["c"] == {"model:default/m/1"}
    assert await library.holds.settle() == 2
    # the same name, number and checkpoint come back before the word about the old ones was heard
    ground.checkpoints.before = None
    await library.models.create("default", NewModel(name="m"), WHO)
    assert (await register(library, "m", "c")).number == 1
    del ground.checkpoints.rows["d"]  # its experiment was deleted
    assert await library.holds.settle() == 0
    assert ground.checkpoints.held["c"] == {"model:default/m/1"}


async def test_a_registration_that_was_cut_short_is_undone_by_the_next_master(ground: Ground) -> None:
    library = await ground.open()
    ground.checkpoints.add("c")
    await library.models.create("default", NewModel(name="m"), WHO)
    reached, woken = asyncio.Event(), asyncio.Event()

    async def hang(by: str, hold: bool) -> None:
        reached.set()
        await woken.wait()

    ground.checkpoints.after = hang
    cut = asyncio.create_task(register(library, "m", "c"))
    await reached.wait()
    following = await ground.open()  # as after kill -9: the first one says nothing more
    assert (await following.models.find("default", "m")).versions == 0
    with pytest.raises(NotFound):
        await following.models.set_alias("default", "m", "best", SetAlias(version=1), WHO)
    ground.checkpoints.after = None
    assert await following.holds.settle() == 0
    assert ground.checkpoints.held["c"] == set()
    woken.set()  # the first one was only slow: it learns that it is too late
    with pytest.raises(NotFound):
        await cut
    assert (await following.models.find("default", "m")).versions == 0
    assert await following.holds.settle() == 0
    assert (await register(following, "m", "c")).number == 2
    assert ground.checkpoints.held["c"] == {"model:default/m/2"}


async def test_a_registration_whose_caller_left_is_undone(ground: Ground) -> None:
    library = await ground.open()
    ground.checkpoints.add("c")
    await library.models.create("default", NewModel(name="m"), WHO)
    reached = asyncio.Event()

    async def hang(by: str, hold: bool) -> None:
        reached.set()
        await asyncio.Event().wait()

    ground.checkpoints.after = hang
    left = asyncio.create_task(register(library, "m", "c"))
    await reached.wait()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    ground.checkpoints.after = None
    assert await library.holds.settle() == 0
    assert ground.checkpoints.held["c"] == set()
    assert (await library.models.find("default", "m")).versions == 0


async def test_registrations_at_once_get_different_numbers(ground: Ground) -> None:
    """Also by two masters, of which one is about to learn that it no longer leads."""
    both = [await ground.open(), await ground.open()]
    ground.checkpoints.add("c")
    await both[0].models.create("default", NewModel(name="m"), WHO)
    made = await asyncio.gather(*(register(both[at % 2], "m", "c", aliases=("newest",)) for at in range(20)))
    assert sorted(view.number for view in made) == list(range(1, 21))
    assert ground.checkpoints.held["c"] == {f"model:default/m/{number}" for number in range(1, 21)}
    view = await both[0].models.find("default", "m")
    assert view.versions == 20 and view.aliases["newest"] in range(1, 21)


async def test_an_alias_that_many_move_means_one_version_and_only_one_mover_wins(ground: Ground) -> None:
    both = [await ground.open(), await ground.open()]
    ground.checkpoints.add("c")
    await both[0].models.create("default", NewModel(name="m"), WHO)
    for _ in range(8):
        await register(both[0], "m", "c")

    async def move(at: int) -> int:
        try:
            asked = SetAlias(version=at + 1, instead_of=0)
            return (await both[at % 2].models.set_alias("default", "m", "best", asked, WHO)).version
        except Conflict:
            return 0

    won = [number for number in await asyncio.gather(*(move(at) for at in range(8))) if number]
    assert len(won) == 1
    assert (await both[1].models.find("default", "m")).aliases == {"best": won[0]}
    moved = await both[0].models.set_alias("default", "m", "best", SetAlias(version=8, instead_of=won[0]), WHO)
    assert (moved.before, moved.version) == (won[0], 8)
    with pytest.raises(NotFound):
        await both[0].models.set_alias("default", "m", "best", SetAlias(version=9), WHO)
    await both[0].models.delete_alias("default", "m", "best")
    with pytest.raises(NotFound):
        await both[0].models.delete_alias("default", "m", "best")


async def test_an_alias_never_means_a_version_that_is_gone(ground: Ground) -> None:
    both = [await ground.open(), await ground.open()]
    ground.checkpoints.add("c")
    await both[0].models.create("default", NewModel(name="m"), WHO)
    for number in range(1, 11):
        await register(both[0], "m", "c")
        await asyncio.gather(
            both[0].models.delete_version("default", "m", number),
            both[1].models.set_alias("default", "m", "best", SetAlias(version=number), WHO),
            return_exceptions=True,
        )
        assert (await both[0].models.find("default", "m")).aliases == {}, number


# -- templates and defaults ---------------------------------------------------------------------------------------


async def test_templates_and_defaults_are_layers(ground: Ground) -> None:
    library = await ground.open()
    assert await library.layers("default") == []
    near = await library.templates.put("default", "t", PutConfig(config={"searcher": {"a": 1}}, source="# hi"), WHO)
    assert near == await library.templates.get("default", "t")
    assert (await library.templates.get("default", "")).name == "t"
    await library.templates.put_default("cluster", PutConfig(config={"max_restarts": 1}), WHO)
    await library.templates.put_default("workspace:default", PutConfig(config={"max_restarts": 2}), WHO)
    layers = await library.layers("default", "t")
    assert layers == [{"searcher": {"a": 1}}, {"max_restarts": 2}, {"max_restarts": 1}]
    assert await library.layers("other") == [{"max_restarts": 1}]
    with pytest.raises(NotFound):
        await library.layers("other", "t")
    noticed = await library.templates.put("default", "t", PutConfig(config={"old": 3}), Who("bob", 9.0))
    assert [notice.path for notice in noticed.notices] == ["old"]
    assert (await library.layers("default", "t"))[0] == {"old": 3}
    with pytest.raises(BadRequest, match="no such setting"):
        await library.templates.put("default", "t", PutConfig(config={"nonsense": 3}), WHO)
    assert (await library.templates.get("default", "t")).config == {"old": 3}
    await library.templates.delete_default("cluster")
    await library.templates.delete("default", "t")
    assert await library.layers("default") == [{"max_restarts": 2}]
    with pytest.raises(NotFound):
        await library.templates.default("cluster")


async def test_templates_are_listed_page_by_page(ground: Ground) -> None:
    library = await ground.open()
    for workspace in ("a", "b"):
        for name in ("one", "three", "two"):
            await library.templates.put(workspace, name, PutConfig(config={}), WHO)
    first = await library.templates.page(None, "", 4)
    rest = await library.templates.page(None, f"{first[-1].workspace}/{first[-1].name}", 4)
    assert [f"{view.workspace}/{view.name}" for view in (*first, *rest)] == [
        "a/one", "a/three", "a/two", "b/one", "b/three", "b/two",
    ]  # fmt: skip
    assert [view.name for view in await library.templates.page(("b",), "", 4)] == ["one", "three", "two"]


# -- webhooks -----------------------------------------------------------------------------------------------------


def hook(**fields: Any) -> NewWebhook:
    plain = {"name": "w", "scope": "workspace:default", "url": "https://chat.example/secret-room?x=1"}
    return msgspec.convert({**plain, **fields}, NewWebhook)


async def test_a_webhook_keeps_its_secret_and_its_address_to_itself(ground: Ground) -> None:
    library = await ground.open()
    made, secret = await library.webhooks.create(hook(), WHO)
    assert len(secret) >= 32 and made.view.url == "https://chat.example"
    stored = await library._database.read(lambda connection: connection.execute(webhooks.select()).one())
    assert b"secret-room" not in repr(tuple(stored)).encode() and secret not in repr(tuple(stored))
    assert (await library.webhooks.find("workspace:default", "w")).opened(library.webhooks.keys).secret == secret
    with pytest.raises(Conflict):
        await library.webhooks.create(hook(), WHO)
    changed = await library.webhooks.change(
        "workspace:default", "w", WebhookChange(url="http://other:8080/x", enabled=False)
    )
    opened = changed.opened(library.webhooks.keys)
    assert (opened.url, opened.secret, changed.view.url) == ("http://other:8080/x", secret, "http://other:8080")
    assert await library.webhooks.of_scopes(("workspace:default",)) == []
    await library.webhooks.change("workspace:default", "w", WebhookChange(enabled=True, secret="another-one"))
    (only,) = await library.webhooks.of_scopes(("workspace:default", "cluster"))
    assert only.opened(library.webhooks.keys).secret == "another-one"


async def test_webhooks_are_sealed_anew_with_a_new_key(ground: Ground) -> None:
    other = "f" * 64
    library = await ground.open(KEY)
    _, secret = await library.webhooks.create(hook(), WHO)
    rotated = await ground.open(other, KEY)
    assert await rotated.webhooks.reseal() == 1
    assert await rotated.webhooks.reseal() == 0
    alone = await ground.open(other)
    assert (await alone.webhooks.find("workspace:default", "w")).opened(alone.webhooks.keys).secret == secret


async def test_the_log_of_a_webhook_keeps_the_last(ground: Ground) -> None:
    library = await ground.open()
    made, _ = await library.webhooks.create(hook(), WHO)
    twin, _ = await library.webhooks.create(hook(name="w2"), WHO)
    plain = Delivery(
        number=0, id="t", experiment="e", state="failed", status=200, error="", again=False, took_s=0.1, at=1.0
    )
    await library.webhooks.note(twin.id, msgspec.structs.replace(plain, again=True, error="no"))
    for at in range(KEPT + 5):
        await library.webhooks.note(made.id, msgspec.structs.replace(plain, id=f"t{at}"))
    found = await library.webhooks.deliveries(made.id, 0, 1000)
    assert [each.id for each in found] == [f"t{at}" for at in reversed(range(5, KEPT + 5))]
    assert len(await library.webhooks.deliveries(made.id, found[9].number, 1000)) == KEPT - 10
    assert len(await library.webhooks.deliveries(twin.id, 0, 10)) == 1
    assert await library.webhooks.settled("t") == frozenset()
    assert await library.webhooks.settled("t9") == {made.id}
    await library.webhooks.delete("workspace:default", "w")
    again, _ = await library.webhooks.create(hook(), WHO)
    assert await library.webhooks.deliveries(again.id, 0, 10) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "ftp://host/x"}, {"url": "https://"}, {"url": "https://me:pw@host/"}, {"url": "http://host:99999/"},
        {"url": "http://host/ x"}, {"url": "http://hös.t/"}, {"url": "http://host/\n"}, {"secret": "short"},
        {"triggers": []}, {"experiments": ["a,b"]}, {"experiments": [""]}, {"url": "http://host/#x"},
        {"url": "http://[::1"}, {"url": "http://host:0/"},
    ],
    ids=str,
)  # fmt: skip
async def test_what_is_no_webhook_is_refused(ground: Ground, fields: dict[str, Any]) -> None:
    library = await ground.open()
    with pytest.raises(BadRequest):
        await library.webhooks.create(hook(**fields), WHO)


async def test_tables_of_a_newer_release_are_left_alone(ground: Ground) -> None:
    library = await ground.open()
    newer = update(meta).where(meta.c.name == "version").values(value=b"99")
    await library._database.write(lambda connection: connection.execute(newer).rowcount)
    with pytest.raises(TooNew):
        await ground.open()


async def test_messages_wait_for_each_webhook_by_itself(ground: Ground) -> None:
    messages = (await ground.open()).messages
    assert await messages.put(["a", "b"], "t1", b"one", 10.0) == []
    assert await messages.put(["a"], "t1", b"one", 11.0) == []  # it waits already
    assert await messages.put(["a"], "t2", b"two", 12.0) == []
    (first,) = await messages.due("a", 11.0, 10)
    assert (first.token, first.payload, first.tries, first.at) == ("t1", b"one", 0, 10.0)
    assert [one.token for one in await messages.due("a", 12.0, 10)] == ["t1", "t2"]
    delivery = Delivery(
        number=0, id="t1", experiment="e-1", state="failed", status=500, error="e", again=True, took_s=0.1, at=12.0
    )
    await ground.opened[0].webhooks.note("a", delivery, tried(first, 99.0))
    assert [one.token for one in await messages.due("a", 98.0, 10)] == ["t2"]
    queues = await messages.queues()
    assert {hook: (one.count, one.next_at, one.tries) for hook, one in queues.items()} == {
        "a": (2, 12.0, 1),
        "b": (1, 10.0, 0),
    }
    (other,) = await messages.due("b", 10.0, 10)
    await ground.opened[0].webhooks.note("b", delivery, settled(other))
    assert await messages.expire("a", 12.0) == 1
    assert list(await messages.queues()) == ["a"] and await ground.opened[0].webhooks.settled("t1") == frozenset()


async def test_tables_without_queues_are_brought_up(ground: Ground) -> None:
    library = await ground.open()

    def older(connection: Any) -> None:
        tables.messages.drop(connection)
        connection.execute(update(meta).where(meta.c.name == "version").values(value=b"1"))

    await library._database.write(older)
    assert await (await ground.open()).messages.put(["a"], "t1", b"one", 10.0) == []


async def test_what_an_experiment_begins_from_is_held_from_before_it_opens_until_it_is_over(ground: Ground) -> None:
    library = await ground.open()
    ground.checkpoints.add("c1")
    held = ground.checkpoints.held["c1"]

    async def opened() -> str:
        assert held == {"experiment:e-2"}
        return "e-2"

    assert await library.holding("c1", "experiment:e-2", opened) == "e-2"
    ground.checkpoints.needed = {("c1", "experiment:e-2")}
    await library.holds.release("c1", "experiment:e-2")  # it was continued meanwhile
    assert await library.holds.settle() == 0 and held == {"experiment:e-2"}
    ground.checkpoints.needed = set()
    await library.holds.release("c1", "experiment:e-2")
    await library.holds.release("gone", "experiment:e-2")
    assert held == set()


@pytest.mark.parametrize("came_to_be", [True, False])
async def test_who_dies_while_it_opens_holds_what_came_to_be_needs(ground: Ground, came_to_be: bool) -> None:
    library = await ground.open()
    ground.checkpoints.add("c1")

    async def dies() -> None:
        if came_to_be:
            ground.checkpoints.needed = {("c1", "experiment:e-2")}
        raise Unavailable("the master is killed", object="master")

    with pytest.raises(Unavailable):
        await library.holding("c1", "experiment:e-2", dies)
    following = await ground.open()
    assert await following.holds.settle() == 0
    assert ground.checkpoints.held["c1"] == ({"experiment:e-2"} if came_to_be else set())


@pytest.mark.parametrize("dies", [True, False])
async def test_of_what_an_experiment_may_need_it_keeps_what_it_does(ground: Ground, dies: bool) -> None:
    """An answer of a search may be refused in part, or be known already."""
    library = await ground.open()
    held = ground.checkpoints.held
    for name in ("c1", "c2"):
        ground.checkpoints.add(name)

    async def answered() -> None:
        assert held["c1"] == held["c2"] == {"experiment:e-2"}
        ground.checkpoints.needed = {("c2", "experiment:e-2")}
        if dies:
            raise Unavailable("the master is killed", object="master")

    if dies:
        with pytest.raises(Unavailable):
            await library.needing(("c1", "c2"), "experiment:e-2", answered)
        library = await ground.open()
    else:
        await library.needing(("c1", "c2"), "experiment:e-2", answered)
        assert (held["c1"], held["c2"]) == (set(), {"experiment:e-2"})
    assert await library.holds.settle() == 0
    assert (held["c1"], held["c2"]) == (set(), {"experiment:e-2"})
