"""Users, groups, workspaces, roles over HTTP: who sees what, and who is refused how."""

from typing import Any

from access_house import ROUTES, House
from litestar.handlers import HTTPRouteHandler

from clutch.wire.access import Needs


async def test_a_workspace_is_seen_by_those_with_a_role_in_it(house: House) -> None:
    admin, ada = await house.admin(), await house.user("ada")
    made = await ada.post("/workspaces", name="vision", description="cameras")
    assert made == {"name": "vision", "description": "cameras", "archived": False, "role": "admin"}
    bob = await house.user("bob", default="viewer")
    assert [w["name"] for w in await admin.items("/workspaces")] == ["default", "vision"]
    assert [(w["name"], w["role"]) for w in await ada.items("/workspaces")] == [("vision", "admin")]
    assert [(w["name"], w["role"]) for w in await bob.items("/workspaces")] == [("default", "viewer")]
    assert await bob.status("GET", "/workspaces/vision") == 404, "a foreign one does not exist"
    assert await bob.status("GET", "/workspaces/nowhere") == 404
    assert await bob.status("PATCH", "/workspaces/default", {"archived": True}) == 403
    await ada.put("/roles", subject="user:bob", role="editor", scope="workspace:vision")
    assert (await bob.get("/workspaces/vision"))["role"] == "editor"
    assert await bob.status("PUT", "/roles", _grant("user:bob", "admin", "workspace:vision")) == 403
    assert await ada.status("PUT", "/roles", _grant("user:ada", "viewer", "cluster")) == 403
    assert await ada.status("PUT", "/roles", _grant("user:ada", "viewer", "workspace:default")) == 404
    await ada.delete("/roles", subject="user:bob", over="workspace:vision")
    assert await bob.status("GET", "/workspaces/vision") == 404, "at once"
    assert await ada.status("POST", "/workspaces", {"name": "vision"}) == 409
    await ada.patch("/workspaces/vision", archived=True)
    assert (await ada.get("/workspaces/vision"))["archived"]


def _grant(subject: str, role: str, scope: str) -> dict[str, str]:
    return {"subject": subject, "role": role, "scope": scope}


async def test_projects_of_a_workspace(house: House) -> None:
    editor = await house.user("ed", default="editor")
    viewer = await house.user("vi", default="viewer")
    stranger = await house.user("st")
    made = await editor.post("/workspaces/default/projects", name="maps", description="x")
    assert made["workspace"] == "default"
    assert await editor.status("POST", "/workspaces/default/projects", {"name": "maps"}) == 409
    assert await viewer.status("POST", "/workspaces/default/projects", {"name": "b"}) == 403
    assert await stranger.status("POST", "/workspaces/default/projects", {"name": "b"}) == 404
    assert [p["name"] for p in await viewer.items("/workspaces/default/projects")] == ["maps"]
    assert await stranger.status("GET", "/workspaces/default/projects/maps") == 404
    await editor.patch("/workspaces/default/projects/maps", archived=True)
    assert (await viewer.get("/workspaces/default/projects/maps"))["archived"]
    admin = await house.admin()
    await admin.patch("/workspaces/default", archived=True)
    assert await editor.status("POST", "/workspaces/default/projects", {"name": "c"}) == 409


async def test_users_are_made_by_administrators_and_change_themselves_a_little(house: House) -> None:
    admin = await house.admin()
    made = await admin.post("/users", name="ada", password="correct horse", uid=1000, gid=100)
    assert made["uid"] == 1000 and "password" not in str(made)
    ada = await house.token("ada")
    assert await ada.status("POST", "/users", {"name": "eve"}) == 403
    assert await admin.status("POST", "/users", {"name": "ada"}) == 409
    assert [u["name"] for u in await ada.items("/users")] == ["ada", "admin"]
    page = await ada.get("/users", limit=1)
    assert [u["name"] for u in page["items"]] == ["ada"] and page["next"] == "ada"
    assert [u["name"] for u in await ada.items("/users", after=page["next"])] == ["admin"]
    assert (await ada.patch("/users/ada", display_name="Ada L."))["display_name"] == "Ada L."
    assert await ada.status("PATCH", "/users/admin", {"display_name": "x"}) == 403
    assert await ada.status("PATCH", "/users/ada", {"uid": 1}) == 403
    assert await ada.status("PATCH", "/users/ada", {"active": True}) == 403
    assert await admin.status("PATCH", "/users/ada", {"uid": 0}) == 400, "nobody runs as root"
    assert await admin.status("PATCH", "/users/nobody", {"uid": 5}) == 404
    assert (await admin.patch("/users/ada", unmap=True))["uid"] is None
    await admin.patch("/users/ada", active=False)
    assert await ada.status("GET", "/me") == 401, "at once"
    assert await admin.status("PATCH", "/users/admin", {"active": False}) == 409, "somebody must be left"


