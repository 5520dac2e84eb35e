"""Each route of the push API against a real master: what it promises, said twice, said badly, said too late."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
from push_ground import DEADLINE_S, Master, Member, said

from clutch.testing.bars import within
from clutch.wire.push import SHA256_OF_NOTHING

HASH = "ab" * 32


def later(call: Any, *args: Any, **more: Any) -> Future[Any]:
    """A call that waits, in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args, **more))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def announce(address: str = "10.0.0.1", **more: Any) -> dict[str, Any]:
    return {"addresses": [address], "ports": [4000], **more}


def members(master: Master, task: str, count: int, on_death: str = "end") -> list[Member]:
    tokens = master.do("submit", task, count, on_death)
    return [master.member(tokens[str(rank)]) for rank in range(count)]


def until(condition: Any) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def ended(master: Master, task: str, reason: str) -> None:
    until(lambda: master.do("state", task)["state"] == "ended")
    assert master.do("state", task)["reason"] == reason


# -- meeting ------------------------------------------------------------------------------------------------------


def test_members_meet_when_the_last_has_come(shared: Master) -> None:
    one, two, three = members(shared, "meet", 3)
    second = announce("10.0.0.2", public_key="k" * 40, slots=[1])
    first = said(two.post("/rendezvous", {**second, "timeout_s": 0}))
    waiting = [later(m.post, "/rendezvous", announce(f"10.0.0.{n}")) for n, m in ((1, one), (3, three))]
    assert not first["ready"] and first["peers"] == [] and first["size"] == 3 and first["deadline"] > time.time()
    last = said(two.post("/rendezvous", second))
    answers = [last, *(said(future.result(DEADLINE_S)) for future in waiting)]
    assert [answer["rank"] for answer in answers] == [1, 0, 2] and all(answer["ready"] for answer in answers)
    assert [peer["addresses"][0] for peer in last["peers"]] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert all(answer["peers"] == last["peers"] for answer in answers)
    assert last["peers"][1]["public_key"] == "k" * 40 and last["peers"][1]["slots"] == [1]
    assert [peer["local_rank"] for peer in last["peers"]] == [0, 1, 2] and last["local_size"] == 3
    again = said(one.post("/rendezvous", announce("10.0.0.1")))
    assert again["peers"] == last["peers"] and again["version"] == last["version"] == 1


def test_a_member_that_restarts_before_the_meeting_replaces_its_entry(shared: Master) -> None:
    one, two = members(shared, "replace", 2, "respawn")
    waiting = later(one.post, "/rendezvous", announce("10.0.0.1"))
    until(lambda: said(two.get("/info")) and shared.do("blobs") is not None)
    shared.do("exit", "replace", 0, 1)
    assert waiting.result(DEADLINE_S).status_code in (401, 410), "the incarnation that waited is over"
    reborn = shared.member(shared.do("tokens", "replace")["0"])
    assert reborn.token != one.token
    assert not said(reborn.post("/rendezvous", announce("10.0.0.9", timeout_s=0)))["ready"]
    roster = said(two.post("/rendezvous", announce("10.0.0.2")))
    assert [peer["addresses"][0] for peer in roster["peers"]] == ["10.0.0.9", "10.0.0.2"]
    assert said(one.post("/rendezvous", announce()), 401)["code"] == "not_authenticated"


def test_a_member_that_restarts_later_meets_those_who_run(shared: Master) -> None:
    one, two = members(shared, "rejoin", 2, "respawn")
    said(one.post("/rendezvous", announce("10.0.0.1", timeout_s=0)))
    assert said(two.post("/rendezvous", announce("10.0.0.2")))["version"] == 1
    shared.do("exit", "rejoin", 1, 1)
    reborn = shared.member(shared.do("tokens", "rejoin")["1"])
    roster = said(reborn.post("/rendezvous", announce("10.0.0.7")))
    assert roster["version"] == 2 and [p["addresses"][0] for p in roster["peers"]] == ["10.0.0.1", "10.0.0.7"]
    assert said(one.post("/rendezvous", announce("10.0.0.1")))["peers"] == roster["peers"]


