"""Columns, reductions and digests of any points: what goes in comes out, and what is known of it is true."""

import math
import sys
import zlib
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.master.metrics_lane.briefs import BUCKET, Brief, brief_of
from clutch.master.metrics_lane.columns import Body, columns_of, merged, packed
from clutch.master.metrics_lane.digests import Digest, digest_of, joined, remembered_in, with_news
from clutch.master.metrics_lane.lane import MetricsLane
from clutch.master.metrics_lane.memory import MemoryMetricsStore
from clutch.master.metrics_lane.packing import chunk_of, columns_in, digests_in, packed_chunk, points_in
from clutch.master.metrics_lane.records import Chunk, ChunkSpan, SourceState
from clutch.master.metrics_lane.taking import News
from clutch.testing.metrics_suite import FENCE, MEMBER, batch, metrics_on, point
from clutch.testing.output_suite import refused
from clutch.wire.errors import Corrupt
from clutch.wire.metrics import MetricPoint, MetricsQuery, Value

VALUES: st.SearchStrategy[Value] = st.one_of(
    st.floats(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=5), st.just(0.5), st.just(-0.0)
)
STEPS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 20))
POINTS = st.lists(
    st.builds(
        MetricPoint,
        st.sampled_from(["training", "validation"]),
        STEPS,
        st.dictionaries(st.sampled_from(["loss", "größe", "n"]), VALUES, max_size=3),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    max_size=100,
)
FLAT = dict[tuple[str, str], list[tuple[int, float, str]]]


def flat(points: list[MetricPoint]) -> FLAT:
    """Each metric's points by step, of one step in the order in which they came."""
    found: FLAT = {}
    for one in points:
        for name, value in one.values.items():
            found.setdefault((one.group, name), []).append((one.step, one.at, repr(value)))
    return {name: sorted(points, key=lambda one: one[0]) for name, points in found.items()}


def flat_columns(columns: Any) -> FLAT:
    return {
        (one.group, one.name): [
            (step, at, repr(value)) for step, at, value in zip(one.time.steps, one.time.ats, one.values, strict=True)
        ]
        for one in columns
    }


@given(POINTS)
def test_columns_are_the_points(points: list[MetricPoint]) -> None:
    body = Body(packed(columns_of(points)))
    assert flat_columns(body.column(place) for place in range(len(body.names))) == flat(points)
    assert [body.count(place) for place in range(len(body.names))] == [len(flat(points)[name]) for name in body.names]


@given(st.lists(POINTS, min_size=1, max_size=4))
def test_chunks_are_packed_into_one(parts: list[list[MetricPoint]]) -> None:
    chunks = [chunk_of((n, n), points, columns_of(points)) for n, points in enumerate(parts, 1)]
    columns = [[columns_in(one).column(place) for place in range(len(columns_in(one).names))] for one in chunks]
    whole = packed_chunk(chunks, merged(columns))
    every = [one for points in parts for one in points]
    assert flat_columns(map(columns_in(whole).column, range(len(columns_in(whole).names)))) == flat(every)
    assert (whole.first, whole.last, whole.points) == (1, len(parts), len(every))
    by_time = sorted(every, key=lambda one: (one.step, one.at))
    assert flat(points_in(whole)) == flat(by_time), "and can be points again"


def test_what_was_reported_together_is_one_point_again() -> None:
    points = [MetricPoint("g", n, {"a": 1.0, "b": n} if n % 3 else {"a": 2.0}, n / 2) for n in range(100)]
    assert points_in(packed_chunk([chunk_of((1, 1), points, columns_of(points))], columns_of(points))) == points


@given(POINTS)
def test_a_digest_is_that_of_the_points(points: list[MetricPoint]) -> None:
    for column in columns_of(points):
        found = digest_of(column.time.steps, column.time.ats, column.values)
        finite = [one for one in column.values if not isinstance(one, str) and math.isfinite(one)]
        assert (found.count, found.finite) == (len(column.values), len(finite))
        assert (found.first_step, found.step) == (column.time.steps[0], column.time.steps[-1])
        assert repr(found.value) == repr(column.values[-1])
        if finite:
            assert (found.low, found.high) == (min(finite), max(finite))
            assert found.mean is not None
            assert math.isfinite(found.mean)
            room = 1e-9 * max(abs(found.low), abs(found.high))  # type: ignore[arg-type]
            assert found.low - room <= found.mean <= found.high + room  # type: ignore[operator]
        else:
            assert (found.low, found.high, found.mean) == (None, None, None)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), min_size=1, max_size=8))
