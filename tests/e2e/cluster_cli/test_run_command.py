"""``clutch run`` against a real cluster: bytes, exit codes, code, Ctrl-C, and a master that is killed meanwhile."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import User, finish

from clutch.sdk import calls
from clutch.testing.cluster import Cluster, until

TICKER = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.02; done; exit 5"


def ended(cluster: Cluster, name: str) -> str:
    """How the task of this name ended, or empty."""
    found = cluster.client.perform(calls.list_tasks(name=name)).items
    return found[0].reason if found else ""


def test_output_goes_where_it_belongs_and_the_exit_code_is_the_commands_own(admin: User) -> None:
    out = admin.run("run", "--no-code", "--", "sh", "-c", "echo out; echo err >&2; exit 3", code=3)
    assert (out.stdout, out.stderr) == (b"out\n", b"err\n")


def test_a_signal_is_128_and_its_number(admin: User) -> None:
    admin.run("run", "--no-code", "--", "sh", "-c", "kill -9 $$", code=137)


@pytest.mark.parametrize("seed", range(3))
def test_any_bytes_come_through_a_pipe_as_they_are(admin: User, seed: int, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    data = (os.urandom(70_000) + b"\r\n a\rb \xff\n" * 50 + bytes(range(256)) + b"no newline at the end",
            "größe\n".encode() * 30_000, b"\n\n\r\n" + b"x" * 100_000)[seed]  # fmt: skip
    (work / "data").write_bytes(data)
    out = admin.run("run", "--code", str(work), "--", "cat", "data")
    assert out.stdout == data


def test_the_working_directory_goes_along_once_without_what_is_ignored(admin: User, cluster: Cluster) -> None:
    work = admin.home / "work"
    (work / "sub").mkdir(parents=True)
    (work / "main.sh").write_text("#!/bin/sh\ncat sub/part\nls -a . sub\necho here > made\n")
    (work / "main.sh").chmod(0o755)
    (work / "sub" / "part").write_text(os.urandom(8).hex() + "\n")
    (work / "big.bin").write_text("x")
    (work / ".clutchignore").write_text("*.bin\n")
    said = admin.run("run", "--", "./main.sh", cwd=work).stdout.decode()
    assert (work / "sub" / "part").read_text() in said
    assert "big.bin" not in said
    assert not (work / "made").exists()
    before = len(list(cluster.client.items(_uploads())))
    admin.run("run", "--", "./main.sh", cwd=work)
    assert len(list(cluster.client.items(_uploads()))) == before > 0


def _uploads():  # type: ignore[no-untyped-def]
    from clutch.sdk import access_calls

    return access_calls.list_audit(action="put_code", limit=1000)


def test_what_is_left_out_and_what_is_too_large_is_said(admin: User) -> None:
    work = admin.home / "work"
    work.mkdir()
    (work / "out").symlink_to("/etc/passwd")
    out = admin.run("run", "--code", str(work), "--", "true")
    assert b"not uploaded: out (a link to /etc/passwd, outside the folder)" in out.stderr
    bad = admin.run("run", "--code", str(work / "nowhere"), "--", "true", code=2)
    assert b"there is no such folder" in bad.stderr


def test_environment_and_options_reach_the_task(admin: User, cluster: Cluster) -> None:
    command = ["sh", "-c", "echo $GREETING; echo $CLUTCH_ROLE $CLUTCH_RANK"]
    options = ["--env", "GREETING=hello there", "--name", "greeter", "--slots", "1"]  # of the kind that the pool has
    out = admin.run("run", "--no-code", *options, "--cpus", "0.5", "--memory", "64M", "--priority", "7", "--", *command)
    assert out.stdout == b"hello there\nmain 0\n"
    task = cluster.client.perform(calls.get_task("greeter"))
    assert task.task.priority == 7
    assert task.program is not None
    assert task.program.environment == {"GREETING": "hello there"}


def test_a_python_file_of_the_folder_needs_no_word_before_it(admin: User, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("import sys; print('hello', *sys.argv[1:])")
    assert admin.run("run", "--code", str(tmp_path), "hello.py", "you").stdout == b"hello you\n"
    bad = admin.run("run", "--code", str(tmp_path), "--search", "a=int(1,2)", "other.py", code=2)
    assert b"other.py: there is no such file in" in bad.stderr


def test_what_a_program_reports_is_drawn_and_written(admin: User, tmp_path: Path) -> None:
    program = "import clutch\nwith clutch.init() as run:\n    for n in range(1, 6): run.report(n, loss=1 / n)\n"
    (tmp_path / "train.py").write_text(program)
    admin.run("run", "--code", str(tmp_path), "--name", "reporter", "--", "train.py")
    assert "training/loss" in admin.says("metrics", "reporter")
    (series,) = json.loads(admin.says("metrics", "reporter", "--name", "loss", "--json"))
    assert [(point["step"], point["value"]) for point in series["points"]] == [(n, 1 / n) for n in range(1, 6)]
    admin.run("metrics", "reporter", "--output", str(tmp_path / "all.csv"))
    with (tmp_path / "all.csv").open() as file:
        assert [int(point["step"]) for point in csv.DictReader(file)] == [1, 2, 3, 4, 5]
    assert "reported nothing" in admin.says("metrics", "reporter", "--group", "validation")
    assert b"Say --output" in admin.run("metrics", "reporter", "--tensorboard", code=2).stderr


def test_several_members_are_told_apart(admin: User) -> None:
    out = admin.run("run", "--no-code", "--count", "2", "--", "sh", "-c", "echo I am $CLUTCH_RANK")
    assert sorted(out.stdout.splitlines()) == [b"main.0 | I am 0", b"main.1 | I am 1"]


def test_detached_it_prints_its_id_and_goes_on(admin: User, cluster: Cluster) -> None:
    task = admin.says("run", "--no-code", "--detach", "--", "sleep", "100").strip()
    assert cluster.state(task) in ("queued", "running")
    admin.run("kill", task)
    until(lambda: cluster.state(task) == "ended", "the end")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_terminal_a_signal_cancels(admin: User, cluster: Cluster, number: int) -> None:
    name = f"interrupted-{number}"
    waits = "import time; print('up', flush=True); time.sleep(100)"  # a shell may miss a signal while it starts one
    child = admin.start("run", "--no-code", "--name", name, "--", sys.executable, "-c", waits)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    child.send_signal(number)
    _, said = finish(child)
    assert child.returncode == 143, said
    assert ended(cluster, name) == "cancelled"


def test_a_program_may_save_itself_when_it_is_cancelled(admin: User) -> None:
    saves = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(4)))
print('up', flush=True)
time.sleep(100)
"""  # no shell: one may miss a signal while it starts a process
    child = admin.start("run", "--no-code", "--", sys.executable, "-c", saves)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    child.send_signal(signal.SIGINT)
    out, said = finish(child)
    assert (out, child.returncode) == (b"saved\n", 4), said