def test_a_role_that_grows_meets_again_with_its_newcomer(shared: Master) -> None:
    one, two = members(shared, "grow", 2, "respawn")
    said(one.post("/rendezvous", announce("10.0.0.1", timeout_s=0)))
    assert said(two.post("/rendezvous", announce("10.0.0.2")))["size"] == 2
    tokens = shared.do("resize", "grow", 3)
    waiting = later(one.post, "/rendezvous", announce("10.0.0.1"))
    roster = said(shared.member(tokens["2"]).post("/rendezvous", announce("10.0.0.3")))
    assert roster["ready"] and roster["size"] == 3 and roster["rank"] == 2 and roster["version"] > 1
    assert said(waiting.result(DEADLINE_S))["peers"] == roster["peers"]


def test_past_the_deadline_it_is_said_who_is_missing(shared: Master) -> None:
    one, two, three = members(shared, "late", 3)
    assert not said(two.post("/rendezvous", announce(within_s=1.5, timeout_s=0)))["ready"]
    error = said(three.post("/rendezvous", announce(within_s=60)), 504)
    assert error["code"] == "timed_out" and "main.0" in error["cause"] and "main.1" not in error["cause"]
    assert not said(two.post("/rendezvous", announce(timeout_s=0)))["ready"], "and they may come again"
    assert said(one.post("/rendezvous", announce(timeout_s=0)))["missing"] == ["main.2"]


def test_rounds_of_all_gather(shared: Master) -> None:
    one, two = members(shared, "gather", 2)
    for number in range(1, 13):
        waiting = later(one.post, "/all_gather", {"round": number, "data": "AAAA"})
        found = said(two.post("/all_gather", {"round": number, "data": "AQID"}))
        assert found["ready"] and found["data"] == ["AAAA", "AQID"]
        assert said(waiting.result(DEADLINE_S)) == found
    again = said(one.post("/all_gather", {"round": 12, "data": "////"}))
    assert again["data"] == ["AAAA", "AQID"], "a round that is complete is history"
    assert said(one.post("/all_gather", {"round": 13, "timeout_s": 0}))["missing"] == ["main.1"]
    assert said(one.post("/all_gather", {"round": 14, "data": "A" * 400_000}), 413)["code"] == "too_large"


# -- leaving ------------------------------------------------------------------------------------------------------


def test_preemption_is_heard_at_once_and_acknowledged_once(shared: Master) -> None:
    one, two = members(shared, "leave", 2)
    assert said(one.get("/preemption", timeout_s=0)) == {
        "asked": False, "reason": None, "deadline": 0.0, "remaining_s": 0.0, "acknowledged": False,
    }  # fmt: skip
    assert not said(one.post("/preemption/ack"))["acknowledged"], "nobody asked: it means nothing"
    polls = [later(m.get, "/preemption", timeout_s=60) for m in (one, two)]
    began = time.monotonic()
    shared.do("cancel", "leave")
    for poll in polls:
        heard = said(poll.result(DEADLINE_S))
        assert heard["asked"] and heard["reason"] == "cancelled" and 20 < heard["remaining_s"] <= 30
    assert time.monotonic() - began < 20, "not at the end of the poll"
    assert said(two.get("/preemption", timeout_s=60))["asked"], "and at once when it was asked before"
    for _ in range(2):
        assert said(one.post("/preemption/ack"))["acknowledged"]
    assert said(two.get("/info"))["preemption"]["acknowledged"]
    for rank in (0, 1):
        shared.do("exit", "leave", rank, 0)
    ended(shared, "leave", "cancelled")
    assert said(one.get("/preemption"), 401)


def test_work_that_declared_itself_finished_is_done_whatever_was_acknowledged(shared: Master) -> None:
    (one,) = members(shared, "finish", 1)
    for _ in range(2):
        assert said(one.post("/finished")) == {"done": True}
    shared.do("cancel", "finish")
    said(one.post("/preemption/ack"))
    shared.do("exit", "finish", 0, 0)
    ended(shared, "finish", "done")


# -- reporting ----------------------------------------------------------------------------------------------------


