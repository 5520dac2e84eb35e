"""Secrets that are nowhere in clear, the audit, quotas, usage, and a member's token: over HTTP and real files."""

import csv
import io
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from access_house import Client, House, open_house

from clutch.master.kits import Kits
from clutch.testing.postgres import fresh_database
from clutch.wire import events as e
from clutch.wire.ids import MemberId, NodeId, PoolName, TaskId
from clutch.wire.programs import KitRequest, Program, SecretUse
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, RoleSpec, TaskSpec

PLAIN = "hunter2-Zq8vXw31"
PASSWORD = "correct-horse-Kd93"
MEMBER = MemberId(TaskId("t"), "main", 0)


async def _run(house: House, slots: int = 2, **more: Any) -> None:
    """A task that is placed on a node."""
    await house.add_node()
    program = Program(argv=("train",), secrets=(SecretUse("wandb", "WANDB_API_KEY"),))
    role = RoleSpec("main", Members(1, Resources(slots=slots)))
    spec = TaskSpec(
        kind="command", name="t", pool=PoolName("default"), roles=(role,), owner="ada", project="maps",
        payload=msgspec.msgpack.encode(program), **more,
    )  # fmt: skip
    await house.loop.ask(e.Submit(cause="api:ada", task=TaskId("t"), spec=spec))
    assert MEMBER in house.loop.state.members


async def _use_secrets(house: House) -> tuple[str, list[str]]:
    """Everything that has to do with a secret; the member's token, and all that was answered on the way."""
    admin, ada = await house.admin(), await house.user("ada", default="editor")
    await admin.post("/users", name="bob", password=PASSWORD)
    viewer = await house.user("vi", default="viewer")
    said = [
        await ada.ask("PUT", "/workspaces/default/secrets", {"name": "wandb", "value": PLAIN}),
        await ada.ask("PUT", "/workspaces/default/secrets", {"name": "bad name", "value": PLAIN}),
        await ada.ask("PUT", "/workspaces/default/secrets", {"name": "wandb", "value": PLAIN, "extra": PLAIN}),
        await viewer.ask("PUT", "/workspaces/default/secrets", {"name": "wandb", "value": PLAIN}),
        await ada.ask("PUT", "/workspaces/nowhere/secrets", {"name": "wandb", "value": PLAIN}),
        await viewer.ask("GET", "/workspaces/default/secrets"),
        await admin.ask("GET", "/audit"),
        await admin.ask("GET", "/users"),
        await house.http.post("/api/v1/login", json={"user": "bob", "password": PASSWORD}),
        await house.http.post("/api/v1/login", json={"user": "bob", "password": PASSWORD, "x": 1}),
        await admin.ask("POST", "/master-key"),
    ]
    assert [answer.status_code for answer in said] == [200, 400, 400, 403, 404, 200, 200, 200, 200, 400, 201]
    await _run(house)
    fence = house.loop.state.members[MEMBER].fence(house.loop.state.generation)
    kits = Kits(house.access, house.loop.settled, lambda: ("http://master",))
    kit = await kits.kit(NodeId("n"), KitRequest(MEMBER, fence))
    assert kit.environment["WANDB_API_KEY"] == PLAIN, "a new master key has not lost it"
    return kit.environment["CLUTCH_TOKEN"], [answer.text + str(answer.headers) for answer in said]


def _files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


async def test_a_secret_is_in_no_answer_and_in_no_file(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        token, said = await _use_secrets(house)
        open_files = _files(tmp_path)
    closed_files = _files(tmp_path)
    assert b"wandb" in closed_files and b"put_secret" in closed_files, "the files are the right ones"
    for plain in (PLAIN, PASSWORD, token):
        assert not any(plain in text for text in said)
        assert plain.encode() not in open_files and plain.encode() not in closed_files


async def test_nor_in_postgresql(tmp_path: Path, postgres_address: str) -> None:
    import asyncpg

    async with fresh_database(postgres_address, f"secrets_{uuid.uuid4().hex}") as database:
        async with open_house(tmp_path, database) as house:
            token, said = await _use_secrets(house)
        connection = await asyncpg.connect(database)
        kept = b""
        names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (name,) in names:
            for row in await connection.fetch(f'SELECT * FROM "{name}"'):
                kept += b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in row.values())
        await connection.close()
    assert b"wandb" in kept and b"put_secret" in kept
    for plain in (PLAIN, PASSWORD, token):
        assert not any(plain in text for text in said) and plain.encode() not in kept


async def test_secrets_are_put_named_and_deleted(house: House) -> None:
    editor, viewer = await house.user("ed", default="editor"), await house.user("vi", default="viewer")
    stranger = await house.user("st")
    for name in ("b", "a"):
        await editor.put("/workspaces/default/secrets", name=name, value="x")
    listed = await viewer.items("/workspaces/default/secrets")
    assert [(s["name"], s["created_by"]) for s in listed] == [("a", "ed"), ("b", "ed")]
    assert all("value" not in secret for secret in listed)
    assert await viewer.status("DELETE", "/workspaces/default/secrets/a") == 403
    assert await stranger.status("DELETE", "/workspaces/default/secrets/a") == 404
    await editor.delete("/workspaces/default/secrets/a")
    assert await editor.status("DELETE", "/workspaces/default/secrets/a") == 404
    assert await editor.status("POST", "/master-key") == 403


