"""The library over HTTP: what each role may do, and how it says no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from library_house import House, Receiver, open_house

MODELS = "/workspaces/default/models"
TEMPLATES = "/workspaces/default/templates"
HOOK: dict[str, Any] = {"name": "w", "scope": "workspace:default", "url": "https://chat.example/room/secret"}

WRITES: list[tuple[str, str, Any]] = [
    ("POST", MODELS, {"name": "x"}),
    ("PATCH", f"{MODELS}/m", {"archived": True}),
    ("DELETE", f"{MODELS}/m", None),
    ("POST", f"{MODELS}/m/versions", {"checkpoint": "c"}),
    ("PATCH", f"{MODELS}/m/versions/1", {"notes": "x"}),
    ("DELETE", f"{MODELS}/m/versions/1", None),
    ("PUT", f"{MODELS}/m/aliases/best", {"version": 1}),
    ("DELETE", f"{MODELS}/m/aliases/prod", None),
    ("PUT", f"{TEMPLATES}/t", {"config": {}}),
    ("DELETE", f"{TEMPLATES}/t", None),
    ("POST", "/webhooks", HOOK | {"name": "other"}),
    ("PATCH", "/webhooks/workspace:default/w", {"enabled": False}),
    ("POST", "/webhooks/workspace:default/w/test", None),
    ("DELETE", "/webhooks/workspace:default/w", None),
]
ADMIN_WRITES: list[tuple[str, str, Any]] = [
    ("PUT", "/workspaces/default/defaults", {"config": {}}),
    ("DELETE", "/workspaces/default/defaults", None),
]
CLUSTER_WRITES: list[tuple[str, str, Any]] = [
    ("PUT", "/defaults", {"config": {}}),
    ("DELETE", "/defaults", None),
    ("POST", "/webhooks", HOOK | {"scope": "cluster", "name": "other"}),
    ("PATCH", "/webhooks/cluster/c", {"enabled": False}),
    ("POST", "/webhooks/cluster/c/test", None),
    ("DELETE", "/webhooks/cluster/c", None),
]
READS = [
    f"{MODELS}/m", f"{MODELS}/m/versions", f"{MODELS}/m/versions/latest", f"{MODELS}/m/versions/prod",
    f"{TEMPLATES}/t", "/workspaces/default/defaults", "/webhooks/workspace:default/w",
    "/webhooks/workspace:default/w/deliveries",
]  # fmt: skip


async def furnish(house: House) -> None:
    """One of each thing."""
    admin = await house.admin()
    house.checkpoints.add("c")
    await admin.good("POST", MODELS, {"name": "m"})
    await admin.good("POST", f"{MODELS}/m/versions", {"checkpoint": "c", "aliases": ["prod"]})
    await admin.good("PUT", f"{TEMPLATES}/t", {"config": {"max_restarts": 3}})
    await admin.good("PUT", "/workspaces/default/defaults", {"config": {"max_restarts": 2}})
    await admin.good("PUT", "/defaults", {"config": {"max_restarts": 1}})
    await admin.good("POST", "/webhooks", HOOK)
    await admin.good("POST", "/webhooks", HOOK | {"scope": "cluster", "name": "c"})


async def test_a_viewer_reads_and_changes_nothing(house: House) -> None:
    await furnish(house)
    viewer = await house.user("vera", default="viewer")
    for path in READS:
        await viewer.good("GET", path)
    for method, path, body in (*WRITES, *ADMIN_WRITES, *CLUSTER_WRITES):
        assert await viewer.refused(method, path, body) == 403, (method, path)
    assert len(await viewer.items("/models")) == len(await viewer.items("/templates")) == 1


async def test_a_stranger_finds_nothing(house: House) -> None:
    await furnish(house)
    admin = await house.admin()
    await admin.good("POST", "/workspaces", {"name": "elsewhere"})
    stranger = await house.user("sam", elsewhere="editor")
    for path in READS:
        assert await stranger.refused("GET", path) == 404, path
    for method, path, body in (*WRITES, *ADMIN_WRITES):
        assert await stranger.refused(method, path, body) == 404, (method, path)
    assert (
        await stranger.items("/models") == await stranger.items("/templates") == await stranger.items("/webhooks") == []
    )
    assert await stranger.items("/models", workspace="default") == []
    assert await stranger.refused("GET", "/webhooks", over="cluster") == 403
    assert await stranger.refused("GET", "/webhooks", over="workspace:default") == 404
    assert (await stranger.good("GET", "/defaults"))["config"] == {"max_restarts": 1}  # it lies beneath their own too
    # a checkpoint of a workspace that one may not see cannot be taken into one's own
    await stranger.good("POST", "/workspaces/elsewhere/models", {"name": "mine"})
    assert await stranger.refused("POST", "/workspaces/elsewhere/models/mine/versions", {"checkpoint": "c"}) == 404
    assert house.checkpoints.held["c"] == {"model:default/m/1"}


async def test_an_editor_changes_what_is_in_the_workspace_and_not_what_is_beneath(
    house: House, receiver: Receiver
) -> None:
    await furnish(house)
    editor = await house.user("eva", default="editor")
    await editor.good("PATCH", "/webhooks/workspace:default/w", {"url": receiver.url})
    for method, path, body in (*ADMIN_WRITES, *CLUSTER_WRITES):
        assert await editor.refused(method, path, body) == 403, (method, path)
    gone = ["aliases", "versions", "models", "templates", "webhooks"]
    order = sorted(
        WRITES,
        key=lambda write: (  # archived when nothing new comes, and deleted from the inside out
            write[2] == {"archived": True},
            next(at for at, word in enumerate(gone) if word in write[1]) + 1 if write[0] == "DELETE" else 0,
        ),
    )
    order.sort(key=lambda write: write[0] == "DELETE")
    for method, path, body in order:
        await editor.good(method, path, body)
    assert len(receiver.got) == 1
    assert not house.checkpoints.held["c"]


async def test_an_administrator_of_the_workspace_is_not_one_of_the_cluster(house: House) -> None:
    await furnish(house)
    chief = await house.user("chief", default="admin")
    for method, path, body in ADMIN_WRITES:
        await chief.good(method, path, body)
    for method, path, body in CLUSTER_WRITES:
        assert await chief.refused(method, path, body) == 403, (method, path)


async def test_an_address_is_whole_only_for_those_who_may_change_it(house: House) -> None:
    await furnish(house)
    viewer, editor = await house.user("vera", default="viewer"), await house.user("eva", default="editor")
    watcher = await house.user("walt", cluster="viewer")
    for user, shown in ((viewer, "https://chat.example"), (editor, HOOK["url"])):
        assert (await user.good("GET", "/webhooks/workspace:default/w"))["url"] == shown
        assert [view["url"] for view in await user.items("/webhooks")] == [shown]
    assert [view["url"] for view in await watcher.items("/webhooks")] == ["https://chat.example"] * 2
    answers = [await (await house.admin()).ask("GET", path) for path in ("/webhooks", "/webhooks/cluster/c")]
    assert not any('secret"' in answer.text.replace('room/secret"', "") for answer in answers)


async def test_lists_go_page_by_page(house: House) -> None:
    admin = await house.admin()
    house.checkpoints.add("c")
    for number in range(5):
        await admin.good("POST", MODELS, {"name": f"m{number}", "labels": ["odd"] if number % 2 else []})
        await admin.good("PUT", f"{TEMPLATES}/t{number}", {"config": {}})
        await admin.good("POST", "/webhooks", HOOK | {"name": f"w{number}"})
        await admin.good("POST", f"{MODELS}/m0/versions", {"checkpoint": "c"})
    for path, field in (
        ("/models", "name"), ("/templates", "name"), ("/webhooks", "name"), (f"{MODELS}/m0/versions", "number"),
    ):  # fmt: skip
        seen, after = [], ""
        while True:
            page = await admin.good("GET", path, limit=2, after=after)
            seen += [view[field] for view in page["items"]]
            after = page["next"]
            if not after:
                break
        assert len(seen) == len(set(seen)) == 5, path
    assert [view["name"] for view in await admin.items("/models", label="odd")] == ["m1", "m3"]
    assert await admin.refused("GET", f"{MODELS}/m0/versions", after="x") == 400


async def test_what_is_wrong_is_said_with_its_object(house: House) -> None:
    await furnish(house)
    admin = await house.admin()
    for method, path, body, status in (
        ("POST", MODELS, {"name": "m"}, 409),
        ("POST", MODELS, {"name": "a/b"}, 400),
        ("POST", MODELS, {"name": "x", "labels": ["a,b"]}, 400),
        ("POST", MODELS, {"name": "x", "metadata": {"big": "x" * 300_000}}, 413),
        ("POST", MODELS, {"name": "x", "nonsense": 1}, 400),
        ("POST", "/workspaces/nowhere/models", {"name": "m"}, 404),
        ("POST", f"{MODELS}/m/versions", {"checkpoint": "nope"}, 404),
        ("POST", f"{MODELS}/m/versions", {"checkpoint": "c", "aliases": ["latest"]}, 400),
        ("POST", f"{MODELS}/m/versions", {"checkpoint": "c", "aliases": ["7"]}, 400),
        ("PUT", f"{MODELS}/m/aliases/12", {"version": 1}, 400),
        ("PUT", f"{MODELS}/m/aliases/best", {"version": 9}, 404),
        ("PUT", f"{MODELS}/m/aliases/best", {"version": 10**30}, 400),
        ("PUT", f"{MODELS}/m/aliases/best", {"version": 2**63}, 400),
        ("GET", f"{MODELS}/m/versions/{10**17}", None, 404),
        ("GET", f"{MODELS}/m/versions/{10**19}", None, 404),
        ("PUT", f"{MODELS}/m/aliases/prod", {"version": 1, "instead_of": 0}, 409),
        ("DELETE", f"{MODELS}/m/versions/prod", None, 400),
        ("PUT", f"{TEMPLATES}/t", {"config": {"unknown": 1}}, 400),
        ("PUT", f"{TEMPLATES}/t", {"config": [1]}, 400),
        ("POST", "/webhooks", HOOK | {"name": "y", "url": "http://169.254.169.254/latest/meta-data"}, 403),
        ("POST", "/webhooks", HOOK | {"name": "y", "scope": "galaxy"}, 400),
        ("POST", "/webhooks", HOOK | {"name": "y", "triggers": ["exploded"]}, 400),
        ("GET", "/webhooks/workspace:default/none", None, 404),
        ("GET", f"{MODELS}/m/versions/-1", None, 400),
    ):
        assert await admin.refused(method, path, body) == status, (method, path, body)
    await admin.good("PATCH", "/workspaces/default", {"archived": True})
    assert await admin.refused("POST", MODELS, {"name": "late"}) == 409


async def test_the_next_master_finds_everything(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        await furnish(house)
    async with open_house(tmp_path) as house:
        admin = await house.admin()
        assert (await admin.good("GET", f"{MODELS}/m"))["aliases"] == {"prod": 1}
        assert (await admin.good("GET", "/webhooks/cluster/c"))["url"] == HOOK["url"]
        assert await house.library.layers("default", "t") == [{"max_restarts": n} for n in (3, 2, 1)]
    assert (tmp_path / "library.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("path", ["/models", "/templates", "/webhooks", f"{MODELS}/m", "/defaults"])
async def test_nobody_reads_without_a_token(house: House, path: str) -> None:
    assert (await house.http.get(f"/api/v1{path}")).status_code == 401