def test_digests_join_to_that_of_all(parts: list[list[float]]) -> None:
    whole: Digest | None = None
    step = 0
    for values in parts:
        steps = range(step, step + len(values))
        one = digest_of(steps, [0.0] * len(values), values)
        whole = one if whole is None else joined(whole, one)
        step += len(values)
    every = [value for values in parts for value in values]
    assert whole is not None and whole.mean is not None
    assert math.isclose(whole.mean, math.fsum(every) / len(every), rel_tol=1e-9, abs_tol=1e-6)
    assert (whole.count, whole.low, whole.high, whole.value) == (len(every), min(every), max(every), every[-1])


LARGEST = sys.float_info.max


@pytest.mark.parametrize(
    "values", [[1.7e308] * 4, [1.7e308, -1.7e308, 1.7e308], [2**63 - 1] * 3, [LARGEST] * 3, [-LARGEST] * 7]
)
def test_the_mean_of_huge_numbers_is_a_number(values: list[float]) -> None:
    one = digest_of(range(len(values)), [0.0] * len(values), values)
    both = joined(one, one)
    assert one.mean is not None and both.mean is not None
    assert math.isfinite(both.mean)
    exact = sum(Fraction(value) for value in values) / len(values)
    assert math.isclose(one.mean, exact, rel_tol=1e-12) and math.isclose(both.mean, exact, rel_tol=1e-12)
    assert joined(both, one).mean == pytest.approx(float(exact), rel=1e-12)


@given(POINTS)
def test_reductions_are_those_of_the_points(points: list[MetricPoint]) -> None:
    columns = columns_of(points)
    brief = Brief(brief_of(columns))
    for place, column in enumerate(columns):
        buckets = brief.buckets(place, True)
        assert sum(one[5] for one in buckets) == len(column.values)
        assert repr(brief.digest(place)) == repr(digest_of(column.time.steps, column.time.ats, column.values))
        for n, (step, at, value, low, high, count, superseded) in enumerate(buckets):
            part = column.values[n * BUCKET : (n + 1) * BUCKET]
            numbers = [one for one in part if not isinstance(one, str) and math.isfinite(one)]
            assert (low, high) == ((min(numbers), max(numbers)) if numbers else (None, None))
            last = n * BUCKET + len(part) - 1
            assert (step, at, repr(value)) == (column.time.steps[last], column.time.ats[last], repr(part[-1]))
            assert (count, superseded) == (len(part), True)


@given(st.binary(max_size=200), st.integers(0, 10_000), POINTS)
def test_bytes_that_are_no_chunk_are_told(junk: bytes, place: int, points: list[MetricPoint]) -> None:
    body = bytearray(packed(columns_of(points)))
    body[place % len(body)] ^= 0xFF
    for one in (junk, b"\x02" + junk, bytes(body), bytes(body)[: place % len(body)]):
        chunk = Chunk(1, 1, 0, 0, 1, zlib.crc32(one), b"", one)
        try:
            points_in(chunk)  # a changed value may be another value: the checksum is what tells
        except Corrupt as error:
            assert error.next_step
    with pytest.raises(ValueError, match="checksum"):
        good = bytearray(brief_of(columns_of([MetricPoint("g", 1, {"a": 1.0}, 0.0)])))
        good[-1 - place % (len(good) - 9)] ^= 0xFF
        Brief(bytes(good))


def test_steps_that_no_counter_holds_are_damage() -> None:
    body = packed(columns_of([MetricPoint("g", 2**63 - n, {"a": 1.0}, 0.0) for n in (2, 1)]))
    first, beyond = msgspec.msgpack.encode(2**63 - 2), msgspec.msgpack.encode(2**63 - 1)
    assert body.count(first) == 1
    spoilt = body.replace(first, beyond)
    with pytest.raises(Corrupt):
        points_in(Chunk(1, 1, 0, 0, 1, zlib.crc32(spoilt), b"", spoilt))


# -- what an earlier release wrote --------------------------------------------------------------------------------

