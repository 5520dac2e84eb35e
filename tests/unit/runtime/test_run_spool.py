"""The spool: numbers stay, validations stay, and a process that comes later goes on."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from clutch.runtime.spool import BATCH_POINTS, SPOOL, Point, Spool
from clutch.wire.errors import Conflict
from clutch.wire.metrics import MetricBatch


def points(first: int, count: int, group: str = "training") -> list[Point]:
    return [(group, step, {"loss": float(step)}, 1.0) for step in range(first, first + count)]


def batches(spool: Spool) -> list[MetricBatch]:
    return [msgspec.json.decode(line, type=MetricBatch) for _, line in spool.take(1 << 30)]


class SpoolMachine(RuleBasedStateMachine):
    """Against a model that keeps every point of every number."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.spool = Spool(Path(self._folder.name) / "s", max_bytes=20_000)
        self.model: dict[int, list[tuple[str, int]]] = {}
        self.acknowledged = 0
        self.step = 0

    @rule(count=st.integers(1, 60), group=st.sampled_from(["training", "validation", "system/cpu"]))
    def put(self, count: int, group: str) -> None:
        self.spool.put(points(self.step, count, group))
        self.model[self.spool.last] = [(group, step) for step in range(self.step, self.step + count)]
        self.step += count

    @rule(bytes_max=st.integers(1, 5_000), lost=st.booleans())
    def ship(self, bytes_max: int, lost: bool) -> None:
        """A lost answer: the store has them and we do not know."""
        found = self.spool.take(bytes_max)
        if found and not lost:
            self.acknowledged = found[-1][0]
            self.spool.acknowledge(self.acknowledged)

    @rule(torn=st.booleans())
    def restart(self, torn: bool) -> None:
        path = self.spool.folder
        self.spool.close()
        if torn:
            with (path / SPOOL).open("ab") as file:
                file.write(b'{"sequence":99999,"points":[{"gro')
        thinned = self.spool.thinned
        self.spool = Spool(path, max_bytes=20_000)
        self.spool.thinned = thinned

    @invariant()
    def numbers_follow_each_other_and_no_validation_is_lost(self) -> None:
        found = batches(self.spool)
        assert [batch.sequence for batch in found] == list(range(self.acknowledged + 1, self.spool.last + 1))
        missing = 0
        for batch in found:
            kept = [(point.group, point.step) for point in batch.points]
            known = self.model[batch.sequence]
            assert [p for p in known if p in set(kept)] == kept
            assert [p for p in kept if p[0] == "validation"] == [p for p in known if p[0] == "validation"]
            missing += len(known) - len(kept)
        assert missing <= self.spool.thinned

    def teardown(self) -> None:
        self.spool.close()
        self._folder.cleanup()


TestSpool = SpoolMachine.TestCase
TestSpool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_full_spool_thins_the_oldest_and_keeps_validations(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=100_000)
    for round in range(40):
        spool.put([*points(round * 100, 100), *points(round, 1, "validation")])
    found = batches(spool)
    steps = [p.step for b in found for p in b.points if p.group == "training"]
    assert sum(entry.size for entry in spool._entries) <= 100_000
    assert os.path.getsize(tmp_path / "s" / SPOOL) <= 110_000  # noqa: PTH202
    assert [p.step for b in found for p in b.points if p.group == "validation"] == list(range(40))
    assert spool.thinned == 4_000 - len(steps) > 0
    assert steps[-100:] == list(range(3_900, 4_000)), "the newest are whole"
    assert any(step < 400 for step in steps), "the oldest are fewer, not gone"
    assert spool.waiting_points == len(steps) + 40
    spool.close()


def test_many_points_are_several_batches(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.put(points(0, BATCH_POINTS * 2 + 1))
    assert [len(batch.points) for batch in batches(spool)] == [BATCH_POINTS, BATCH_POINTS, 1]
    spool.close()


def test_acknowledged_bytes_do_not_stay(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for _ in range(200):
        spool.put(points(0, 2_000))
        spool.acknowledge(spool.last - 1)  # the newest is never acknowledged
        assert [batch.sequence for batch in batches(spool)] == [spool.last]
    assert (tmp_path / "s" / SPOOL).stat().st_size < 12 << 20
    spool.acknowledge(spool.last)
    assert (tmp_path / "s" / SPOOL).stat().st_size == 0 and not spool.waiting
    spool.close()


def test_a_batch_that_nobody_takes_keeps_its_number(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.put(points(0, 5))
    spool.put(points(5, 5))
    assert spool.empty(1) == 5
    assert [(batch.sequence, len(batch.points)) for batch in batches(spool)] == [(1, 0), (2, 5)]
    spool.close()


@pytest.mark.parametrize(("reached", "numbers"), [(0, [1, 2]), (1, [2, 3]), (2, [3]), (3, []), (7, [8, 9])])
def test_numbers_follow_what_the_store_has(tmp_path: Path, reached: int, numbers: list[int]) -> None:
    """Three batches were made and one was acknowledged; the store may have lost it, or have those of a lost folder."""
    spool = Spool(tmp_path / "s")
    for first in (0, 5, 10):
        spool.put(points(first, 5))
    spool.acknowledge(1)
    spool.align(reached)
    assert [batch.sequence for batch in batches(spool)] == numbers
    spool.put(points(15, 5))
    assert [batch.sequence for batch in batches(spool)] == [*numbers, spool.last]
    assert spool.last == (numbers[-1] if numbers else reached) + 1
    spool.close()
    again = Spool(tmp_path / "s")
    assert again.last == spool.last and again.acknowledged == spool.acknowledged
    again.close()


def test_a_full_disk_costs_no_point(tmp_path: Path) -> None:
    import resource

    spool = Spool(tmp_path / "s")
    spool.put(points(0, 100))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "s" / SPOOL).stat().st_size + 10, hard))
    try:
        spool.put(points(100, 100))
        spool.put(points(200, 100))
        assert [p.step for b in batches(spool) for p in b.points] == list(range(300))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    spool.put(points(300, 100))
    assert [p.step for b in batches(spool) for p in b.points] == list(range(400))
    spool.acknowledge(4)
    assert not spool.waiting
    spool.close()


def test_two_processes_do_not_share_one(tmp_path: Path) -> None:
    one = Spool(tmp_path / "s")
    with pytest.raises(Conflict, match="another process of this member reports already"):
        Spool(tmp_path / "s")
    one.close()
    Spool(tmp_path / "s").close()


def test_not_a_number_travels(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.put([("training", 1, {"a": float("nan"), "b": float("-inf"), "c": 2}, 1.0)])
    ((_, line),) = spool.take(1)
    found: Any = msgspec.json.decode(line)
    assert found["points"][0]["values"] == {"a": "NaN", "b": "-Infinity", "c": 2}
    spool.close()
