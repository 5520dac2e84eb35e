"""What every output store must do, as checks that try to break it, alone and under a lane.

Each check takes a fresh ``OutputGround`` and asserts. ``CHECKS`` is all that any ground can stand;
``check_full_disk_changes_nothing`` needs one that can be filled, ``check_acknowledged_output_survives`` one whose
writer can be killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Protocol

from msgspec.structs import replace

from clutch.master.output.base import OutputStore
from clutch.master.output.building import build
from clutch.master.output.lane import OutputLane
from clutch.master.output.packing import unpack
from clutch.master.output.records import SEGMENT_BYTES, Kind, Segment, Span, StreamChange, StreamState
from clutch.master.output.taking import News
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Corrupt, DiskFull, NotFound, Stale
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.link import OutputDone, OutputGap, OutputPiece
from clutch.wire.output import OutputQuery, RetentionPolicy

NOW = 1_700_000_000.0
MEMBER = MemberId(TaskId("t1"), "trainer", 0)
FENCE = Fence(1, 1, 1)
_FIRST = (float("-inf"), 0, 0)


class OutputGround(Protocol):
    """Storage for one output store. Everything it opens is closed by whoever made the ground."""

    async def open(self) -> OutputStore: ...

    async def damage(self, stream: int, start: int) -> None:
        """Change one bit of a stored segment."""
        ...


class SmallGround(OutputGround, Protocol):
    """Storage that is small enough to fill."""

    async def free_space(self) -> None:
        """Make room again, at least for removing something."""
        ...


class KillableGround(OutputGround, Protocol):
    """Storage whose writer can be killed in the middle of a write."""

    async def kill_while_writing(self) -> int:
        """Write pieces as ``numbered`` gives them until the writer, or the server, is killed; the last acknowledged
        offset."""
        ...


Check = Callable[[OutputGround], Awaitable[None]]


@asynccontextmanager
async def lane_on(store: OutputStore, ended: Sequence[TaskId] = ()) -> AsyncIterator[OutputLane]:
    """A lane that runs for the length of the block; the store stays open."""
    lane = OutputLane(store, lambda task: task in ended, lambda: NOW)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        try:
            yield lane
        finally:
            running.cancel()
    await lane.close_reader()


async def refused(kind: type[ClutchError], call: Awaitable[Any]) -> ClutchError:
    """The error, which must be of this very kind and say cause and object."""
    try:
        await call
    except ClutchError as error:
        assert type(error) is kind, f"expected {kind.__name__}, got {error!r}: {error}"
        assert error.cause
        assert error.object, f"{error!r} does not say what it is about"
        return error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


def piece(offset: int, data: bytes, at: float = NOW, rank: int = 0, stream: str = "stdout") -> OutputPiece:
    return OutputPiece(replace(MEMBER, rank=rank), FENCE, stream, offset, at, data)


def numbered(offset: int) -> bytes:
    """Bytes that say where they are, the same for the same offset; a multiple of 16 long."""
    count = Random(offset).randint(1, 4_000)
    return b"".join(b"%015d\n" % (offset + 16 * n) for n in range(count))


async def raw(lane: OutputLane, stop: int | None = None, start: int = 0, stream: str = "stdout") -> bytes:
    return b"".join([part async for part in lane.raw(MEMBER, FENCE, stream, start, stop)])


async def texts(lane: OutputLane, **query: Any) -> list[str]:
    return [line.text async for line in lane.lines(OutputQuery(task=MEMBER.task, **query))]


def _change(state: StreamState, data: bytes, at: float, done: bool = False) -> StreamChange:
    news = News(state.committed, done)
    if data:
        news.items, news.size, news.end = [(state.committed, at, data)], len(data), state.committed + len(data)
    return build(state, news, [], at)


async def _written(store: OutputStore, change: StreamChange) -> StreamState:
    (stream,) = await store.write([change])
    return replace(change.state, id=stream)


# -- the store alone ----------------------------------------------------------------------------------------------


async def check_gives_back_what_it_was_given(ground: OutputGround) -> None:
    store = await ground.open()
    assert isinstance(store, OutputStore)
    fresh = StreamState(MEMBER, FENCE, "stdout")
    assert await store.streams(MEMBER.task) == []
    assert await store.states([(MEMBER, FENCE)]) == []
    first = await _written(store, _change(fresh, b"one\ntw", NOW))
    second = await _written(store, _change(first, b"o\nthree\n\xff\x00", NOW + 1.5))
    assert (second.committed, second.lines, second.line_start) == (16, 3, 14)
    other = await ground.open()
    for one in (store, other):
        assert await one.streams(MEMBER.task) == [second]
        assert await one.states([(MEMBER, FENCE), (replace(MEMBER, rank=1), FENCE)]) == [second]
        assert await one.streams(TaskId("t2")) == [] == await one.streams()
        assert await one.streams(TaskId("t2"), MEMBER.task, MEMBER.task) == [second]
        rows = await one.segments(Span(second.id))
        assert [(r.start, r.end, r.kind, r.first_line, r.lines, r.line_start) for r in rows] == [
            (0, 6, Kind.TAIL, 0, 1, 0),
            (6, 16, Kind.TAIL, 1, 2, 4),
        ]
        assert [unpack(row)[0] for row in rows] == [b"one\ntw", b"o\nthree\n\xff\x00"]
        assert rows[1].line_at == NOW
        assert rows[1].first_at == rows[1].last_at == NOW + 1.5
        assert sum(row.size for row in rows) == await one.size_bytes()


async def check_spans_are_cut_as_asked(ground: OutputGround) -> None:
    store = await ground.open()
    state = StreamState(MEMBER, FENCE, "stdout")
    for n in range(10):
        state = await _written(store, _change(state, b"x" * 99 + b"\n", NOW + n))

    async def starts(**asked: Any) -> list[int]:
        rows = await store.segments(Span(state.id, **asked))
        assert all(bool(row.body) == asked.get("bodies", True) for row in rows)
        return [row.start for row in rows]

    assert await starts() == list(range(0, 1_000, 100))
    assert await starts(start=250) == list(range(200, 1_000, 100))
    assert await starts(start=300, stop=501) == [300, 400, 500]
    assert await starts(start=300, stop=500) == [300, 400]
    assert await starts(stop=501, newest_first=True) == [500, 400, 300, 200, 100, 0]
    assert await starts(start=150, stop=501, newest_first=True) == [500, 400, 300, 200, 100]
    assert await starts(limit_bytes=1) == [0]
    assert await starts(limit_bytes=101) == [0, 100]
    assert await starts(limit_bytes=200, newest_first=True) == [900, 800]
    assert await starts(bodies=False, limit_rows=3) == [0, 100, 200]
    assert await starts(start=1_000) == []
    assert await store.segments(Span(state.id + 77)) == []


async def check_a_commit_is_all_or_nothing(ground: OutputGround) -> None:
    store, rival = await ground.open(), await ground.open()
    out, err = (StreamState(MEMBER, FENCE, stream) for stream in ("stdout", "stderr"))
    out = await _written(store, _change(out, b"one\n", NOW))
    ahead = await _written(rival, _change(out, b"theirs\n", NOW))
    changes = [_change(err, b"lost?\n", NOW), _change(out, b"ours\n", NOW)]
    await refused(Stale, store.write(changes))
    await refused(Stale, store.write([_change(StreamState(MEMBER, FENCE, "stdout"), b"again\n", NOW)]))
    assert await store.streams(MEMBER.task) == [ahead]
    rows = await store.segments(Span(ahead.id))
    assert [unpack(row)[0] for row in rows] == [b"one\n", b"theirs\n"]
    assert len(await store.write([_change(err, b"kept\n", NOW), _change(ahead, b"ours\n", NOW)])) == 2


async def check_rows_take_the_place_of_others(ground: OutputGround) -> None:
    store = await ground.open()
    state = StreamState(MEMBER, FENCE, "stdout")
    for n in range(3):
        state = await _written(store, _change(state, b"x" * 100, NOW + n))
    rows = await store.segments(Span(state.id))
    news = News(state.committed, True)
    packed = build(state, news, rows, NOW)
    assert packed.drops == (0, 100, 200)
    state = await _written(store, packed)
    (row,) = await store.segments(Span(state.id))
    assert (row.start, row.end, row.kind) == (0, 300, Kind.PACKED)
    assert unpack(row)[0] == b"x" * 300
    assert [unpack(row)[1].at(n) for n in (0, 99, 100, 299)] == [NOW, NOW, NOW + 1, NOW + 2]
    assert await store.size_bytes() == row.size


async def check_age_and_forgetting(ground: OutputGround) -> None:
    store = await ground.open()
    for n, task in enumerate(("a", "b", "a", "c")):
        member = MemberId(TaskId(task), "main", n)
        state = await _written(store, _change(StreamState(member, FENCE, "stdout"), b"x\n", NOW - n))
        gap = Segment(2, 5, Kind.LOST, 0.0, 0.0, 1, 0, 2, 0.0)
        await store.write([StreamChange(replace(state, version=state.version + 1, committed=5), (gap,))])
    found = await store.oldest(_FIRST, 3)
    assert [(one.task, one.last_at) for one in found] == [("c", NOW - 3), ("a", NOW - 2), ("b", NOW - 1)]
    last = found[-1]
    rest = await store.oldest((last.last_at, last.stream, last.start), 3)
    assert [(one.task, one.last_at) for one in rest] == [("a", NOW)]
    size = await store.size_bytes()
    assert await store.forget(TaskId("a")) == 2
    assert await store.forget(TaskId("a")) == 0
    assert await store.size_bytes() == size - found[1].size - rest[0].size
    assert await store.streams(TaskId("a")) == []
    assert [one.task for one in await store.oldest(_FIRST, 9)] == ["c", "b"]
    assert await store.segments(Span(found[1].stream)) == []


async def check_many_segments_are_forgotten(ground: OutputGround) -> None:
    store = await ground.open()
    state = StreamState(MEMBER, FENCE, "stdout")
    change = _change(state, b"x", NOW)
    rows = tuple(replace(change.puts[0], start=n, end=n + 1) for n in range(1_200))
    await store.write([replace(change, puts=rows)])
    assert await store.forget(MEMBER.task) == 1
    assert await store.size_bytes() == 0


async def check_damage_is_told(ground: OutputGround) -> None:
    store = await ground.open()
    state = await _written(store, _change(StreamState(MEMBER, FENCE, "stdout"), b"one\n", NOW))
    state = await _written(store, _change(state, b"two\n", NOW))
    await ground.damage(state.id, 4)
    store = await ground.open()
    await refused(Corrupt, store.segments(Span(state.id)))
    assert len(await store.segments(Span(state.id, stop=4))) == 1
    async with lane_on(store) as lane:
        error = await refused(Corrupt, lane.page(OutputQuery(task=MEMBER.task)))
        assert "4 to 8" in error.cause
        (reached,) = await lane.write([piece(8, b"three\n")])
        assert reached.stdout == 14, "writing goes on behind damage"
        assert await raw(lane, start=8) == b"three\n"


# -- under a lane -------------------------------------------------------------------------------------------------


async def check_exactly_once_by_offset(ground: OutputGround) -> None:
    async with lane_on(await ground.open()) as lane:
        opened = await lane.opened(MEMBER, FENCE)
        assert (opened.stdout, opened.stderr, opened.done) == (0, 0, False)
        (reached,) = await lane.write([piece(0, b"one\n"), piece(4, b"two\n"), piece(0, b"E", stream="stderr")])
        assert (reached.stdout, reached.stderr) == (8, 1)
        for again in ([piece(0, b"one\n")], [piece(0, b"one\ntwo\n")], [piece(3, b"\ntw")]):
            assert await lane.write(again) == [reached]
        (reached,) = await lane.write([piece(4, b"two\nthree\n"), piece(13, b"\nfour")])
        assert reached.stdout == 18
        error = await refused(Conflict, lane.write([piece(18, b"\n"), piece(20, b"a hole")]))
        assert "offset 19" in error.next_step, "behind what the same call brought"
        assert (await lane.opened(MEMBER, FENCE)).stdout == 18, "nothing of a refused call is written"
        await refused(Conflict, lane.write([OutputDone(MEMBER, FENCE, 19, 1)]))
        await refused(BadRequest, lane.write([piece(18, b"x", stream="stdlog")]))
        await refused(BadRequest, lane.write([piece(-1, b"x")]))
        assert await raw(lane) == b"one\ntwo\nthree\nfour"
        (reached,) = await lane.write([OutputDone(MEMBER, FENCE, 18, 1)])
        assert reached.done
        assert await lane.write([OutputDone(MEMBER, FENCE, 18, 1), piece(10, b"thr")]) == [reached]
        await refused(Conflict, lane.write([piece(18, b"more")]))
    async with lane_on(await ground.open()) as lane:
        assert await lane.opened(MEMBER, FENCE) == reached
        assert await raw(lane) == b"one\ntwo\nthree\nfour"


async def check_every_incarnation_has_streams_of_its_own(ground: OutputGround) -> None:
    async with lane_on(await ground.open()) as lane:
        fences = [Fence(1, 2, 1), Fence(1, 1, 1), Fence(1, 2, 2), Fence(2, 1, 1)]
        for n, fence in enumerate(fences):
            (reached,) = await lane.write([OutputPiece(MEMBER, fence, "stdout", 0, NOW + n, b"%d\n" % n)])
            assert (reached.fence, reached.stdout) == (fence, 2), "a stale fence is taken under its own epoch"
        assert await texts(lane) == ["0", "1", "2", "3"]
        assert await texts(lane, epochs=(1,)) == ["1", "3"]


async def check_gaps_take_the_place_of_bytes(ground: OutputGround) -> None:
    async with lane_on(await ground.open(), ended=[MEMBER.task]) as lane:
        gap = OutputGap(MEMBER, FENCE, "stdout", 4, 1_000)
        (reached,) = await lane.write([piece(0, b"one\n"), gap, piece(1_000, b"rest of a line\nend")])
        assert reached.stdout == 1_018
        assert await lane.write([gap]) == [reached]
        (reached,) = await lane.write([OutputGap(MEMBER, FENCE, "stdout", 900, 2_000), piece(2_000, b"last\n")])
        assert reached.stdout == 2_005
        expected = [
            "one",
            "[996 bytes were dropped before they arrived]",
            "rest of a line",
            "end",
            "[982 bytes were dropped before they arrived]",
            "last",
        ]
        assert await texts(lane) == expected
        assert await texts(lane, tail=3) == expected[-3:]
        assert await texts(lane, text="e") == ["one", "rest of a line", "end"]
        assert await raw(lane, start=1_000, stop=1_018) == b"rest of a line\nend"
        await refused(NotFound, raw(lane, stop=1_000))


async def check_small_rows_are_packed(ground: OutputGround) -> None:
    """A trickle becomes segments, and every byte and time is where it was."""
    store = await ground.open()
    written = bytearray()
    async with lane_on(store) as lane:
        for n in range(700):
            data = b"%05d " % n + b"y" * (n % 900) + b"\n"
            await lane.write([piece(len(written), data, NOW + n)])
            written += data
        (state,) = await store.streams(MEMBER.task)
        rows = await store.segments(Span(state.id, limit_bytes=2**40))
        assert {row.kind for row in rows} == {Kind.TAIL, Kind.PACKED}
        assert len(rows) < 300
        assert await raw(lane) == bytes(written)
        await lane.write([OutputDone(MEMBER, FENCE, len(written), 0)])
        (state, _) = await store.streams(MEMBER.task)
        rows = await store.segments(Span(state.id, limit_bytes=2**40))
        assert {row.kind for row in rows} == {Kind.PACKED}
        assert [row.end for row in rows[:-1]] == [row.start for row in rows[1:]]
        assert await raw(lane) == bytes(written)
        lines = [line async for line in lane.lines(OutputQuery(task=MEMBER.task))]
        assert [line.at for line in lines] == [NOW + n for n in range(700)]
        assert [line.number for line in lines] == list(range(700))


async def check_large_writes_become_segments(ground: OutputGround) -> None:
    store = await ground.open()
    data = b"".join(b"%015d\n" % n for n in range(200_000))
    async with lane_on(store) as lane:
        await lane.write([piece(0, data[:1_000_000])])
        await lane.write([piece(900_000, data[900_000:2_000_000]), piece(2_000_000, data[2_000_000:])])
        (state,) = await store.streams(MEMBER.task)
        rows = await store.segments(Span(state.id, bodies=False))
        assert all(row.end - row.start < 2 * SEGMENT_BYTES for row in rows)
        assert len(rows) < 15
        assert await raw(lane) == data
        assert await raw(lane, start=777_777, stop=2_222_222) == data[777_777:2_222_222]
        page = await lane.page(OutputQuery(task=MEMBER.task, tail=3))
        assert [line.text for line in page.lines] == [f"{n:015d}" for n in (199_997, 199_998, 199_999)]
        assert [line.number for line in page.lines] == [199_997, 199_998, 199_999]


async def check_many_writers_share_commits(ground: OutputGround) -> None:
    store = await ground.open()
    members = [replace(MEMBER, rank=rank) for rank in range(20)]

    async def write(lane: OutputLane, member: MemberId) -> None:
        offset = 0
        for n in range(20):
            data = f"rank {member.rank} line {n}\n".encode()
            (reached,) = await lane.write([OutputPiece(member, FENCE, "stdout", offset, NOW + n, data)])
            offset += len(data)
            assert reached.stdout == offset

    async with lane_on(store) as lane:
        await asyncio.gather(*(write(lane, member) for member in members))
        assert len(await texts(lane)) == 400
        assert await texts(lane, ranks=(7,)) == [f"rank 7 line {n}" for n in range(20)]
        first = await texts(lane, head=20)
        assert sorted(first) == sorted(f"rank {n} line 0" for n in range(20)), "interleaved by time"


async def check_two_lanes_never_write_a_byte_twice(ground: OutputGround) -> None:
    """A master that has not heard yet that it lost the lead still writes; both agree on what is there."""
    async with lane_on(await ground.open()) as old, lane_on(await ground.open()) as new:
        await old.write([piece(0, b"one\n")])
        await new.write([piece(0, b"one\ntwo\n")])
        (reached,) = await old.write([piece(4, b"two\nthree\n")])
        assert reached.stdout == 14
        (reached,) = await new.write([piece(8, b"three\nfour\n")])
        assert reached.stdout == 19
        assert await raw(new) == b"one\ntwo\nthree\nfour\n"


async def check_retention_leaves_gaps(ground: OutputGround) -> None:
    store = await ground.open()
    data = b"".join(b"%07d\n" % n for n in range(150_000))
    async with lane_on(store) as lane:
        for at, start in enumerate(range(0, len(data), 300_000)):
            await lane.write([piece(start, data[start : start + 300_000], NOW + at)])
        live = replace(MEMBER, task=TaskId("live"))
        await lane.write([OutputPiece(live, FENCE, "stdout", 0, NOW - 100, b"old but live\n")])
        size = await store.size_bytes()
        kept = await lane.retain(RetentionPolicy(age_max_s=10.0), NOW + 5, lambda task: True)
        assert (kept.segments, kept.kept_bytes) == (0, size)
        kept = await lane.retain(RetentionPolicy(age_max_s=8.5), NOW + 10, lambda task: task == "live")
        assert kept.segments == 2
        assert size - kept.removed_bytes == kept.kept_bytes == await store.size_bytes()
        lines = [line async for line in lane.lines(OutputQuery(task=MEMBER.task))]
        assert lines[0].kind == "removed"
        assert (lines[0].start, lines[1].start) == (0, lines[0].end)
        assert data[lines[1].start : lines[1].end - 1].decode() == lines[1].text
        half = kept.kept_bytes // 2
        kept = await lane.retain(RetentionPolicy(size_max_bytes=half), NOW, lambda task: task == "live")
        assert 0 < kept.kept_bytes <= half
        lines = [line async for line in lane.lines(OutputQuery(task=MEMBER.task))]
        assert [line.kind for line in lines[:2]] == ["removed", "line"], "neighbouring gaps become one"
        assert lines[-1].text == "0149999"
        assert await lane.write([piece(len(data), b"more\n")]), "a stream goes on behind what was removed"
        assert await raw(lane, start=lines[1].start, stop=len(data)) == data[lines[1].start :]
        kept = await lane.retain(RetentionPolicy(age_max_s=1.0), NOW + 1_000, lambda task: task == "live")
        assert [line.text async for line in lane.lines(OutputQuery(task=live.task))] == ["old but live"]
        (gone,) = [line async for line in lane.lines(OutputQuery(task=MEMBER.task))]
        assert (gone.kind, gone.start, gone.end) == ("removed", 0, len(data) + 5)
        assert await lane.forget(MEMBER.task) == 1
        assert await texts(lane) == []
        assert await lane.write([piece(0, b"anew\n")])
        assert await texts(lane) == ["anew"]


async def check_full_disk_changes_nothing(ground: SmallGround) -> None:
    """Fill the store, be refused with nothing half-written, and go on in the same lane when there is room again."""
    store = await ground.open()
    offset = 0
    async with lane_on(store) as lane:
        while offset < 30_000_000:
            block = Random(offset).randbytes(50_000)
            try:
                await lane.write([piece(offset, block)])
            except DiskFull as error:
                assert error.object
                assert error.next_step
                break
            offset += len(block)
        else:
            raise AssertionError("the disk never got full; the test proves nothing")
        assert offset > 0, "nothing fitted at all"
        assert (await lane.opened(MEMBER, FENCE)).stdout == offset
        assert len(await raw(lane)) == offset
        await ground.free_space()
        await lane.forget(MEMBER.task)
        (reached,) = await lane.write([piece(0, b"there is room again\n")])
        assert reached.stdout == 20
    async with lane_on(await ground.open()) as lane:
        assert await texts(lane) == ["there is room again"]


async def check_acknowledged_output_survives(ground: KillableGround) -> None:
    """Whatever was acknowledged is there; what was not is wholly there or wholly absent; sending again mends it."""
    acknowledged = await ground.kill_while_writing()
    assert acknowledged > 0, "nothing was acknowledged before the kill; the test proves nothing"
    async with lane_on(await ground.open()) as lane:
        opened = await lane.opened(MEMBER, FENCE)
        assert opened.stdout in (acknowledged, acknowledged + len(numbered(acknowledged)))
        expected = b"".join(b"%015d\n" % n for n in range(0, opened.stdout, 16))
        assert await raw(lane) == expected
        behind = numbered(acknowledged)
        (reached,) = await lane.write([piece(acknowledged, behind)])
        assert reached.stdout == acknowledged + len(behind)
        assert await raw(lane, start=acknowledged) == behind


CHECKS: tuple[Check, ...] = (
    check_gives_back_what_it_was_given,
    check_spans_are_cut_as_asked,
    check_a_commit_is_all_or_nothing,
    check_rows_take_the_place_of_others,
    check_age_and_forgetting,
    check_many_segments_are_forgotten,
    check_damage_is_told,
    check_exactly_once_by_offset,
    check_every_incarnation_has_streams_of_its_own,
    check_gaps_take_the_place_of_bytes,
    check_small_rows_are_packed,
    check_large_writes_become_segments,
    check_many_writers_share_commits,
    check_two_lanes_never_write_a_byte_twice,
    check_retention_leaves_gaps,
)
