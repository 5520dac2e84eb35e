"""Looking at and changing a real cluster from the command line: tasks, output, machines, pools, events, the doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from terminal import User, finish

from clutch.sdk import calls
from clutch.testing.cluster import Cluster, until

PRINTER = "echo one; echo WARNING two; echo three >&2; printf 'last without end'"


def printed(admin: User, name: str) -> str:
    """A task of this name that printed and ended; its id."""
    admin.run("run", "--no-code", "--name", name, "--", "sh", "-c", PRINTER)
    return str(rows(admin, "ps", "--all", "--name", name)[0]["key"])


def rows(user: User, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(user.says(*words, "--json"))
    return found


def sleeping(admin: User, cluster: Cluster, name: str) -> str:
    """A task that runs, and that is ended by us at the end of its window rather than by itself."""
    command = ("--leave-within", "1", "--", "sh", "-c", "trap '' TERM; sleep 300")
    task = admin.says("run", "--no-code", "--detach", "--name", name, *command).strip()
    until(lambda: cluster.state(task) == "running", f"{name} running")
    return task


def test_tasks_are_listed_shown_explained_moved_and_ended(admin: User, cluster: Cluster) -> None:
    task = sleeping(admin, cluster, "sleeper")
    assert task in admin.says("ps")
    assert [row["key"] for row in rows(admin, "ps", "--name", "sleeper", "--owner", "admin")] == [task]
    assert rows(admin, "ps", "--owner", "nobody") == []
    assert "sleep 300" in admin.says("show", task[:6])
    assert json.loads(admin.says("show", "sleeper", "--json"))["task"]["key"] == task
    assert "runs on" in admin.says("why", "sleeper")
    admin.run("set", "sleeper", "--priority", "9")
    assert rows(admin, "ps", "--name", "sleeper")[0]["priority"] == 9
    admin.run("pause", "sleeper")
    until(lambda: cluster.state(task) == "paused", "paused")
    admin.run("resume", "sleeper")
    until(lambda: cluster.state(task) == "running", "running again")
    admin.run("stop", "sleeper")
    until(lambda: cluster.state(task) == "ended", "ended")
    assert rows(admin, "ps", "--name", "sleeper") == []
    assert "cancelled" in admin.says("ps", "--all", "--name", "sleeper")
    again = admin.run("stop", "sleeper", code=2)
    assert b"it has ended" in again.stderr


def test_what_waits_says_what_for(admin: User, cluster: Cluster) -> None:
    task = admin.says(
        "run", "--no-code", "--detach", "--slots", "100", "--kind", "artificial", "--name", "huge", "--", "true"
    ).strip()
    until(lambda: any(row["task"] == task for row in rows(admin, "queue")), "it to wait")
    assert "too_big" in admin.says("queue")
    assert "too_big" in admin.says("show", "huge")
    admin.run("kill", "huge")
    until(lambda: cluster.state(task) == "ended", "its end")


def test_what_does_not_exist_or_is_not_clear_is_an_error_of_the_user(admin: User, cluster: Cluster) -> None:
    out = admin.run("show", "nothing-like-it", code=2)
    assert b"there is no such task" in out.stderr
    assert b"clutch ps --all" in out.stderr
    first, second = (sleeping(admin, cluster, "twin") for _ in range(2))
    out = admin.run("kill", "twin", code=2)
    assert first.encode() in out.stderr
    assert second.encode() in out.stderr
    out = admin.run("kill", first, "nothing-like-it", second, code=2)
    assert out.stdout.count(b"being ended") == 2
    stranger = User(admin.home, cluster.urls, "clutch_wrong")
    assert b"token" in stranger.run("ps", code=2).stderr


def test_output_is_searched_and_cut(admin: User) -> None:
    task = printed(admin, "printer")
    out = admin.run("logs", task)
    assert (out.stdout, out.stderr) == (b"one\nWARNING two\nlast without end\n", b"three\n")
    assert admin.says("logs", "printer", "--tail", "1", "--stream", "stdout") == "last without end\n"
    assert admin.says("logs", "printer", "--head", "1", "--stream", "stdout") == "one\n"
    assert admin.says("logs", "printer", "--search", "two") == "WARNING two\n"
    assert admin.says("logs", "printer", "--regex", "^on.$") == "one\n"
    assert admin.says("logs", "printer", "--level", "warning") == "WARNING two\n"
    assert admin.says("logs", "printer", "--until", "1h") == ""
    assert admin.says("logs", "printer", "--since", "1h", "--rank", "0", "--epoch", "1", "--head", "1") == "one\n"
    assert admin.run("logs", "printer", "--raw").stdout == b"one\nWARNING two\nlast without end"
    assert admin.says("logs", "printer", "--follow", "--stream", "stdout").startswith("one\n")
    lines = [json.loads(line) for line in admin.says("logs", "printer", "--json").splitlines()]
    assert {line["stream"] for line in lines} == {"stdout", "stderr"}
    assert b"no stream" in admin.run("logs", "printer", "--stream", "stdin", code=2).stderr


def test_output_is_followed_to_its_end(admin: User) -> None:
    admin.run("run", "--no-code", "--detach", "--name", "slow", "--", "sh", "-c", "echo a; sleep 1; echo b")
    assert admin.says("logs", "-f", "slow") == "a\nb\n"


def test_machines_are_listed_shown_drained_and_taken_back(admin: User, cluster: Cluster) -> None:
    assert {row["key"] for row in rows(admin, "agent", "list")} == {"n1", "n2"}
    assert "artificial" in admin.says("agent", "show", "n2")
    admin.run("agent", "disable", "n2", "--slots", "0-1")
    assert json.loads(admin.says("agent", "show", "n2", "--json"))["disabled"] == [0, 1]
    assert "disabled slots: 0" in admin.says("agent", "enable", "n2", "--slots", "1")
    admin.run("agent", "enable", "n2", "--slots", "0")
    admin.run("agent", "drain", "n2")
    cluster.wait_nodes("n2", state="draining")
    assert "draining" in admin.says("agent", "list")
    admin.run("agent", "enable", "n2")
    cluster.wait_nodes("n2")
    assert b"n1" in admin.run("agent", "remove", "n1", code=2).stderr


def test_pools_are_made_and_changed(admin: User) -> None:
    admin.run("pool", "put", "fast", "min_run_s=5", "policy=fair_share")
    admin.run("pool", "put", "fast", "fit=spread")
    found = json.loads(admin.says("pool", "show", "fast", "--json"))["pool"]
    assert (found["min_run_s"], found["fit"], found["policy"]["type"]) == (5.0, "spread", "fair_share")
    assert {row["pool"]["name"] for row in rows(admin, "pool", "list")} == {"default", "fast"}
    assert b"colour" in admin.run("pool", "put", "fast", "colour=blue", code=2).stderr
    admin.run("pool", "put", "other", "--file", "-", input=b'{"fit": "best"}')


def test_events_tell_what_happened_and_what_happens(admin: User) -> None:
    task = printed(admin, "eventful")
    told = [json.loads(line) for line in admin.says("events", "--task", task, "--json").splitlines()]
    kinds = [event["kind"] for event in told]
    assert kinds[0] == "task_submitted"
    assert kinds[-1] == "task_ended"
    after = str(told[0]["index"])
    child = admin.start("events", "--follow", "--json", "--kind", "task_submitted", "--after", after)
    assert child.stdout is not None
    printed(admin, "eventful-2")
    assert json.loads(child.stdout.readline())["kind"] == "task_submitted"
    child.terminate()
    finish(child)


def test_lists_are_shown_again_when_they_change(admin: User, cluster: Cluster) -> None:
    child = admin.start("ps", "--json", "--watch", "--name", "watched")
    assert child.stdout is not None
    assert json.loads(child.stdout.readline()) == []
    task = sleeping(admin, cluster, "watched")
    assert json.loads(child.stdout.readline())[0]["key"] == task
    child.send_signal(2)
    finish(child)
    assert child.returncode == 0
    admin.run("kill", task)


def test_a_narrow_terminal_gets_narrow_lists(admin: User, cluster: Cluster) -> None:
    task = sleeping(admin, cluster, "narrow")
    admin.env["COLUMNS"] = "30"
    screen = admin.terminal("ps")
    assert screen.end() == 0
    lines = screen.screen.decode().replace("\x1b[32m", "").replace("\x1b[0m", "").splitlines()
    assert max(map(len, lines)) <= 30
    assert any(line.startswith(task) and "running" in line for line in lines)
    admin.run("kill", task)


def test_the_doctor_finds_a_healthy_cluster_healthy(admin: User) -> None:
    found = json.loads(admin.says("doctor", "--json"))
    assert [each for each in found if each["verdict"] == "fail"] == []
    assert {"master", "login", "store", "P1", "P8", "agent", "clock", "canary"} <= {each["what"] for each in found}
    assert "came back as they were" in admin.says("doctor")


def test_the_doctor_says_what_is_wrong(admin: User, tmp_path: Path, cluster: Cluster) -> None:
    nobody = User(tmp_path / "elsewhere", ["http://127.0.0.1:1"], "x")
    out = nobody.run("doctor", code=1)
    assert b"no master leads" in out.stdout
    stranger = User(tmp_path / "stranger", cluster.urls, "clutch_wrong")
    assert b"fail  login" in stranger.run("doctor", code=1).stdout
    assert b"fail  canary      no pool has this name" in admin.run("doctor", "--pool", "nowhere", code=1).stdout
    lost = User(tmp_path / "lost")
    assert b"clutch up" in lost.run("doctor", code=2).stderr


def test_both_clients_of_the_sdk(admin: User, cluster: Cluster, tmp_path: Path) -> None:
    import asyncio

    from clutch import AsyncClient, Client

    (tmp_path / "script.sh").write_text("echo $1; exit 6")
    token = admin.env["CLUTCH_TOKEN"]
    with Client(cluster.urls, token) as client:
        task = client.run("sh", "script.sh", "hello", code=tmp_path, name="by-sdk")
        assert [line.text for line in task.output(follow=True)] == ["hello"]
        assert (task.wait(30).exit_code, task.exit_code) == (6, 6)
        assert "by-sdk" in {view.name for view in client.tasks(limit=5)}

    async def go() -> None:
        async with AsyncClient(cluster.urls, token) as client:
            task = await client.run("sh", "script.sh", "again", code=tmp_path)
            assert [line.text async for line in task.output(follow=True)] == ["again"]
            assert (await task.wait(30)).exit_code == 6
            assert (await client.perform(calls.get_master())).store == "sqlite"

    asyncio.run(go())