def test_metrics_are_taken_once_and_in_order(shared: Master) -> None:
    (one,) = members(shared, "metrics", 1)

    def batch(sequence: int) -> dict[str, Any]:
        return {"sequence": sequence, "points": [{"group": "training", "step": 1, "values": {"loss": 0.5}, "at": 1.0}]}

    assert said(one.post("/metrics", {"batches": [batch(1), batch(2)]})) == {"sequence": 2}
    assert said(one.post("/metrics", {"batches": [batch(1), batch(2), batch(3)]})) == {"sequence": 3}
    assert said(one.post("/metrics", {"batches": [batch(5)]}), 409)["code"] == "conflict", "one is missing"
    for bad in ({}, {"batches": [{"sequence": 4}]}, {"batches": [{**batch(4), "sequence": 0}]}, {"batches": "x"}):
        assert said(one.post("/metrics", bad), 400)["code"] == "bad_request"
    assert said(one.post("/metrics", {"batches": []})) == {"sequence": 3}


def test_progress_is_soft_and_bounded(shared: Master) -> None:
    (one,) = members(shared, "progress", 1)
    assert said(one.post("/progress", {"fraction": 0.5, "message": "half"})) == {"done": False}
    for body in ({"fraction": 1.5}, {"fraction": -0.1}, {"fraction": "x"}, {}, {"fraction": 0.1, "other": 1}):
        assert said(one.post("/progress", body), 400)["code"] == "bad_request"
    assert said(one.post("/progress", {"fraction": 0.1, "message": "m" * 2000}), 413)


def manifest(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "files": [{"path": "model/weights.pt", "size_bytes": 7, "sha256": HASH}], **more}


def test_checkpoints_are_begun_committed_and_listed(shared: Master) -> None:
    (one,) = members(shared, "save", 1)
    begun = said(one.post("/checkpoints", {"step": 10}))
    assert said(one.post("/checkpoints", {"step": 10})) == begun, "begun again, it is the same one"
    assert begun["workspace"] == "default" and begun["prefix"] == f"checkpoints/{begun['id']}"
    assert said(one.post("/checkpoints", {"step": 10, "label": "b"}))["id"] != begun["id"]
    assert said(one.get("/checkpoints")) == [], "nothing is listed before it is committed"
    path = f"/checkpoints/{begun['id']}/commit"
    done = said(one.post(path, manifest(10, metadata={"framework": "torch"})))
    assert done["latest"] and done["size_bytes"] == 7 and done["file_count"] == 1 and done["epoch"] == 1
    assert said(one.post(path, manifest(10, metadata={"framework": "torch"}))) == done
    assert said(one.post(path, manifest(10, files=[])), 409)["code"] == "conflict"
    info = said(one.get("/info"))
    assert (info["checkpoint"], info["checkpoint_step"]) == (begun["id"], 10)
    second = said(one.post("/checkpoints", {"step": 20}))["id"]
    said(one.post(f"/checkpoints/{second}/commit", manifest(20)))
    behind = said(one.post("/checkpoints", {"step": 15}))["id"]
    assert said(one.post(f"/checkpoints/{behind}/commit", manifest(15)), 409)["code"] == "conflict"
    assert said(one.post(path, manifest(10, metadata={"framework": "torch"})))["latest"] is False, "late, and the same"
    listed = said(one.get("/checkpoints"))
    assert [(c["id"], c["step"], c["latest"]) for c in listed] == [(begun["id"], 10, False), (second, 20, True)]
    assert all(c["files"] == [] for c in listed)
    assert said(one.get(f"/checkpoints/{second}"))["files"] == manifest(20)["files"]
    assert said(one.get(f"/checkpoints/{behind}"), 404) and said(one.get("/checkpoints/nobody"), 404)


@pytest.mark.parametrize(
    "bad",
    [
        {"files": [{"path": "../x", "size_bytes": 1, "sha256": HASH}]},
        {"files": [{"path": "/x", "size_bytes": 1, "sha256": HASH}]},
        {"files": [{"path": "x", "size_bytes": -1, "sha256": HASH}]},
        {"files": [{"path": "x", "size_bytes": 1, "sha256": "zz"}]},
        {"files": [{"path": "x", "size_bytes": 1, "sha256": HASH}] * 2},
        {"files": [{"path": "x\0", "size_bytes": 1, "sha256": HASH}]},
        {"files": [{"path": "x/", "size_bytes": 1, "sha256": HASH}]},
        {"files": [{"path": "x//", "size_bytes": 0, "sha256": SHA256_OF_NOTHING}]},
        {"files": [{"path": "/", "size_bytes": 0, "sha256": SHA256_OF_NOTHING}]},
        {"files": [{"path": name, "size_bytes": 0, "sha256": SHA256_OF_NOTHING} for name in ("x", "x/")]},
        {"files": "x"},
        {"step": 6},
        {"step": -1},
        {"step": 2**70},
        {"metadata": {"a": "\0"}},
        {"unknown": 1},
    ],
)
def test_a_manifest_that_cannot_be_is_refused(shared: Master, bad: dict[str, Any]) -> None:
    if "manifest" not in shared.known:
        shared.known["manifest"] = members(shared, "manifest", 1)[0]
    one = shared.known["manifest"]
    begun = said(one.post("/checkpoints", {"step": 5}))["id"]
    assert said(one.post(f"/checkpoints/{begun}/commit", {**manifest(5), **bad}), 400)["code"] == "bad_request"
    assert said(one.get("/checkpoints")) == []


