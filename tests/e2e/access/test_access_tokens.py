"""Coming in, tokens with limits, machines that enrol: over HTTP, and over a restart."""

import asyncio
from pathlib import Path
from typing import Any

from access_house import Client, House, open_house

from clutch.master.access.throttle import FREE_FOR_NAME


async def _log_in(house: House, **how: str) -> Any:
    return await house.http.post("/api/v1/login", json=how)


async def test_a_password_opens_a_session(house: House) -> None:
    admin = await house.admin()
    await admin.post("/users", name="ada", password="correct horse")
    answer = await _log_in(house, user="ada", password="correct horse")
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    ada = Client(house.http, answer.json()["token"])
    assert (await ada.get("/me"))["name"] == "ada"
    assert answer.json()["view"]["kind"] == "session" and "10.1.2.3" in answer.json()["view"]["description"]
    assert await ada.status("POST", "/logout") == 204
    assert await ada.status("GET", "/me") == 401
    assert await admin.status("POST", "/logout") == 409, "a token for programs is not logged out"
    for wrong in (
        {"user": "ada", "password": "wrong horse"},
        {"user": "ada", "password": ""},
        {"user": "nobody", "password": "correct horse"},
        {"user": "admin", "password": ""},
        {"user": "a b\x00", "password": "correct horse"},
        {"one_time_token": "clutch_o_nonsense"},
    ):
        refused = await _log_in(house, **wrong)
        assert refused.status_code == 401 and "set-cookie" not in refused.headers, wrong
    house.clock.time += 1000.0
    await admin.patch("/users/ada", active=False)
    assert (await _log_in(house, user="ada", password="correct horse")).status_code == 401, "no longer"
    for malformed in ({}, {"user": "ada", "password": "x", "one_time_token": "y"}):
        assert (await _log_in(house, **malformed)).status_code == 400


async def test_guessing_is_slowed_down(house: House) -> None:
    admin = await house.admin()
    await admin.post("/users", name="ada", password="correct horse")
    for _ in range(FREE_FOR_NAME):
        assert (await _log_in(house, user="ada", password="wrong horse")).status_code == 401
    slowed = await _log_in(house, user="ada", password="correct horse")
    assert slowed.status_code == 429 and slowed.json()["code"] == "too_many" and " s." in slowed.json()["next_step"]
    house.clock.time += 60.0
    assert (await _log_in(house, user="ada", password="correct horse")).status_code == 200


async def test_a_one_time_token_is_good_once(house: House) -> None:
    token = await house.access.make_one_time("admin")
    tries = await asyncio.gather(*(_log_in(house, one_time_token=token) for _ in range(4)))
    assert sorted(answer.status_code for answer in tries) == [200, 401, 401, 401]
    assert await Client(house.http, token).status("GET", "/me") == 401
    late = await house.access.make_one_time("admin")
    house.clock.time += 1000.0
    assert (await _log_in(house, one_time_token=late)).status_code == 401


async def test_a_new_password_needs_the_old_one_and_ends_sessions(house: House) -> None:
    admin = await house.admin()
    await admin.post("/users", name="ada", password="correct horse")
    session = Client(house.http, (await _log_in(house, user="ada", password="correct horse")).json()["token"])
    change: dict[str, Any] = {"password": "battery staple"}
    assert await session.status("PATCH", "/users/ada", change) == 403
    assert await session.status("PATCH", "/users/ada", {**change, "current_password": "wrong horse"}) == 403
    limited = await house.token("ada", role="viewer")
    assert await limited.status("PATCH", "/users/ada", {**change, "current_password": "correct horse"}) == 403
    assert await session.status("PATCH", "/users/ada", {**change, "current_password": "correct horse"}) == 200
    assert await session.status("GET", "/me") == 401
    assert (await _log_in(house, user="ada", password="correct horse")).status_code == 401
    assert (await _log_in(house, user="ada", password="battery staple")).status_code == 200
    await admin.patch("/users/ada", password="set by admin")
    assert (await _log_in(house, user="ada", password="set by admin")).status_code == 200


