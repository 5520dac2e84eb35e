"""Into a task's port from outside: HTTP, WebSocket, a browser's ticket, and who may not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from clutch.sdk import access_calls, calls
from clutch.sdk.client import Client
from clutch.sdk.task import Task
from clutch.testing.cluster import Cluster, until
from clutch.wire.access import Login, NewUser, Role, RoleGrant

SERVER = Path(__file__).with_name("port_server.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("proxy")) as made:
        made.start()
        made.add_agent("one", slots=2)
        made.wait_nodes("one")
        yield made


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> tuple[Task, int]:
    """A task with an open port, and the port's number."""
    task = cluster.client.run(sys.executable, str(SERVER), code=None, name="served", ports=(0,))
    port = until(lambda: _port(task), "its port is known")
    address = f"{cluster.urls[0]}/proxy/{task.id}/{port}/"
    until(lambda: httpx.get(address, headers=_bearer(cluster)).status_code == 200, "it answers")
    return task, port


def _port(task: Task) -> int:
    return next((port for member in task.detail().members for port in member.ports if port), 0)


def _bearer(cluster: Cluster) -> dict[str, str]:
    token = (cluster.folder / "master0" / "local.token").read_text().strip()
    return {"Authorization": f"Bearer {token}"}


def _address(cluster: Cluster, served: tuple[Task, int], path: str = "/") -> str:
    return f"{cluster.urls[0]}/proxy/{served[0].id}/{served[1]}{path}"


def test_a_request_arrives_without_the_callers_token(cluster: Cluster, served: tuple[Task, int]) -> None:
    answer = httpx.get(_address(cluster, served, "/a/b?c=d%20e&f"), headers=_bearer(cluster))
    assert answer.status_code == 200
    seen = answer.json()
    assert seen["path"] == "/a/b?c=d%20e&f"
    names = {name.lower(): value for name, value in seen["headers"].items()}
    assert "authorization" not in names
    assert len(names["clutch-proof"]) == 64
    assert names["x-forwarded-prefix"] == f"/proxy/{served[0].id}/{served[1]}"


def test_a_redirect_stays_under_the_prefix(cluster: Cluster, served: tuple[Task, int]) -> None:
    answer = httpx.get(_address(cluster, served, "/moved"), headers=_bearer(cluster))
    assert answer.status_code == 302
    assert answer.headers["location"] == f"/proxy/{served[0].id}/{served[1]}/there"


def test_messages_of_a_websocket_cross_both_ways(cluster: Cluster, served: tuple[Task, int]) -> None:
    address = _address(cluster, served).replace("http", "ws", 1)
    with connect(address, additional_headers=_bearer(cluster), proxy=None) as socket:
        for message in ("häl", b"\0" * 200_000):
            socket.send(message)
            assert socket.recv(timeout=20) == message


def test_a_ticket_opens_a_browsers_way_and_no_other(cluster: Cluster, served: tuple[Task, int]) -> None:
    task, port = served
    path = cluster.client.perform(calls.make_ticket(task.id, port)).path
    with httpx.Client(base_url=cluster.urls[0]) as browser:
        first = browser.get(path)
        assert first.status_code == 303
        assert "clutch_ticket" not in first.headers["location"]
        page = browser.get(first.headers["location"])
        assert page.status_code == 200
        assert "clutch_ticket" not in str(page.json())
        assert browser.get("/api/v1/tasks").status_code == 401, "a ticket is nothing to the API"
        other = first.headers["location"].replace(task.id, "c-00000000")
        stolen = {"Cookie": f"clutch_ticket={browser.cookies['clutch_ticket']}"}
        assert httpx.get(cluster.urls[0] + other, headers=stolen).status_code == 401


def test_nobody_else_enters(cluster: Cluster, served: tuple[Task, int]) -> None:
    address = _address(cluster, served)
    assert httpx.get(address).status_code == 401
    assert httpx.get(address, headers={"Authorization": "Bearer nonsense"}).status_code == 401
    with pytest.raises(InvalidStatus), connect(address.replace("http", "ws", 1), proxy=None):
        pass
    for name, role, expected in (("viewer", Role.VIEWER, 403), ("stranger", None, 404)):
        cluster.client.perform(access_calls.create_user(NewUser(name, "a long password")))
        if role is not None:
            grant = RoleGrant(subject=f"user:{name}", role=role, scope="workspace:default")
            cluster.client.perform(access_calls.grant_role(grant))
        with Client(cluster.urls, "") as nobody:
            token = nobody.perform(access_calls.log_in(Login(user=name, password="a long password"))).token
        assert httpx.get(address, headers={"Authorization": f"Bearer {token}"}).status_code == expected


def test_what_is_not_there_is_said_plainly(cluster: Cluster, served: tuple[Task, int]) -> None:
    task, _ = served
    for path, status in (
        (f"/proxy/{task.id}/1/", 404),
        ("/proxy/nobody/80/", 404),
        ("/proxy/", 400),
        ("/proxy/x/y/", 400),
    ):
        answer = httpx.get(cluster.urls[0] + path, headers=_bearer(cluster))
        assert (path, answer.status_code) == (path, status)
        assert answer.json()["cause"]


def test_a_task_that_nobody_uses_is_ended(cluster: Cluster) -> None:
    task = cluster.client.run("sleep", "600", code=None, name="unused", ports=(0,), idle_timeout_s=1.0)
    detail = task.wait(60)
    assert detail.task.reason == "stopped"