OLD_LATEST = msgspec.msgpack.encode({"training": {"loss": (7, 70.0, 0.5)}})


Row = tuple[str, int, float, dict[str, float]]


def old_chunk(first: int, last: int, rows: list[Row]) -> Chunk:
    body = zlib.compress(msgspec.msgpack.encode(rows), 1)
    steps = [row[1] for row in rows]
    return Chunk(first, last, min(steps), max(steps), len(rows), zlib.crc32(body), b"", body)


async def test_chunks_of_rows_are_read_and_packed_with_later_ones() -> None:
    """A store that an earlier release wrote: large chunks of rows, and a source that knows only latest values."""
    store = MemoryMetricsStore()
    packed_rows: list[Row] = [("training", n, float(n), {"loss": n / 2}) for n in range(5_000)]
    loose_rows: list[Row] = [("training", 5_000, 5_000.0, {"loss": 9.0})]
    state = SourceState(MEMBER, FENCE, 1, 2, 3, 3, 1, 1, OLD_LATEST)
    store.shelf.states[1] = state
    store.shelf.chunks[1] = {1: old_chunk(1, 2, packed_rows), 3: old_chunk(3, 3, loose_rows)}
    store.shelf.last_id = 1
    async with metrics_on(store) as lane:
        assert lane.reached(MEMBER, FENCE) == 3
        (found,) = await lane.summaries(MEMBER.task)
        assert (found.count, found.first_step, found.last, found.high) == (5_001, 0, 9.0, 2_499.5)
        assert [one.value for one in await lane.latest(MEMBER.task)] == [0.5]
        points = [point(6_000 + n, loss=1.0) for n in range(9_000)]
        await lane.write(
            MEMBER, FENCE, [batch(4, *points), batch(5, *(point(20_000 + n, loss=2.0) for n in range(9_000)))]
        )
        await _all_is_there(lane, 23_001)
        assert [one.value for one in await lane.latest(MEMBER.task)] == [2.0]
    assert [(one.first, one.last) for one in await store.chunks(ChunkSpan(1))] == [(1, 2), (3, 5)]


async def _all_is_there(lane: MetricsLane, count: int) -> None:
    (series,) = await lane.series(MetricsQuery(task=MEMBER.task, points_max=50))
    assert series.total == count
    assert sum(one.count for one in series.points) == count
    assert [one.count for one in await lane.summaries(MEMBER.task)] == [count]
    page = await lane.exact(MetricsQuery(task=MEMBER.task))
    assert sum(one.total for one in page.items) == count


def test_what_an_earlier_release_remembered_is_not_the_whole() -> None:
    remembered = remembered_in(OLD_LATEST)
    assert not remembered.whole
    assert remembered.names["training"]["loss"].value == 0.5
    points = [MetricPoint("training", 8, {"loss": 0.25}, 80.0)]
    later = remembered_in(with_news(OLD_LATEST, digests_in(columns_of(points))))
    assert not later.whole
    assert later.names["training"]["loss"].value == 0.25


async def test_a_damaged_reduction_is_told() -> None:
    store = MemoryMetricsStore()
    async with metrics_on(store) as lane:
        await lane.write(MEMBER, FENCE, [batch(1, *(point(n, loss=1.0) for n in range(10_000)))])
        chunk = store.shelf.chunks[1][1]
        store.shelf.chunks[1][1] = msgspec.structs.replace(chunk, brief=chunk.brief[:-1] + b"\x00")
        await refused(Corrupt, lane.series(MetricsQuery(task=MEMBER.task, points_max=10)))
        assert len((await lane.series(MetricsQuery(task=MEMBER.task)))[0].points) == 10_000, (
            "the points are not touched"
        )


def test_a_whole_number_of_any_size_is_taken_as_what_is_nearest() -> None:
    sent = {"more": 2**70, "far": 10**400, "below": -(10**400), "n": 7}
    news = News(SourceState(MEMBER, FENCE))
    news.take([batch(1, MetricPoint("training", 1, sent, 0.0))])
    change = news.change(())
    assert change is not None
    kept = {"more": 2.0**70, "far": math.inf, "below": -math.inf, "n": 7}
    assert [one.values for one in points_in(change.puts[0])] == [kept]