async def test_every_change_is_on_record_with_its_end(house: House) -> None:
    admin, ada = await house.admin(), await house.user("ada", default="viewer")
    await ada.status("POST", "/users", {"name": "eve"})
    await ada.status("PATCH", "/workspaces/default", {"archived": True})
    await ada.post("/workspaces", name="vision")
    await ada.get("/workspaces")
    await house.http.post("/api/v1/login", json={"user": "ada", "password": "wrong horse"})
    entries = await admin.items("/audit", who="user:ada")
    assert [(x["action"], x["status"]) for x in entries] == [
        ("create_workspace", 201),
        ("change_workspace", 403),
        ("create_user", 403),
    ]
    assert entries[0]["object"] == "/api/v1/workspaces" and "role admin" in entries[1]["detail"]
    (failed,) = await admin.items("/audit", action="log_in")
    assert failed["status"] == 401
    everything = await admin.items("/audit")
    paged: list[Any] = []
    after = ""
    while True:
        page = await admin.get("/audit", limit=2, after=after)
        paged += page["items"]
        after = page["next"]
        if not after:
            break
    assert paged == everything and len(paged) > 5
    assert await admin.items("/audit", until=1.0) == []
    assert len(await admin.items("/audit", since=house.clock.now())) == len(everything)
    assert await ada.status("GET", "/audit") == 403


async def test_quotas_are_set_seen_and_removed(house: House) -> None:
    admin, ada, bob = await house.admin(), await house.user("ada", default="viewer"), await house.user("bob")
    await admin.put("/quotas", scope="user:ada", slots=3)
    await admin.put("/quotas", scope="workspace:default", slots=8)
    assert house.loop.state.quotas["user:ada"].slots == 3
    assert [q["scope"] for q in (await ada.get("/quotas"))["items"]] == ["user:ada", "workspace:default"]
    assert (await bob.get("/quotas"))["items"] == []
    assert await ada.status("PUT", "/quotas", {"scope": "user:ada", "slots": 99}) == 403
    await admin.delete("/quotas/user:ada")
    assert [q["scope"] for q in (await admin.get("/quotas"))["items"]] == ["workspace:default"]
    assert await admin.status("DELETE", "/quotas/user:ada") == 404
    assert await admin.status("DELETE", "/quotas/ada") == 400


async def test_usage_by_day_and_for_spreadsheets(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        await house.user("ada", default="viewer")
        await _run(house, slots=2)
        house.clock.time += 100.0
        await house.usage.flush()
        began = house.clock.time
    async with open_house(tmp_path) as house:  # a new master goes on where the last one was
        house.clock.time = began + 86400.0
        for _ in range(2):
            await house.usage.flush()
        admin, ada = await house.admin(), await house.token("ada")
        stranger = await house.user("st")
        rows = await ada.items("/usage")
        assert [(r["day"], r["user"], r["project"], r["pool"], r["tasks"]) for r in rows] == [
            ("1970-01-12", "ada", "maps", "default", 1),
            ("1970-01-13", "ada", "maps", "default", 1),
        ]
        assert sum(r["slot_seconds_held"] for r in rows) == pytest.approx(2 * (100.0 + 86400.0))
        (total,) = await admin.items("/usage", by="user")
        assert (total["user"], total["day"], total["tasks"]) == ("ada", "", 2)
        assert await stranger.items("/usage") == []
        assert await stranger.status("GET", "/usage", workspace="default") == 404
        assert len(await ada.items("/usage", since="1970-01-13", workspace="default", pool="default")) == 1
        first = await ada.get("/usage", limit=1)
        assert await ada.items("/usage", after=first["next"]) == rows[1:]
        text = (await admin.ask("GET", "/usage.csv")).text
        table = list(csv.DictReader(io.StringIO(text)))
        assert [float(r["slot_seconds_held"]) for r in table] == [r["slot_seconds_held"] for r in rows]
        assert (await stranger.ask("GET", "/usage.csv")).text.count("\n") == 1, "no more than its first line"


async def test_a_members_token_is_401_when_its_allocation_has_ended(house: House) -> None:
    await house.user("ada", default="editor")
    await _run(house)
    fence = house.loop.state.members[MEMBER].fence(house.loop.state.generation)
    member = Client(house.http, house.access.task_token(MEMBER, fence))
    assert await member.status("GET", "/me") == 403, "known, and of the wrong kind for this"
    await house.loop.ask(e.Kill(cause="api:ada", task=TaskId("t")))
    await house.add_node()  # its agent reports that nothing is there
    assert not house.loop.state.allocations
    assert await member.status("GET", "/me") == 401
