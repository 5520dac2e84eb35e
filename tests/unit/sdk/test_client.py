"""Both clients against masters that do not lead, are busy, break off or are gone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted_master import Answer, Asked, ScriptedMaster, json, lines, master, nobody, refuse

from clutch.sdk import calls
from clutch.sdk.async_client import AsyncClient
from clutch.sdk.client import Client
from clutch.wire.api import Page, SubmitTask, Submitted, TaskDetail
from clutch.wire.errors import BadRequest, NotAllowed, NotLeader, TimedOut, Unavailable
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.output import OutputLine, OutputPage
from clutch.wire.programs import Program
from clutch.wire.views import TaskView

TASK = SubmitTask(program=Program(argv=("true",)))
DONE = json(Submitted(task="t-1", name="n"), 201)
BUSY, STANDBY = refuse(Unavailable("full")), refuse(NotLeader("standby"))


def cut(asked: Asked) -> None:
    asked.cut()


def view(state: str = "ended", key: str = "t-1") -> TaskView:
    return TaskView(
        key=key, kind="command", name="n", pool="default", owner="ann", workspace="default", state=state, reason="",
        detail="", priority=42, epoch=1, restarts=0, slots=0, submitted_at=0.0, ended_at=0.0,
    )  # fmt: skip


def detail(state: str = "ended") -> Answer:
    return json(TaskDetail(task=view(state), exit_code=0))


def line(number: int) -> OutputLine:
    return OutputLine(
        member=MemberId(TaskId("t-1"), "main", 0), fence=Fence(1, 1, 1), stream="stdout", start=number, end=number + 1,
        number=number, at=0.0, text=str(number),
    )  # fmt: skip


def said(*numbers: int, cursor: str = "") -> bytes:
    after = cursor or f"c{numbers[-1]}"
    return msgspec.json.encode(OutputPage(tuple(line(n) for n in numbers), after, "", True)) + b"\n"


Ask = Callable[..., Any]


def blocking(urls: str | list[str], ask: Ask, **options: Any) -> Any:
    with Client(urls, "tok", **options) as client:
        found = ask(client)
        return list(found) if hasattr(found, "__next__") else found


def on_a_loop(urls: str | list[str], ask: Ask, **options: Any) -> Any:
    async def go() -> Any:
        async with AsyncClient(urls, "tok", **options) as client:
            found = ask(client)
            if hasattr(found, "__aiter__"):
                return [item async for item in found]
            return await found

    return asyncio.run(go())


both = pytest.mark.parametrize("through", [blocking, on_a_loop])


@both
def test_a_call_carries_its_token_and_gives_its_answer(through: Any) -> None:
    with master(DONE) as server:
        assert through(server.url, lambda client: client.submit(TASK)).id == "t-1"
    assert server.headers[0].get("Authorization", server.headers[0].get("authorization")) == "Bearer tok"
    method, target, body = server.asked[0]
    assert (method, target) == ("POST", "/api/v1/tasks")
    assert len(msgspec.json.decode(body, type=SubmitTask).key) == 32


@both
def test_every_master_is_tried_and_the_one_that_leads_is_remembered(through: Any) -> None:
    with master(STANDBY) as standby, master(DONE) as leader:

        def twice(client: Any) -> Any:
            if isinstance(client, Client):
                return client.submit(TASK), client.submit(TASK)
            return asyncio_twice(client)

        async def asyncio_twice(client: AsyncClient) -> Any:
            return await client.submit(TASK), await client.submit(TASK)

        through([nobody(), standby.url, leader.url], twice)
    assert (len(standby.asked), len(leader.asked)) == (1, 2)


@both
def test_a_submit_is_repeated_with_the_same_key_after_anything(through: Any) -> None:
    with master(BUSY, cut, STANDBY, DONE) as server:
        assert through(server.url, lambda client: client.submit(TASK)).id == "t-1"
    keys = {msgspec.json.decode(body, type=SubmitTask).key for _, _, body in server.asked}
    assert (len(server.asked), len(keys)) == (4, 1)


@both
@pytest.mark.parametrize("mishap", [BUSY, cut])
def test_what_may_have_been_done_is_asked_once(through: Any, mishap: Answer) -> None:
    with master(mishap, DONE) as server, pytest.raises(Unavailable):
        through(server.url, lambda client: client.perform(calls.submit(TASK)))
    assert len(server.asked) == 1


@both
def test_patience_ends(through: Any) -> None:
    with pytest.raises(Unavailable, match="no master answers there") as caught:
        through(nobody(), lambda client: client.submit(TASK), patience_s=0.3)
    assert "clutch up" in caught.value.next_step
    with master(BUSY) as server, pytest.raises(Unavailable, match="full"):
        through(server.url, lambda client: client.submit(TASK), patience_s=0.3)
    assert len(server.asked) > 1


@both
def test_an_error_is_raised_as_what_it_is(through: Any) -> None:
    with master(refuse(NotAllowed("no", next_step="Ask."))) as server, pytest.raises(NotAllowed, match=r"no\. Ask\."):
        through(server.url, lambda client: client.task("x"))


@both
def test_lists_are_read_to_their_end(through: Any) -> None:
    pages = [json(Page((view(key="a"), view(key="b")), "b")), json(Page((view(key="c"),)))]
    with master(*pages) as server:
        found = through(server.url, lambda client: client.items(calls.list_tasks(pool="p", after="z")))
        assert [task.key for task in found] == ["a", "b", "c"]
    assert [target for _, target, _ in server.asked] == ["/api/v1/tasks?pool=p&after=z", "/api/v1/tasks?pool=p&after=b"]


@both
def test_lines_are_followed_over_breaks_each_once(through: Any) -> None:
    script = [
        lines(said(0, 1), b"\n", said(2), whole=False),
        BUSY,
        lines(said(3)[:10], whole=False),  # half a message is none
        lines(said(3)),  # ended well, but by a master that goes
        detail("running"),
        STANDBY,
        lines(said(4, cursor="last")),
        detail(),
        lines(),
        detail(),
    ]
    with master(*script) as server:
        found = through(server.url, lambda client: task_of(client).output(follow=True, tail=9))
        assert [each.number for each in found] == [0, 1, 2, 3, 4]
    asked = [target.partition("/output")[2] for _, target, _ in server.asked if "/output" in target]
    assert asked == [
        "?tail=9&follow=true", "?after=c2&follow=true", "?after=c2&follow=true", "?after=c2&follow=true",
        "?after=c3&follow=true", "?after=c3&follow=true", "?after=last&follow=true",
    ]  # fmt: skip


def task_of(client: Any) -> Any:
    from clutch.sdk.async_task import AsyncTask
    from clutch.sdk.task import Task

    return Task(client, "t-1") if isinstance(client, Client) else AsyncTask(client, "t-1")


@both
def test_pages_are_read_to_their_end(through: Any) -> None:
    first = json(OutputPage((line(0), line(1)), "c1", "", True))
    with master(first, json(OutputPage((line(2),), "c2", "", False))) as server:
        found = through(server.url, lambda client: task_of(client).output(head=3))
        assert [each.number for each in found] == [0, 1, 2]
    assert server.asked[1][1].endswith("/output?head=1&after=c1")


@both
def test_waiting_ends_with_the_task_or_with_its_time(through: Any) -> None:
    with master(detail("queued"), detail("running"), detail()) as server:
        assert through(server.url, lambda client: task_of(client).wait(10.0)).exit_code == 0
    with master(detail("queued")) as server, pytest.raises(TimedOut, match="clutch why t-1"):
        through(server.url, lambda client: task_of(client).wait(0.2))


@both
def test_code_is_sent_once_with_its_size_and_progress(through: Any, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(os.urandom(600_000))
    gone: Answer = lambda asked: asked.say(404)  # noqa: E731
    told: list[tuple[int, int]] = []
    with master(gone, cut, json(None, 201)) as server:
        upload = lambda client: client.upload(tmp_path, progress=lambda *done: told.append(done))  # noqa: E731
        digest = through(server.url, upload)
        server.answers[:] = [json(None)]
        assert through(server.url, upload) == digest
    assert [method for method, _, _ in server.asked] == ["HEAD", "PUT", "PUT", "HEAD"]
    import hashlib

    assert digest == f"sha256:{hashlib.sha256(server.asked[2][2]).hexdigest()}"
    assert server.asked[1][1] == f"/api/v1/code/{digest}"
    assert told[-1][0] == told[-1][1] == len(server.asked[2][2])


def test_a_connection_is_kept_and_a_closed_one_is_noticed() -> None:
    seen: list[Any] = []

    def note(asked: Asked) -> None:
        seen.append(asked.client_address)
        asked.close_connection = len(seen) == 2
        DONE(asked)

    with master(note) as server, Client(server.url) as client:
        for _ in range(3):
            client.perform(calls.submit(TASK))
            _until_closed(client, server, len(seen) == 2)
    assert seen[0] == seen[1] != seen[2]


def _until_closed(client: Client, server: ScriptedMaster, closed: bool) -> None:
    import select

    if closed:
        (kept,) = client._connections._idle[client.addresses[0]]
        assert select.select([kept.sock], [], [], 10)[0]


@pytest.mark.parametrize("text", ["ftp://x", "http://", "http://x:99999", "http://x:y"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="not the address of a master"):
        Client(text)


def test_importing_clutch_brings_no_http_framework() -> None:
    code = (
        "import sys, time; t = time.process_time(); import clutch; took = time.process_time() - t;"
        "heavy = {'httpx', 'litestar', 'msgspec', 'http', 'asyncio', 'ssl', 'typer'} & set(sys.modules);"
        "assert not heavy, heavy; assert clutch.Client.__name__ == 'Client';"
        "assert not {'httpx', 'litestar', 'asyncio', 'typer'} & set(sys.modules); print(took)"
    )
    run = [sys.executable, "-c", code]
    took = [float(subprocess.run(run, capture_output=True, check=True, timeout=60).stdout) for _ in range(3)]
    assert min(took) < 0.04
