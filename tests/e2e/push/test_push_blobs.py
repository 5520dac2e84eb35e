"""Who may reach which workspace's blobs, ranges and conditions, and paths that try to lead out."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from push_ground import DEADLINE_S, Master, said


class Blobs:
    def __init__(self, master: Master, token: str) -> None:
        self._url = f"{master.url}/api/v1"
        self._headers = {"Authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {**self._headers, **more.pop("headers", {})}
        return httpx.request(
            method, f"{self._url}{path}", headers=headers, timeout=DEADLINE_S, trust_env=False, **more
        )  # fmt: skip


@pytest.fixture(scope="module")
def callers(shared: Master) -> dict[str, Blobs]:
    shared.do("user", "owner", "admin", "blobs-a")
    shared.do("user", "owner", "admin", "blobs-b")
    tokens = {
        "viewer": shared.do("user", "eve", "viewer", "blobs-a"),
        "editor": shared.do("user", "ed", "editor", "blobs-a"),
        "foreigner": shared.do("user", "fay", "editor", "blobs-b"),
        "member": shared.do("submit", "blobs-task", 1, "end", "blobs-a")["0"],
        "nobody": "no-token",
    }
    return {name: Blobs(shared, token) for name, token in tokens.items()}


def test_a_role_in_the_workspace_or_a_task_of_it(callers: dict[str, Blobs]) -> None:
    path = "/blobs/blobs-a/some/key"
    assert said(callers["editor"].ask("PUT", path, content=b"0123456789"))["size_bytes"] == 10
    expected = {
        "viewer": (200, 403),
        "editor": (200, 200),
        "foreigner": (404, 404),
        "member": (200, 200),
        "nobody": (401, 401),
    }
    for name, (reads, writes) in expected.items():
        one = callers[name]
        for method, place in (("GET", path), ("HEAD", path), ("GET", "/blobs/blobs-a")):
            assert one.ask(method, place).status_code == reads, (name, method, place)
        assert one.ask("PUT", path, content=b"0123456789").status_code == writes, name
        assert one.ask("PUT", f"/uploads/blobs-a/{'0' * 32}/000000-{'0' * 64}", content=b"").status_code in (
            writes,
            400,
        )
        assert one.ask("POST", "/uploads/blobs-a/sweep", json={}).status_code == writes, name
        assert one.ask("DELETE", "/blobs/blobs-a/other").status_code == writes, name
    assert callers["member"].ask("GET", "/blobs/blobs-b").status_code == 404, "another workspace does not exist for it"


def test_ranges_and_conditions(callers: dict[str, Blobs]) -> None:
    one, path = callers["editor"], "/blobs/blobs-a/ranges"
    made = said(one.ask("PUT", path, content=b"0123456789", headers={"If-None-Match": "*"}))
    assert said(one.ask("PUT", path, content=b"x", headers={"If-None-Match": "*"}), 409)["code"] == "conflict"
    assert said(one.ask("PUT", path, content=b"x", headers={"If-None-Match": '"abc"'}), 400)
    whole = one.ask("GET", path)
    assert (whole.status_code, whole.content, whole.headers["etag"]) == (200, b"0123456789", f'"{made["sha256"]}"')
    part = one.ask("GET", path, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    assert one.ask("GET", path, headers={"Range": "bytes=7-"}).content == b"789"
    assert one.ask("GET", path, headers={"Range": "bytes=7-100"}).content == b"789"
    for wrong in (
        "bytes=11-",
        "bytes=5-2",
        "bytes=-3",
        "bytes=a-b",
        "lines=1-2",
        "bytes=1-2,4-5",
        "bytes=" + "9" * 40 + "-",
    ):
        assert said(one.ask("GET", path, headers={"Range": wrong}), 400)["code"] == "bad_request", wrong
    assert one.ask("GET", path, headers={"If-Match": f'"{made["sha256"]}"'}).status_code == 200
    assert one.ask("GET", path, headers={"If-Match": '"other"'}).status_code == 409
    assert said(one.ask("DELETE", path)) == {"done": True} == said(one.ask("DELETE", path))
    assert said(one.ask("GET", path), 404)["code"] == "not_found"


@pytest.mark.parametrize(
    "path",
    [
        "/blobs/blobs-a/%2e%2e/blobs-b/x", "/blobs/blobs-a/a/%2e%2e/%2e%2e/x", "/blobs/blobs-a/.clutch/parts/x",
        "/blobs/blobs-a/a%00b", "/blobs/blobs-a/a%5Cb", "/blobs/%2e%2e/x",
        "/blobs/..%2Fpush/x", "/blobs/blobs-a/" + "k" * 300,
    ],
)  # fmt: skip
def test_no_path_leads_out(callers: dict[str, Blobs], path: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answer = callers["editor"].ask(method, path)
        assert answer.status_code in (400, 404, 405), f"{method} {path}: {answer.status_code} {answer.text}"


def test_uploads_are_what_they_are_named(callers: dict[str, Blobs]) -> None:
    one, upload = callers["editor"], "/uploads/blobs-a/" + "a" * 32
    assert said(one.ask("PUT", f"{upload}/000000-{'0' * 64}", content=b"other bytes"), 400)
    assert said(one.ask("GET", upload)) == []
    for wrong in ("/uploads/blobs-a/short", "/uploads/blobs-a/" + "A" * 32):
        assert said(one.ask("GET", wrong), 400)
    assert said(one.ask("PUT", f"{upload}/x", content=b""), 400)
    body = {"key": "k", "parts": [f"000000-{'0' * 64}"], "sha256": "0" * 64}
    assert said(one.ask("POST", f"{upload}/commit", json=body), 410)["code"] == "stale"
    assert said(one.ask("POST", f"{upload}/commit", json={**body, "parts": []}), 400), "and the hash must be right"
    assert said(one.ask("POST", f"{upload}/commit", json={**body, "key": "../x"}), 400)
    assert said(one.ask("GET", "/blobs/blobs-a/k"), 404)
    for wrong in ({"older_than_s": -1}, {"older_than_s": "x"}, {"other": 1}):
        assert said(one.ask("POST", "/uploads/blobs-a/sweep", json=wrong), 400)
    for wrong in ("limit=0", "limit=1001", "limit=x", "prefix=..", "prefix=/x"):
        assert said(one.ask("GET", f"/blobs/blobs-a?{wrong}"), 400), wrong