# -- names --------------------------------------------------------------------------------------------------------


def test_names_of_a_task_and_of_its_workspace(shared: Master) -> None:
    one, two = members(shared, "names", 2)
    (other,) = members(shared, "names-other", 1)
    added = said(one.post("/names", {"name": "a/b", "value": "AQ==", "ttl_s": 60, "key": "mine"}))
    assert said(one.post("/names", {"name": "a/b", "value": "AQ==", "ttl_s": 60, "key": "mine"})) == added
    assert said(two.post("/names", {"name": "a/b", "value": "Ag==", "ttl_s": 60}), 409)["code"] == "conflict"
    assert said(two.get("/names/entry", name="a/b")) == added and said(two.get("/names", prefix="a")) == [added]
    assert said(other.get("/names")) == [] and said(other.get("/names/entry", name="a/b"), 404)
    wide = said(one.post("/names", {"name": "shared", "ttl_s": 60}, scope="workspace"))
    assert said(other.get("/names", scope="workspace")) == [wide]
    watched = said(two.get("/names/watch", prefix="a", timeout_s=0))
    assert watched["whole"] and [change["name"] for change in watched["changes"]] == ["a/b"]
    waiting = later(two.get, "/names/watch", prefix="a", after=watched["version"], timeout_s=60)
    changed = said(one.post("/names/renew", {"name": "a/b", "token": added["token"], "value": "Aw=="}))
    seen = said(waiting.result(DEADLINE_S))
    assert not seen["whole"] and seen["changes"] == [{"name": "a/b", "entry": changed}]
    assert said(two.post("/names/renew", {"name": "a/b", "token": 1}), 410)["code"] == "stale"
    assert said(one.post("/names/remove", {"name": "a/b", "token": added["token"]})) == {"done": True}
    gone = said(two.get("/names/watch", prefix="a", after=seen["version"], timeout_s=60))
    assert gone["changes"] == [{"name": "a/b", "entry": None}]
    assert said(one.post("/names/remove", {"name": "a/b", "token": added["token"]}), 404)
    for body in ({"name": "../x"}, {"name": ""}, {"name": "x", "ttl_s": -1}, {"name": "x", "value": "%%"}, {"name": 1}):
        assert said(one.post("/names", body), 400)
    assert said(one.get("/names", scope="cluster"), 400) and said(one.get("/names/entry"), 400)
    assert said(one.post("/names/renew", {"name": "x", "token": 2**80}), 410), "a number of nobody's"


# -- everything, said by the wrong one or badly -------------------------------------------------------------------

ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/info", None),
    ("POST", "/rendezvous", announce()),
    ("POST", "/all_gather", {"round": 1}),
    ("GET", "/preemption", None),
    ("POST", "/preemption/ack", None),
    ("POST", "/finished", None),
    ("POST", "/metrics", {"batches": []}),
    ("POST", "/progress", {"fraction": 0.1}),
    ("POST", "/checkpoints", {"step": 1}),
    ("POST", "/checkpoints/1-x/commit", {"step": 1}),
    ("GET", "/checkpoints", None),
    ("GET", "/checkpoints/x", None),
    ("POST", "/names", {"name": "x"}),
    ("POST", "/names/renew", {"name": "x", "token": 1}),
    ("POST", "/names/remove", {"name": "x", "token": 1}),
    ("GET", "/names", None),
    ("GET", "/names/entry?name=x", None),
    ("GET", "/names/watch", None),
]


