"""Runs whose master is killed with -9, is away for long, or has replaced them: what was reported is what is stored."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest
from runtime_ground import RunMaster, Script, until

from clutch.runtime.info import read_info
from clutch.runtime.opening import spool_name

REPORTING = """
import sys, time, clutch
with clutch.init() as run:
    slowest = 0.0
    for step in range(2_000):
        began = time.perf_counter()
        run.report(step, loss=float(step), more=step * 2)
        slowest = max(slowest, time.perf_counter() - began)
        if step % 100 == 99:
            run.validate(step, accuracy=step / 2_000)
            print(step, flush=True)
            time.sleep(0.1)
    assert not run.should_stop()
print("slowest", slowest, flush=True)
"""


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_is_reported_is_stored_once_though_its_master_is_killed(
    master: RunMaster, tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    member = master.do("submit", "work")
    script = Script(REPORTING, master.environment(member, tmp_path / "tmp"), tmp_path)
    kills = 0
    while not (line := script.line()).startswith("slowest"):
        assert line, script.stderr
        if kills < 4 and rng.random() < 0.35:
            time.sleep(rng.random() * 0.05)  # not always at the same moment of a call
            master.kill()
            kills += 1
            if rng.random() < 0.5:
                script.line()  # it goes on without a master
            master.start()
    assert kills >= 2, "the fault that was planned did not happen"
    assert script.wait() == 0, script.stderr
    assert master.values("work", "training", "loss") == [(step, float(step)) for step in range(2_000)]
    assert master.values("work", "training", "more") == [(step, step * 2) for step in range(2_000)]
    expected = [(step, step / 2_000) for step in range(99, 2_000, 100)]
    assert master.values("work", "validation", "accuracy") == expected


def test_a_checkpoint_waits_for_its_master(master: RunMaster, tmp_path: Path) -> None:
    member = master.do("submit", "work")
    text = """
    import clutch
    with clutch.init() as run:
        print("begun", flush=True)
        input()
        with run.checkpoint(7) as path:
            (path / "w").write_text("x")
            print("written", flush=True)
        print("saved", run.latest_checkpoint, flush=True)
    """
    script = Script(text, master.environment(member, tmp_path / "tmp"), tmp_path)
    assert script.line() == "begun"
    master.kill()
    script.tell()
    assert script.line() == "written"
    master.start()
    saved = script.line().split()
    assert saved[0] == "saved" and script.wait() == 0, script.stderr
    assert master.do("member", "work")["CLUTCH_CHECKPOINT"] == saved[1]


def test_without_a_master_a_run_ends_in_time_and_the_next_one_ships_what_it_left(
    master: RunMaster, tmp_path: Path
) -> None:
    environment = {**master.environment(master.do("submit", "work"), tmp_path / "tmp"), "CLUTCH_FLUSH_WITHIN_S": "1.5"}
    text = """
    import clutch
    with clutch.init() as run:
        print("begun", flush=True)
        input()
        for step in range(500):
            run.report(step, loss=1.0)
        assert run.validate(500, accuracy=0.5)
    """
    script = Script(text, environment, tmp_path)
    assert script.line() == "begun"
    master.kill()
    began = time.monotonic()
    script.tell()
    assert script.wait() == 0, "a master that is away is no failure of the work"
    assert 1.4 < time.monotonic() - began < 15
    spool = tmp_path / "tmp" / spool_name(read_info(environment))
    assert f"no master took the last 501 points in time; they are left in {spool}" in script.stderr
    assert (spool / "spool.jsonl").stat().st_size > 0

    master.start()
    script = Script("import clutch\nwith clutch.init() as run: run.report(501, loss=2.0)\n", environment, tmp_path)
    assert script.wait() == 0 and script.stderr == ""
    assert master.values("work", "training", "loss") == [*((step, 1.0) for step in range(500)), (501, 2.0)]
    assert master.values("work", "validation", "accuracy") == [(500, 0.5)]
    assert (spool / "spool.jsonl").stat().st_size == 0


def test_a_script_that_is_killed_leaves_only_whole_batches(master: RunMaster, tmp_path: Path) -> None:
    """The next process of the incarnation goes on with the numbers, wherever the first one was."""
    environment = master.environment(master.do("submit", "work"), tmp_path / "tmp")

    def shown(task: str, step: int) -> list[float]:
        return [value for at, value in master.values(task, "training", "loss") if at == step]

    text = """
    import clutch, time
    run = clutch.init()
    step = 0
    while True:
        run.report(step, loss=float(step))
        if step % 50 == 0:
            run.validate(step, accuracy=0.5)
            time.sleep(0.001)
        step += 1
    """
    for stored in (1, 2, 3):
        script = Script(text, environment, tmp_path)
        until(lambda: len(shown("work", 0)) == stored, "this one's first point is stored")  # noqa: B023
        script.kill()
    done = "import clutch\nwith clutch.init() as run: run.report(1_000_000_000, loss=-1.0)\n"
    script = Script(done, environment, tmp_path)
    assert script.wait() == 0 and script.stderr == ""
    found = master.values("work", "training", "loss")
    assert found[-1] == (1_000_000_000, -1.0)
    assert all(step == value for step, value in found[:-1]) and len(found) >= 150


def test_an_incarnation_that_was_replaced_is_told_to_stop(master: RunMaster, tmp_path: Path) -> None:
    environment = master.environment(master.do("submit", "work"), tmp_path / "tmp")
    text = """
    import clutch, time
    with clutch.init() as run:
        run.report(1, loss=1.0)
        print("begun", flush=True)
        while not run.should_stop():
            time.sleep(0.01)
        run.report(2, loss=2.0)
        print(run.stop_reason, run.validate(3, accuracy=1.0), flush=True)
    """
    script = Script(text, environment, tmp_path)
    assert script.line() == "begun"
    until(lambda: master.values("work", "training", "loss"), "it is heard")
    master.do("exit", "work", 1)  # as its agent sees it, it has ended; it starts again elsewhere
    until(lambda: master.do("state", "work")["epoch"] == 2, "another one runs")
    assert script.line() == "replaced False"
    began = time.monotonic()
    assert script.wait() == 0
    assert time.monotonic() - began < 10, "nobody waits for reports that do not count"
    assert master.values("work", "training", "loss") == [(1, 1.0)]
