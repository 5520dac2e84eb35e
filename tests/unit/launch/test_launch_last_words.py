"""Last words: how they are written and read, what an agent makes of them, and which rank of a member is the cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.agent.boot import explained
from clutch.agent.last_words import as_told
from clutch.agent.launch import LAST_WORDS
from clutch.runtime.launch.base import supervisor_words
from clutch.runtime.launch.ends import REASON_MAX, End
from clutch.wire.last_words import FAILED, PEER_FAILED, PEER_LOST, PEER_LOST_CODE, Words, spoken, understood
from clutch.wire.messages import Exit, ExitCause

LOST = "rank 2: it died"


@given(st.sampled_from([FAILED, PEER_LOST, PEER_FAILED]), st.integers(-64, 255), st.text())
def test_what_was_said_is_understood(what: str, code: int, text: str) -> None:
    assert understood(spoken(what, code, text)) == Words(what, code, text)


@given(st.text())
def test_anything_else_is_text(text: str) -> None:
    found = understood(text)
    assert found.text == text if not found.what else text.startswith(found.what)
    assert understood(f"boot: {text}") == Words("", 0, f"boot: {text}")


def test_an_end_that_follows_names_the_peer() -> None:
    end = End("rank 0", 1, ["Traceback"], spoken(PEER_LOST, 121, LOST))
    assert end.follows and end.sentence() == end.paragraph() == "rank 0 lost rank 2: it died"
    assert end.last_words() == "peer_lost 1: rank 0 lost rank 2: it died"
    own = End("rank 0", 1, ["boom"], "anything that a program wrote there")
    assert not own.follows and own.last_words() == "failed 1: rank 0 exited with code 1; its last lines: boom"
    assert len(End("rank 0", 1, [], spoken(PEER_LOST, 1, "x" * 1000)).sentence()) == REASON_MAX


@pytest.mark.parametrize(
    ("exit", "said", "expected"),
    [
        (Exit(1), "peer_lost 1: rank 0 lost rank 2", Exit(1, ExitCause.PEER_LOST, reason="rank 0 lost rank 2")),
        (Exit(1), "peer_failed 121: rank 0 lost rank 2", Exit(1, ExitCause.PEER_FAILED, reason="rank 0 lost rank 2")),
        (Exit(7), "failed 7: rank 3 exited with code 7", Exit(7, reason="rank 3 exited with code 7")),
        (Exit(-9, ExitCause.ENDED), "failed -11: rank 3 died", Exit(-11, ExitCause.OWN, reason="rank 3 died")),
        (Exit(-9, ExitCause.ENDED), "peer_lost 1: it was", Exit(1, ExitCause.PEER_LOST, reason="it was")),
        (Exit(-9, ExitCause.ENDED), "", Exit(-9, ExitCause.ENDED)),
        (Exit(-9, ExitCause.ENDED), "boot: no master", Exit(-9, ExitCause.ENDED)),
        (Exit(-9, ExitCause.OUT_OF_MEMORY), "peer_lost 1: x", Exit(-9, ExitCause.OUT_OF_MEMORY, reason="x")),
        (Exit(121), "", Exit(121)),
    ],
)
def test_what_the_agent_makes_of_it(exit: Exit, said: str, expected: Exit) -> None:
    assert as_told(exit, said) == expected


@pytest.mark.parametrize("over_them", ["", "peer_failed 1: rank 2 lost rank 3: it failed: ValueError"])
def test_a_rank_that_failed_is_heard_though_its_member_was_ended_before_it_had_exited(
    tmp_path: Path, over_them: str
) -> None:
    if over_them:
        (tmp_path / LAST_WORDS).write_text(over_them)
    (tmp_path / f"{LAST_WORDS}.2").write_text("peer_failed 121: rank 3: it failed: ValueError")
    (tmp_path / f"{LAST_WORDS}.3").write_text("failed 1: rank 3 failed: ValueError: no")
    ended = Exit(-9, ExitCause.ENDED)
    assert explained(ended, tmp_path) == Exit(1, ExitCause.OWN, reason="rank 3 failed: ValueError: no")
    (tmp_path / LAST_WORDS).write_text("failed 1: rank 3 exited with code 1; its last lines: no")
    assert explained(Exit(1), tmp_path).reason == "rank 3 exited with code 1; its last lines: no", "who knows more"
    assert explained(Exit(0), tmp_path) == Exit(0)


RANK = """
import os, sys, time
rank = int(os.environ["RANK"])
def lost():
    with open(os.environ["CLUTCH_LAST_WORDS"], "w") as file:
        file.write("peer_lost 121: rank 1: it died")
"""


def supervised(tmp_path: Path, text: str, count: int = 2) -> tuple[int, str]:
    """The exit code of the process over these ranks, and its last words."""
    words = tmp_path / "words"
    argv = [*supervisor_words("ranks", {"first": "0", "count": str(count), "grace": "1"})]
    done = subprocess.run(
        [*argv, sys.executable, "-c", RANK + text],
        env={**os.environ, "CLUTCH_LAST_WORDS": str(words)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    return done.returncode, words.read_text() if words.exists() else ""


def test_the_rank_that_failed_is_the_cause_though_its_victim_ended_first(tmp_path: Path) -> None:
    text = """
if rank == 0:
    lost()
    sys.exit(1)
while not os.path.exists(os.environ["CLUTCH_LAST_WORDS"].replace("words.1", "words")):
    time.sleep(0.01)  # until the victim has been heard of
print("boom", flush=True)
sys.exit(7)
"""
    code, said = supervised(tmp_path, text)
    assert (code, said) == (7, "failed 7: rank 1 exited with code 7; its last lines: boom")


def test_who_is_ended_because_of_a_victim_is_not_the_cause(tmp_path: Path) -> None:
    text = """
if rank == 0:
    lost()
    sys.exit(PEER)
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
while True:
    time.sleep(0.05)
""".replace("PEER", str(PEER_LOST_CODE))
    code, said = supervised(tmp_path, text)
    assert (code, said) == (PEER_LOST_CODE, "peer_lost 121: rank 0 lost rank 1: it died")


def test_words_are_there_before_the_last_rank_is_gone(tmp_path: Path) -> None:
    text = """
import signal
from pathlib import Path
folder = Path(os.environ["CLUTCH_LAST_WORDS"]).parent
if rank == 0:
    while not (folder / "deaf").exists():
        time.sleep(0.01)
    sys.exit(7)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / "deaf").touch()
while not (folder / "words").exists():
    time.sleep(0.01)
os.kill(os.getppid(), signal.SIGKILL)  # as the agent ends a member
"""
    code, said = supervised(tmp_path, text)
    assert code == -9 and understood(said) == Words(FAILED, 7, "rank 0 exited with code 7")