def test_ctrl_c_asks_and_detaches(admin: User, cluster: Cluster) -> None:
    ticking = "while :; do echo tick; sleep 0.1; done"
    screen = admin.terminal("run", "--no-code", "--name", "left", "--", "sh", "-c", ticking)
    screen.until("tick")
    screen.type("\x03")
    screen.until("[d]etach")
    ticks = screen.screen.count(b"tick")
    screen.type("\n")
    screen.until("tick", ticks + 1)  # it went on
    screen.type("\x03")
    screen.until("[d]etach", 2)
    screen.type("d\n")
    assert screen.end() == 0
    assert cluster.state("left") == "running"
    admin.run("kill", "left")


def test_ctrl_c_twice_cancels_and_again_kills(admin: User, cluster: Cluster) -> None:
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    screen = admin.terminal("run", "--no-code", "--name", "stubborn", "--", "sh", "-c", stubborn)
    screen.until("up")
    screen.type("\x03")
    screen.until("[d]etach")
    screen.type("\x03")
    screen.until("is asked to leave")
    screen.type("\x03")
    screen.until("is being killed")
    assert screen.end() == 137
    assert ended(cluster, "stubborn") in ("killed", "cancelled")


def test_ctrl_c_and_k_kills(admin: User, cluster: Cluster) -> None:
    screen = admin.terminal("run", "--no-code", "--name", "gone", "--", "sh", "-c", "echo up; exec sleep 100")
    screen.until("up")
    screen.type("\x03")
    screen.until("[d]etach")
    screen.type("k\n")
    assert screen.end() == 137
    assert ended(cluster, "gone") == "killed"


def test_lines_without_an_end_are_shown_at_once(admin: User) -> None:
    screen = admin.terminal(
        "run", "--no-code", "--", "sh", "-c", "printf 'loading '; sleep 1; printf 'done'; exec sleep 100"
    )
    screen.until("loading ")
    screen.until("loading done")
    screen.type("\x03")
    screen.until("[d]etach")
    screen.type("k\n")
    assert screen.end() == 137
    assert screen.screen.count(b"loading") == 1


def test_who_closes_the_pipe_ends_the_task(admin: User, cluster: Cluster) -> None:
    child = admin.start("run", "--no-code", "--name", "piped", "--", "sh", "-c", "while :; do echo y; sleep 0.05; done")
    assert child.stdout is not None
    assert child.stdout.readline() == b"y\n"
    child.stdout.close()
    assert child.wait(60) == 141
    assert child.stderr is not None
    child.stderr.close()
    until(lambda: ended(cluster, "piped") == "cancelled", "its end")


def test_a_master_that_is_killed_meanwhile_costs_no_line(tmp_path: Path) -> None:
    """kill -9 in the middle of a stream, and a new master on the same folder: each line once, its exit code."""
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start()
        cluster.add_agent("n1")
        cluster.wait_nodes("n1")
        token = (cluster.folder / "master0" / "local.token").read_text().strip()
        child = User(tmp_path / "home", cluster.urls, token).start("run", "--no-code", "--", "sh", "-c", TICKER)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(30)]
        cluster.masters[0].kill()
        cluster.masters[0].start()
        rest, said = finish(child)
        assert b"".join(lines) + rest == b"".join(b"line %d\n" % n for n in range(300)), said
        assert child.returncode == 5


def test_a_command_needs_a_command(admin: User) -> None:
    out = subprocess.run(admin.argv("run"), env=admin.env, capture_output=True, check=False, timeout=60)
    assert out.returncode == 2


def test_somebody_who_waits_is_told_what_for(admin: User, cluster: Cluster) -> None:
    words = ["run", "--no-code", "--name", "patient", "--slots", "100", "--kind", "artificial", "--", "true"]
    screen = admin.terminal(*words)
    screen.until("waits: too_big")
    screen.type("\x03")
    screen.until("[d]etach")
    screen.type("c\n")
    assert screen.end() == 1
    assert b"ended without an exit code" in screen.screen
    assert ended(cluster, "patient") == "cancelled"
