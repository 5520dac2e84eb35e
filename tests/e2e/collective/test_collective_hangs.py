"""Processes that hang show where: every rank of them, also one whose interpreter is held by C code."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
from ranks_ground import Ranks

from clutch.runtime.silence import SILENT
from clutch.testing.cluster import until


def told(timeout_s: float, action: str) -> dict[str, str]:
    """A trial of a cluster that does not answer, which nothing here waits for."""
    trial = {"experiment": "e", "trial": 1, "no_report_timeout_s": timeout_s, "no_report_action": action}
    return {
        "CLUTCH_TASK": "e.1",
        "CLUTCH_MASTERS": "http://127.0.0.1:9",
        "CLUTCH_TOKEN": "x",
        "CLUTCH_FLUSH_WITHIN_S": "0.1",
        "CLUTCH_TRIAL": msgspec.json.encode(trial).decode(),
    }


HANG = """
def stuck_in_its_data():
    while True:
        time.sleep(0.05)
def waiting_for_the_others(run):
    run.distributed.barrier()
with clutch.init() as run:
    for step in range(3):
        run.should_stop()
    say(hangs=True)
    if RANK == 1:
        stuck_in_its_data()
    waiting_for_the_others(run)
"""


def test_every_rank_shows_where_it_hangs_and_goes_on(tmp_path: Path) -> None:
    with Ranks(HANG, 3, tmp_path, told(1.0, "dump")) as ranks:
        ranks.lines()
        for rank, name in enumerate(("waiting_for_the_others", "stuck_in_its_data", "waiting_for_the_others")):
            until(lambda rank=rank, name=name: f"in {name}" in ranks.stderr(rank), f"the stacks of rank {rank}", 20.0)  # type: ignore[misc]
            assert f"rank {rank} of 3 has called nothing of its run for 1 s" in ranks.stderr(rank)
        assert [process.poll() for process in ranks.processes] == [None] * 3


def test_every_rank_shows_where_it_hangs_and_ends_to_begin_again(tmp_path: Path) -> None:
    with Ranks(HANG, 3, tmp_path, told(1.0, "restart")) as ranks:
        ranks.lines()
        codes = ranks.wait(30.0)
        said = [ranks.stderr(rank) for rank in range(3)]
    assert codes[1] == SILENT and 0 not in codes, codes  # its end may take the others along
    assert "it is ended, to begin again from its last checkpoint" in said[1]
    for rank, name in enumerate(("waiting_for_the_others", "stuck_in_its_data", "waiting_for_the_others")):
        assert f"in {name}" in said[rank], said[rank]


def test_c_code_that_holds_the_interpreter_is_shown_and_ended(tmp_path: Path) -> None:
    text = """
    import ctypes
    def stuck_in_c():
        ctypes.PyDLL(None).sleep(120)
    with clutch.init() as run:
        run.should_stop()
        stuck_in_c()
    """
    with Ranks(text, 1, tmp_path, told(0.5, "restart")) as ranks:
        (code,) = ranks.wait(30.0)
        assert code != 0 and "in stuck_in_c" in ranks.stderr(0), (code, ranks.stderr(0))


def test_whoever_calls_something_is_not_silent(tmp_path: Path) -> None:
    """Each call of a run, and of its ranks, is a sign of life: none of these takes as long as all of them."""
    text = """
    with clutch.init() as run:
        calls = [
            lambda: run.report(1, a=1) if RANK == 0 else run.progress(0.5),
            lambda: run.validate(1, a=1, all_ranks=True),
            run.should_stop,
            lambda: run.distributed.allgather(1),
            lambda: run.progress(0.5),
        ]
        for count in range(12):
            calls[count % len(calls)]()
            time.sleep(0.2)
        say(done=True)
    """
    with Ranks(text, 2, tmp_path, told(1.5, "restart")) as ranks:
        assert ranks.lines() == [{"done": True}] * 2
        ranks.done()
        assert "has called nothing" not in ranks.stderr(0) + ranks.stderr(1)


def test_a_signal_shows_the_stacks_unless_the_script_has_its_own_use_for_it(tmp_path: Path) -> None:
    text = """
    def where_it_is():
        say(ready=True)
        heard()
    if RANK == 1:
        signal.signal(signal.SIGUSR1, lambda *_: say(own=True))
    with clutch.init() as run:
        where_it_is()
        say(went_on=True)
    """
    with Ranks(text, 2, tmp_path, told(0.0, "dump")) as ranks:
        ranks.lines()
        for rank in (0, 1):
            ranks.kill(rank, signal.SIGUSR1)
        until(lambda: "in where_it_is" in ranks.stderr(0), "the stacks", 20.0)
        assert ranks.line(1) == {"own": True}
        for rank in (0, 1):
            ranks.tell(rank)
            assert ranks.line(rank) == {"went_on": True}
        ranks.done()
        assert "where_it_is" not in ranks.stderr(1)