async def test_groups_carry_roles(house: House) -> None:
    admin, ada = await house.admin(), await house.user("ada")
    await admin.post("/groups", name="lab", members=["ada"])
    await admin.put("/roles", subject="group:lab", role="viewer", scope="workspace:default")
    assert (await ada.get("/me"))["roles"] == {"workspace:default": "viewer"}
    assert await ada.status("DELETE", "/groups/lab") == 403
    assert (await admin.put("/groups/lab/members/admin"))["members"] == ["ada", "admin"]
    await admin.delete("/groups/lab/members/ada")
    assert (await ada.get("/me"))["roles"] == {}, "at once"
    assert (await admin.put("/groups/lab/members", members=["ada"]))["members"] == ["ada"]
    assert (await ada.get("/users/ada"))["groups"] == ["lab"]
    assert [g["name"] for g in await ada.items("/groups")] == ["lab"]
    assert await admin.status("PUT", "/groups/lab/members", {"members": ["nobody"]}) == 400
    await admin.delete("/groups/lab")
    assert await admin.status("GET", "/groups/lab") == 404
    assert (await ada.get("/me"))["roles"] == {}


async def test_roles_are_listed_as_far_as_one_may_see(house: House) -> None:
    admin, ada = await house.admin(), await house.user("ada", default="viewer")
    everything = await admin.items("/roles")
    assert {(g["subject"], g["scope"]) for g in everything} == {
        ("user:admin", "cluster"),
        ("user:admin", "workspace:default"),
        ("user:ada", "workspace:default"),
    }
    assert {g["scope"] for g in await ada.items("/roles")} == {"workspace:default"}
    assert await ada.status("GET", "/roles", over="cluster") == 403
    assert await ada.status("GET", "/roles", over="workspace:nowhere") == 404
    assert [g["role"] for g in await admin.items("/roles", subject="user:ada")] == ["viewer"]
    first = await admin.get("/roles", limit=2)
    rest = await admin.items("/roles", after=first["next"])
    assert sorted(map(str, first["items"] + rest)) == sorted(map(str, everything))
    assert await admin.status("DELETE", "/roles", subject="user:admin", over="cluster") == 409


NEEDY = [
    (sorted(route.paths)[0], method, route.opt["needs"])
    for route in ROUTES
    if isinstance(route, HTTPRouteHandler)
    for method in sorted(route.http_methods)
]


def _path(path: str) -> str:
    return "/".join("default" if part.startswith("{") else part for part in path.split("/"))


async def test_no_route_is_open(house: House) -> None:
    """Without a token, with a wrong one, and with one of the wrong kind of caller."""
    agent = await house.access.agent_token("n1")
    assert len(NEEDY) > 30
    for path, method, needs in NEEDY:
        body: Any = {} if method in ("POST", "PUT", "PATCH") else None
        if needs is Needs.PUBLIC:
            assert path.endswith("/login")
            continue
        for token, status in (("", 401), ("clutch_p_nonsense", 401), (agent, 403)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            answer = await house.http.request(method, _path(path), headers=headers, json=body)
            assert answer.status_code == status, f"{method} {path}: {answer.text}"


NONSENSE: list[tuple[str, str, Any]] = [
    ("POST", "/users", {"name": "a b"}),
    ("POST", "/users", {"name": "a\x00"}),
    ("POST", "/users", {"name": "x", "display_name": "\x00"}),
    ("POST", "/users", {"name": "x", "uid": 2**70}),
    ("POST", "/users", {"name": "x", "password": "short"}),
    ("POST", "/users", {"name": "x", "unknown": 1}),
    ("POST", "/users", {"name": 5}),
    ("POST", "/users", []),
    ("POST", "/groups", {"name": "g", "members": ["\x00"]}),
    ("POST", "/workspaces", {"name": ".."}),
    ("PUT", "/roles", {"subject": "user:admin", "role": "god", "scope": "cluster"}),
    ("PUT", "/roles", {"subject": "admin", "role": "admin", "scope": "cluster"}),
    ("PUT", "/roles", {"subject": "user:admin", "role": "admin", "scope": "galaxy"}),
    ("POST", "/tokens", {"expires_in_s": -1}),
    ("POST", "/tokens", {"kind": "agent"}),
    ("POST", "/tokens", {"workspace": "nowhere"}),
    ("PUT", "/workspaces/default/secrets", {"name": "s", "value": "a\x00b"}),
    ("PUT", "/quotas", {"scope": "user:ada", "slots": 2**70}),
    ("PUT", "/quotas", {"scope": "user:ada", "slots": -1}),
    ("PUT", "/quotas", {"scope": "ada", "slots": 1}),
    ("GET", "/users?limit=0", None),
    ("GET", "/users?limit=1001", None),
    ("GET", "/users?limit=x", None),
    ("GET", "/users?after=%00", None),
    ("GET", "/users/%00", None),
    ("GET", "/users/%ff", None),
    ("GET", "/tokens?after=nothing", None),
    ("GET", "/tokens?kind=x", None),
    ("GET", "/audit?after=99999999999999999999", None),
    ("GET", "/audit?after=-1", None),
    ("GET", "/audit?who=%00", None),
    ("GET", "/audit?since=nan", None),
    ("GET", "/audit?since=1e300", None),
    ("GET", "/usage?by=colour", None),
    ("GET", "/usage?since=2025-13-01", None),
    ("GET", "/usage?since=%D9%A2025-01-01", None),
    ("GET", "/usage?after=x", None),
    ("GET", "/usage?user=%00", None),
    ("GET", "/usage.csv?until=yesterday", None),
]


async def test_nonsense_is_the_callers_error(house: House) -> None:
    admin = await house.admin()
    for method, path, body in NONSENSE:
        answer = await admin.ask(method, path, body)
        assert answer.status_code in (400, 404), f"{method} {path} {body}: {answer.status_code} {answer.text}"
        assert answer.json()["code"] in ("bad_request", "not_found")
