"""Shipping: in order, again after a lost answer, past what is refused, and never at the cost of the one who reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from clutch.runtime.reporting import Reporter
from clutch.runtime.shipping import Shipper
from clutch.runtime.spool import Spool
from clutch.wire.errors import BadRequest, Conflict, Stale, Unavailable
from clutch.wire.metrics import MetricBatch

T = TypeVar("T")


def until(look: Callable[[], T], within_s: float = 20.0) -> T:
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


class StoreVoice:
    """Keeps batches as the metrics lane does: each number once, in order."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.reached = 0
        self.fractions: list[float] = []
        self.failures: list[Exception] = []
        """Raised one by one, after the batches were stored: the answer was lost."""
        self.refuses_step = -1
        self.aborted = False
        self.gate = threading.Event()
        self.gate.set()

    def metric_lines(self, batches: list[bytes]) -> int:
        self.gate.wait()
        if self.aborted:
            raise Unavailable("this connection was closed")
        for line in batches:
            batch = msgspec.json.decode(line, type=MetricBatch)
            if any(point.step == self.refuses_step for point in batch.points):
                raise BadRequest("a point that is not wanted")
            if batch.sequence <= self.reached:
                continue
            if batch.sequence != self.reached + 1:
                raise Conflict(f"batch {batch.sequence} came, batch {self.reached + 1} is missing")
            self.steps += [point.step for point in batch.points]
            self.reached = batch.sequence
        if self.failures and batches:
            raise self.failures.pop(0)
        return self.reached

    def progress(self, fraction: float, message: str = "") -> None:
        self.fractions.append(fraction)

    def close(self) -> None:
        return

    def abort(self) -> None:
        self.aborted = True
        self.gate.set()


class Ground:
    def __init__(self, folder: Path) -> None:
        self.voice = StoreVoice()
        self.said: list[str] = []
        self.over = threading.Event()
        self.folder = folder
        self.reporter = Reporter(
            lambda: Shipper(lambda: self.voice, lambda: Spool(folder), self.over.set, self.said.append)
        )

    def report(self, step: int, group: str = "training") -> None:
        self.reporter.report(group, step, {"loss": 1.0})


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    one = Ground(tmp_path / "spool")
    yield one
    one.voice.gate.set()
    one.reporter.close(5.0)


def test_everything_arrives_in_order(ground: Ground) -> None:
    for step in range(10_000):
        ground.report(step)
    ground.reporter.progress(0.5, "half")
    ground.reporter.close(20.0)
    assert ground.voice.steps == list(range(10_000)) and ground.voice.fractions == [0.5] and ground.said == []


def test_a_lost_answer_stores_nothing_twice(ground: Ground) -> None:
    ground.voice.failures = [Unavailable("gone") for _ in range(3)]
    for step in range(3_000):
        ground.report(step)
    assert ground.reporter.flush(20.0)
    assert ground.voice.steps == list(range(3_000)) and not ground.voice.failures


def test_an_answer_that_is_none_of_ours_is_waited_out(ground: Ground) -> None:
    ground.voice.failures = [ValueError("<html>"), OSError("broken")]
    ground.report(1, "validation")
    assert ground.reporter.flush(20.0) and ground.voice.steps == [1] and not ground.voice.failures


def test_flush_waits_for_what_was_reported_before_it(ground: Ground) -> None:
    for step in range(50):
        ground.report(step, "validation")
        assert ground.reporter.flush(20.0) and ground.voice.steps[-1] == step


def test_what_is_refused_for_itself_is_given_up_and_said(ground: Ground) -> None:
    ground.voice.refuses_step = 1
    ground.report(1, "validation")
    ground.reporter.flush(0.1)
    ground.report(2, "validation")
    ground.reporter.flush(0.1)
    ground.report(3, "validation")
    assert ground.reporter.flush(30.0)
    assert ground.voice.steps == [2, 3]
    assert ground.said == ["the master refused 1 points: a point that is not wanted."]


def test_a_store_that_has_other_numbers_is_followed(ground: Ground) -> None:
    ground.voice.reached = 40  # somebody of this incarnation reported before, and its folder is lost
    ground.report(1, "validation")
    assert ground.reporter.flush(20.0) and ground.voice.steps == [1] and ground.voice.reached == 41
    ground.voice.reached = 3  # restored from a backup
    ground.report(2, "validation")
    assert ground.reporter.flush(20.0) and ground.voice.steps == [1, 2] and ground.voice.reached == 4
    assert ground.said == []


def test_the_end_of_an_incarnation_ends_the_shipping(ground: Ground) -> None:
    ground.voice.failures = [Stale("replaced")]
    ground.report(1, "validation")
    assert ground.over.wait(20)
    ground.report(2)
    began = time.monotonic()
    ground.reporter.close(30.0)
    assert time.monotonic() - began < 10 and ground.voice.steps == [1] and ground.said == []


def test_a_master_that_hangs_does_not_hold_up_reports(ground: Ground) -> None:
    ground.voice.gate.clear()
    ground.report(0, "validation")
    began = time.monotonic()
    for step in range(1, 20_000):
        ground.report(step)
    assert time.monotonic() - began < 5, "about the time of the appends"
    until(lambda: (ground.folder / "spool.jsonl").stat().st_size > 500_000)
    ground.voice.gate.set()
    assert ground.reporter.flush(20.0)
    assert ground.voice.steps == list(range(20_000))


def test_what_no_master_takes_is_left_and_said(ground: Ground) -> None:
    ground.voice.gate.clear()
    ground.report(1)
    ground.report(2, "validation")
    ground.reporter.close(0.2)
    assert ground.said == [f"no master took the last 2 points in time; they are left in {ground.folder}"]
    spool = Spool(ground.folder)
    assert spool.waiting_points == 2 and spool.last >= 1
    spool.close()


def test_what_has_settled_is_on_disk_while_no_master_answers(ground: Ground) -> None:
    """A run that is killed behind a checkpoint has lost no report from before it."""
    ground.voice.gate.clear()
    for step in range(700):
        ground.report(step)
        if step % 100 == 99:
            ground.reporter.settle(10.0)
            spooled = [
                point.step
                for line in (ground.folder / "spool.jsonl").read_bytes().splitlines()
                for point in msgspec.json.decode(line, type=MetricBatch).points
            ]
            assert spooled == list(range(step + 1))


def test_the_loop_does_not_wait_for_a_thread_that_is_stuck(ground: Ground) -> None:
    """Reports are bounded in memory: beyond it training points are counted and dropped, validations are not."""
    from clutch.runtime import reporting

    class Stuck:
        def take(self, points: object) -> None:
            ground.voice.gate.wait()

        def progress(self, fraction: float, message: str) -> None:
            return

        def flush(self, within_s: float) -> bool:
            return True

        def close(self, within_s: float) -> None:
            return

    ground.voice.gate.clear()
    reporter = Reporter(Stuck)
    for step in range(reporting.PENDING_MAX + 5_000):
        reporter.report("training", step, {"a": 1})
    reporter.report("validation", 1, {"a": 1})
    assert 0 < reporter.dropped <= 5_000 and len(reporter._pending) <= reporting.PENDING_MAX + 1
    assert reporter._pending[-1][0] == "validation"
    ground.voice.gate.set()
    reporter.close(1.0)
    assert not reporter._pending
