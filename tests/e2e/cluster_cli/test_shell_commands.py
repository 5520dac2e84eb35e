"""``clutch shell`` and ``clutch tensorboard``: tasks that are used through the proxy, on a real cluster."""

from __future__ import annotations

import json
import os
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from terminal import User

from clutch.testing.cluster import Cluster, until

FAKE_TENSORBOARD = """#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in --port) port=$2;; --logdir) logs=$2;; esac; shift; done
cd "$logs" && exec python3 -m http.server --bind 127.0.0.1 "$port"
"""


def test_a_shell_runs_there_and_its_exit_code_comes_back(admin: User, cluster: Cluster) -> None:
    admin.env["COLUMNS"], admin.env["LINES"] = "91", "17"
    screen = admin.terminal("shell", "--name", "mine", "--", "sh")
    screen.until("$" if os.getuid() else "#")
    screen.type("stty size; echo on-$CLUTCH_NODE\n")
    screen.until("17 91")
    screen.until("on-n")
    # It says so itself once it listens: a shell may lose an interrupt in the moment in which it starts a command.
    screen.type('sh -c \'trap "echo cau""ght; exit" INT; echo a""sleep; while :; do sleep 1; done\'\n')
    screen.until("asleep")
    screen.type("\x03")  # goes there, not here
    screen.until("caught")
    screen.type("echo still-$((40+2))\n")
    screen.until("still-42")
    screen.type("exit 7\n")
    assert screen.end() == 7
    until(lambda: cluster.state("mine") == "ended", "its task to end")


def test_who_leaves_finds_everything_as_it_was(admin: User, cluster: Cluster) -> None:
    screen = admin.terminal("shell", "--name", "kept", "--", "sh")
    screen.type("secret_word=open-sesame; echo rea''dy\n")
    screen.until("ready")
    screen.type("\x1d")
    assert screen.end() == 0
    assert cluster.state("kept") == "running"
    again = admin.terminal("shell", "--task", "kept")
    again.until("ready")  # the last screenful
    again.type("echo word-$secret_word\n")
    again.until("word-open-sesame")
    again.type("exit\n")
    assert again.end() == 0
    admin.run("kill", "kept")


def test_a_shell_may_be_fed_by_a_pipe(admin: User) -> None:
    out = admin.run("shell", "--", "sh", input=b"echo from-$((1+1))\nexit 3\n", code=3)
    assert b"from-2" in out.stdout


def test_a_task_without_a_terminal_says_so(admin: User, cluster: Cluster) -> None:
    admin.run("run", "--no-code", "--detach", "--name", "plain", "--", "sleep", "100")
    until(lambda: cluster.state("plain") == "running", "it to run")
    assert b"exposes no port" in admin.run("shell", "--task", "plain", code=2).stderr
    admin.run("kill", "plain")
    until(lambda: cluster.state("plain") == "ended", "its end")
    assert b"has ended" in admin.run("shell", "--task", "plain", code=2).stderr


def test_tensorboard_opens_in_a_browser_with_the_printed_address(admin: User, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "tensorboard"
    program.parent.mkdir()
    program.write_text(FAKE_TENSORBOARD)
    program.chmod(0o755)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events.txt").write_text("the curve")
    path = f"PATH={program.parent}:{os.environ['PATH']}"
    said = json.loads(admin.says("tensorboard", str(tmp_path / "logs"), "--env", path, "--json"))
    browser = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
    )

    def page() -> bytes:
        try:
            with browser.open(said["url"], timeout=30) as answer:
                return bytes(answer.read())
        except OSError:  # it does not listen yet
            return b""

    assert b"events.txt" in until(page, "its page")
    where = said["url"].partition("?")[0]
    with browser.open(f"{where}events.txt", timeout=30) as answer:
        assert answer.read() == b"the curve"
    admin.run("kill", said["task"])


@pytest.mark.slow
def test_a_shell_outlives_its_master(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start()
        cluster.add_agent("n1")
        cluster.wait_nodes("n1")
        token = (cluster.folder / "master0" / "local.token").read_text().strip()
        screen = User(tmp_path / "home", cluster.urls, token).terminal("shell", "--", "sh")
        screen.type("word=kept; echo rea''dy\n")
        screen.until("ready")
        cluster.masters[0].kill()
        cluster.masters[0].start()
        screen.until("ready", 2)  # shown again when it is back
        screen.type("echo still-$word\n")
        screen.until("still-kept")
        screen.type("exit 4\n")
        assert screen.end() == 4