@pytest.fixture(scope="module")
def strangers(shared: Master) -> dict[str, str]:
    """Tokens that must not do anything here: of a member that is gone, of a user, nobody's."""
    (gone,) = members(shared, "gone", 1)
    shared.do("exit", "gone", 0, 0)
    until(lambda: shared.do("state", "gone")["state"] == "ended")
    return {"gone": gone.token, "user": shared.do("user", "ada", "admin", "default"), "nobody": "clutch_t_x.y"}


@pytest.mark.parametrize(("method", "path", "body"), ROUTES, ids=[f"{m} {p}" for m, p, _ in ROUTES])
def test_only_a_current_member_may_say_it(
    shared: Master, strangers: dict[str, str], method: str, path: str, body: Any
) -> None:  # fmt: skip
    for whose, status in (("gone", 401), ("user", 403), ("nobody", 401)):
        member = shared.member(strangers[whose])
        answer = member.get(path) if method == "GET" else member.post(path, body)
        assert said(answer, status)["next_step"]


BODIES: list[Any] = [None, [], "x", 1, {"unknown": True}, {"a": "\ud800"}]


@pytest.mark.parametrize("path", [path for method, path, body in ROUTES if method == "POST" and body is not None])
def test_a_bad_body_is_the_callers_error(shared: Master, path: str) -> None:
    if "bodies" not in shared.known:
        shared.known["bodies"] = members(shared, "bodies", 1)[0]
    one = shared.known["bodies"]
    for content in (b"", b"{", b"\xff\xfe", b"[]", b'"x"', b"1", b'{"unknown":1}', b'{"step":1e999}', b'{"round":NaN}'):
        answer = httpx.post(
            f"{one.url}{path}",
            content=content,
            headers={**one.headers, "Content-Type": "application/json"},
            timeout=DEADLINE_S,
            trust_env=False,
        )
        assert said(answer, 400)["code"] == "bad_request", content


@pytest.mark.parametrize(
    "bad",
    [
        {"addresses": []},
        {"addresses": ["-x"]},
        {"addresses": ["a b"]},
        {"addresses": ["x\0"]},
        {"addresses": ["a"] * 17},
        {"ports": [0]},
        {"ports": [70000]},
        {"ports": [1] * 65},
        {"public_key": "short"},
        {"slots": [-1]},
        {"timeout_s": -1},
        {"timeout_s": "x"},
        {"within_s": 0},
        {"within_s": 1e12},
    ],
)
def test_an_announcement_nobody_could_use_is_refused(shared: Master, bad: dict[str, Any]) -> None:
    if "announce" not in shared.known:
        shared.known["announce"] = members(shared, "announce", 2)[0]
    answer = shared.known["announce"].post("/rendezvous", {**announce(timeout_s=0), **bad})
    assert said(answer, 400)["code"] == "bad_request"


@pytest.mark.parametrize("query", ["timeout_s=-1", "timeout_s=x", "timeout_s=nan", "timeout_s=1e99", "timeout_s=inf"])
def test_a_wait_that_cannot_be_is_refused(shared: Master, query: str) -> None:
    if "bodies" not in shared.known:
        shared.known["bodies"] = members(shared, "bodies", 1)[0]
    for path in ("/preemption", "/names/watch"):
        assert said(shared.known["bodies"].get(f"{path}?{query}"), 400)["code"] == "bad_request"


def test_hundreds_of_polls_wait_at_once(shared: Master) -> None:
    """Others are answered quickly meanwhile, and all wake as soon as the task is asked to leave."""
    (one,) = members(shared, "crowd", 1)
    count = 250

    async def wait_all() -> list[bool]:
        limits = httpx.Limits(max_connections=count)
        patient = httpx.AsyncClient(headers=one.headers, limits=limits, timeout=DEADLINE_S, trust_env=False)
        async with patient as client:
            polls = [client.get(f"{one.url}/preemption", params={"timeout_s": 60}) for _ in range(count)]
            return [answer.json()["asked"] for answer in await asyncio.gather(*polls)]

    crowd = later(lambda: asyncio.run(wait_all()))
    until(lambda: crowd.done() or shared.do("waiting") >= count)
    began = time.monotonic()
    for _ in range(10):
        said(one.get("/info"))
    assert (time.monotonic() - began) / 10 < within(1.0)
    shared.do("cancel", "crowd")
    assert crowd.result(DEADLINE_S) == [True] * count