async def test_a_token_is_seen_once_and_never_can_more_than_its_maker(house: House) -> None:
    admin, ada = await house.admin(), await house.user("ada", default="admin")
    await ada.post("/workspaces", name="vision")
    made = await ada.post("/tokens", description="ci", role="viewer", workspace="vision", expires_in_s=100.0)
    limited = Client(house.http, made["token"])
    assert (await limited.get("/me"))["roles"] == {"workspace:vision": "viewer"}
    assert [w["name"] for w in await limited.items("/workspaces")] == ["vision"]
    assert await limited.status("GET", "/workspaces/default") == 404
    assert await limited.status("PATCH", "/workspaces/vision", {"archived": True}) == 403
    assert await limited.status("POST", "/workspaces", {"name": "mine"}) == 403
    child = await limited.post("/tokens", expires_in_s=9999.0)
    assert (child["view"]["role"], child["view"]["workspace"]) == ("viewer", "vision")
    assert child["view"]["expires_at"] <= made["view"]["expires_at"], "nor live longer"
    assert await limited.status("POST", "/tokens", {"workspace": "default"}) == 400
    assert (await limited.post("/tokens", role="admin"))["view"]["role"] == "viewer"
    for body in ({"kind": "one_time"}, {"kind": "enrol"}, {"user": "admin"}):
        assert await limited.status("POST", "/tokens", body) == 403
    assert await ada.status("POST", "/tokens", {"kind": "enrol"}) == 403
    listed = await ada.items("/tokens", kind="personal")
    assert made["view"]["id"] in [view["id"] for view in listed] and made["token"] not in str(listed)
    assert await ada.status("GET", "/tokens", user="*") == 403
    assert {view["user"] for view in await admin.items("/tokens", user="*")} == {"ada", "admin"}
    assert {view["user"] for view in await admin.items("/tokens", user="ada")} == {"ada"}
    for_ada = await admin.post("/tokens", user="ada", kind="one_time")
    assert (await _log_in(house, one_time_token=for_ada["token"])).json()["view"]["user"] == "ada"
    low = await admin.post("/tokens", user="ada", kind="one_time", role="viewer", workspace="vision")
    session = await _log_in(house, one_time_token=low["token"])
    assert (await Client(house.http, session.json()["token"]).get("/me"))["roles"] == {"workspace:vision": "viewer"}
    house.clock.time += 101.0
    assert await limited.status("GET", "/me") == 401, "expired"


async def test_a_revoked_token_ends_at_once(house: House) -> None:
    admin, ada, bob = await house.admin(), await house.user("ada"), await house.user("bob")
    made = await ada.post("/tokens", description="x")
    token, token_id = Client(house.http, made["token"]), made["view"]["id"]
    assert await token.status("GET", "/me") == 200
    assert await bob.status("DELETE", f"/tokens/{token_id}") == 404, "what is not one's own does not exist"
    limited = await ada.post("/tokens", role="viewer")
    low = Client(house.http, limited["token"])
    assert await low.status("DELETE", f"/tokens/{token_id}") == 403
    assert await low.status("DELETE", f"/tokens/{limited['view']['id']}") == 204, "itself it may end"
    assert await low.status("GET", "/me") == 401
    await ada.delete(f"/tokens/{token_id}")
    assert await token.status("GET", "/me") == 401
    other = await bob.post("/tokens")
    await admin.delete(f"/tokens/{other['view']['id']}")
    assert await Client(house.http, other["token"]).status("GET", "/me") == 401
    assert await admin.status("DELETE", "/tokens/nothing") == 404


async def test_a_machine_enrols_for_its_name_alone(house: House) -> None:
    admin = await house.admin()
    permit = Client(house.http, (await admin.post("/tokens", kind="enrol", pool="gpu"))["token"])
    made = await permit.post("/agent/v1/enrol", node="n1")
    assert (made["view"]["node"], made["view"]["pool"], made["view"]["kind"]) == ("n1", "gpu", "agent")
    agent = await house.access.identify(made["token"])
    assert (agent.kind, agent.name) == ("agent", "n1")
    assert await permit.status("POST", "/agent/v1/enrol", {"node": "n2", "pool": "cpu"}) == 403
    assert await permit.status("POST", "/agent/v1/enrol", {"node": "../n2"}) == 400
    assert await permit.status("GET", "/me") == 403, "it can enrol, and nothing else"
    for other in (admin, Client(house.http, made["token"])):
        assert await other.status("POST", "/agent/v1/enrol", {"node": "n3"}) == 403
    assert await house.nobody.status("POST", "/agent/v1/enrol", {"node": "n3"}) == 401
    house.clock.time += 1.0
    again = await permit.post("/agent/v1/enrol", node="n1")
    assert await Client(house.http, made["token"]).status("GET", "/me") == 401, "the old one has ended"
    assert await Client(house.http, again["token"]).status("GET", "/me") == 403
    assert [(t["node"], t["revoked"]) for t in await admin.items("/enrolments")] == [("n1", False), ("n1", True)]
    await admin.delete("/enrolments/n1")
    assert await Client(house.http, again["token"]).status("GET", "/me") == 401
    assert await admin.status("DELETE", "/enrolments/n1") == 404


async def test_tokens_and_ends_of_tokens_outlive_a_restart(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        ada = await house.user("ada", default="editor")
        ended = await ada.post("/tokens")
        await ada.delete(f"/tokens/{ended['view']['id']}")
        agent = await house.access.agent_token("n1")
    async with open_house(tmp_path) as house:
        again = Client(house.http, ada.token)
        assert (await again.get("/me"))["roles"] == {"workspace:default": "editor"}
        assert await Client(house.http, ended["token"]).status("GET", "/me") == 401
        assert (await house.access.identify(agent)).name == "n1"
        assert not await house.access.bootstrap()
