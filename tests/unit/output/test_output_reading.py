"""Reading output: every line once, in order, from either end, whatever the pieces were."""

import asyncio
import re
import time
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from output_model import Run, lines_of

from clutch.master.output.lane import OutputLane
from clutch.master.output.memory import MemoryOutputStore
from clutch.master.output.reading import ReaderSettings
from clutch.master.output.text import shown
from clutch.testing.output_suite import FENCE, MEMBER, NOW, lane_on, piece, refused, texts
from clutch.wire.errors import BadRequest, NotFound, TimedOut, TooLarge
from clutch.wire.ids import Fence, TaskId
from clutch.wire.link import OutputDone, OutputGap, OutputPiece
from clutch.wire.output import LINE_MAX_BYTES, OutputLine, OutputPage, OutputQuery, RetentionPolicy

QUERY = OutputQuery(task=MEMBER.task)
BIT = st.one_of(
    st.sampled_from([b"\n", b"\r", b"word ", b"INFO x\n", b"\xff", "é".encode(), b"10%\r20%\r", b"\n\n"]),
    st.integers(1, 80_000).map(lambda n: b"y" * n),
    st.integers(1, 3_000).map(lambda n: b"line of many\n" * n),
)
RUN = st.one_of(st.lists(BIT, min_size=1, max_size=12).map(b"".join), st.integers(1, 10**9))


async def write_runs(lane: OutputLane, runs: list[Run], chance: Random, ends: bool) -> int:
    offset = 0
    for run in runs:
        if isinstance(run, int):
            await lane.write([OutputGap(MEMBER, FENCE, "stdout", offset, offset + run)])
            offset += run
            continue
        while run:
            size = chance.choice([1, 7, 60, 5_000, 100_000, 10**6])
            await lane.write([piece(offset, run[:size], NOW + offset / 1e6)])
            offset += len(run[:size])
            run = run[size:]
    if ends:
        await lane.write([OutputDone(MEMBER, FENCE, offset, 0)])
    return offset


async def forwards(lane: OutputLane, query: OutputQuery) -> list[OutputLine]:
    found: list[OutputLine] = []
    while True:
        page = await lane.page(query)
        assert len(page.lines) <= query.limit
        found += page.lines
        if not page.more:
            return found
        query = replace(query, after=page.after)


async def backwards(lane: OutputLane, query: OutputQuery) -> list[OutputLine]:
    found: list[OutputLine] = []
    page = await lane.page(replace(query, tail=query.limit))
    while True:
        found = [*page.lines, *found]
        if not page.lines:
            return found
        page = await lane.page(replace(query, before=page.before))


def plain(lines: list[OutputLine]) -> list[tuple[int, int, str]]:
    return [(line.start, line.end, line.text) for line in lines]


@settings(max_examples=15, deadline=None)
@given(st.lists(RUN, min_size=1, max_size=6), st.integers(0, 2**32), st.integers(1, 2_000))
def test_every_line_once_from_either_end(runs: list[Run], seed: int, limit: int) -> None:
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else None
        if isinstance(run, bytes) and isinstance(last, bytes):
            joined[-1] = last + run
        elif isinstance(run, int) and isinstance(last, int):
            continue
        else:
            joined.append(run)

    async def check() -> None:
        async with lane_on(MemoryOutputStore()) as lane:
            await write_runs(lane, joined, Random(seed), ends=True)
            expected = lines_of(joined)
            query = replace(QUERY, limit=max(limit, len(expected) // 20 + 1))
            assert plain(await forwards(lane, query)) == expected
            assert plain(await backwards(lane, query)) == expected
            assert plain([line async for line in lane.lines(QUERY)]) == expected
            for asked, matches in (
                ({"text": "word "}, lambda text: "word " in text),
                ({"text": "OF MANY", "ignore_case": True}, lambda text: "of many" in text.lower()),
                ({"regex": "^(y+|.*word 20%)$"}, re.compile("^(y+|.*word 20%)$").search),
            ):
                chosen = [line for line in expected if matches(line[2]) and "bytes were dropped" not in line[2]]
                assert plain([line async for line in lane.lines(replace(query, **asked))]) == chosen
                assert plain([line async for line in lane.lines(replace(QUERY, tail=9, **asked))]) == chosen[-9:]
            middle = expected[len(expected) // 2]
            page = await lane.page(replace(QUERY, head=len(expected) // 2 or 1, limit=10_000))
            if len(page.lines) == len(expected) // 2:
                ahead = await forwards(lane, replace(QUERY, after=page.after, limit=10_000))
                assert plain(ahead)[0] == middle
                before = await backwards(lane, replace(QUERY, before=page.after, limit=10_000))
                assert plain(before) == expected[: len(expected) // 2]

    asyncio.run(check())


async def test_a_line_number_counts_newlines() -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        data = b"".join(b"%d\n" % n for n in range(100_000))
        await write_runs(lane, [data], Random(1), ends=False)
        for query in (replace(QUERY, tail=50), replace(QUERY, text="777"), replace(QUERY, head=10)):
            lines = [line async for line in lane.lines(query)]
            assert lines
            assert all(str(line.number) == line.text for line in lines)


async def test_filters() -> None:
    async with lane_on(MemoryOutputStore(), ended=[MEMBER.task]) as lane:
        offset = 0
        for n in range(100):
            word = ("DEBUG", "INFO", "WARNING", "ERROR", "")[n % 5]
            data = f"{word} Line {n}\n".encode()
            await lane.write([piece(offset, data, NOW + n)])
            offset += len(data)
        await lane.write([OutputPiece(replace(MEMBER, role="actor"), FENCE, "stderr", 0, NOW + 50.5, b"other\n")])

        assert len(await texts(lane)) == 101
        assert await texts(lane, role="actor") == await texts(lane, streams=("stderr",)) == ["other"]
        assert await texts(lane, text="Line 77") == ["WARNING Line 77"]
        assert await texts(lane, text="LINE 77") == []
        assert await texts(lane, text="LINE 77", ignore_case=True) == ["WARNING Line 77"]
        assert await texts(lane, regex=r"Line \d$", level="error") == [f"ERROR Line {n}" for n in (3, 8)]
        assert await texts(lane, regex=r"^warning line [12]\d$", ignore_case=True) == [
            f"WARNING Line {n}" for n in (12, 17, 22, 27)
        ]
        assert len(await texts(lane, level="warning")) == 40
        assert len(await texts(lane, level="debug")) == 80
        assert await texts(lane, since=NOW + 98) == ["ERROR Line 98", " Line 99"]
        assert await texts(lane, until=NOW + 2) == ["DEBUG Line 0", "INFO Line 1"]
        assert await texts(lane, since=NOW + 50, until=NOW + 52) == ["DEBUG Line 50", "other", "INFO Line 51"]
        assert await texts(lane, since=NOW + 50, until=NOW + 52, tail=2) == ["other", "INFO Line 51"]
        assert await texts(lane, head=2, level="error") == ["ERROR Line 3", "ERROR Line 8"]
        assert await texts(lane, tail=2, level="error") == ["ERROR Line 93", "ERROR Line 98"]
        assert await texts(lane, tail=2, regex="Line 5") == ["ERROR Line 58", " Line 59"]
        assert await texts(lane, epochs=(2,)) == []
        page = await lane.page(replace(QUERY, text="Line 1", limit=3))
        again = await lane.page(replace(QUERY, text="Line 1", after=page.after, limit=100))
        assert [line.text for line in (*page.lines, *again.lines)] == await texts(lane, text="Line 1")


async def test_times_are_looked_up_in_the_index() -> None:
    """A long output and a small window of time: only the rows of that time are unpacked."""
    store = CountingStore()
    async with lane_on(store) as lane:
        offset = 0
        for n in range(40):
            data = b"".join(b"%03d %07d\n" % (n, k) for k in range(30_000))
            await lane.write([piece(offset, data, NOW + n)])
            offset += len(data)
        store.bodies = 0
        found = await texts(lane, since=NOW + 20, until=NOW + 21)
        assert len(found) == 30_000
        assert (found[0], found[-1]) == ("020 0000000", "020 0029999")
        assert store.bodies < 10
        store.bodies = 0
        assert await texts(lane, since=NOW + 20, until=NOW + 21, tail=2) == ["020 0029998", "020 0029999"]
        assert store.bodies < 8


class CountingStore(MemoryOutputStore):
    """Counts the bodies that were asked for."""

    bodies = 0

    async def segments(self, span: Any) -> Any:
        rows = await super().segments(span)
        self.bodies += len(rows) if span.bodies else 0
        return rows


async def test_ranks_interleave_by_time_and_late_lines_are_not_missed() -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        for rank in range(3):
            for n in range(4):
                line = b"%d.%d\n" % (rank, n)
                await lane.write([piece(4 * n, line, NOW + 10 * n + rank, rank=rank)])
        in_time = [f"{rank}.{n}" for n in range(4) for rank in range(3)]
        assert await texts(lane) == in_time
        assert await texts(lane, tail=4) == in_time[-4:]
        page = await lane.page(replace(QUERY, limit=7))
        assert [line.text for line in page.lines] == in_time[:7]
        # An agent that was away ships lines that are older than what was read already.
        await lane.write([piece(0, b"late\n", NOW - 5, rank=9)])
        rest = await forwards(lane, replace(QUERY, after=page.after, limit=2))
        assert [line.text for line in rest] == ["late", *in_time[7:]]
        older = await lane.page(replace(QUERY, before=page.after))
        assert [line.text for line in older.lines] == in_time[:7]


async def test_a_line_without_an_end() -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        await lane.write([piece(0, b"whole\n10%\r20%")])
        assert await texts(lane) == ["whole"]
        assert await texts(lane, tail=5) == ["whole"]
        for query in (replace(QUERY, partial=True), replace(QUERY, partial=True, tail=2)):
            page = await lane.page(query)
            assert [(line.text, line.partial) for line in page.lines] == [("whole", False), ("20%", True)]
            await lane.page(replace(QUERY, after=page.after))
            assert (await lane.page(replace(QUERY, after=page.after))).lines == ()
        page = await lane.page(replace(QUERY, tail=1))
        await lane.write([piece(13, b"\r30%\n")])
        (line,) = (await lane.page(replace(QUERY, after=page.after))).lines
        assert (line.text, line.start, line.partial) == ("30%", 6, False)


async def test_the_last_line_of_an_ended_task_needs_no_newline() -> None:
    store = MemoryOutputStore()
    async with lane_on(store) as lane:
        await lane.write([piece(0, b"one\ntwo")])
        assert await texts(lane) == ["one"]
    async with lane_on(store, ended=[MEMBER.task]) as lane:
        assert await texts(lane) == ["one", "two"]


async def test_very_long_lines_come_in_parts() -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        size = 3 * LINE_MAX_BYTES
        await lane.write([piece(0, b"z" * size + b"\nnext\n")])
        lines = [line async for line in lane.lines(QUERY)]
        assert [(len(line.text), line.cut) for line in lines] == [
            (LINE_MAX_BYTES, True),
            (LINE_MAX_BYTES, True),
            (LINE_MAX_BYTES, False),
            (4, False),
        ]
        assert {line.number for line in lines[:3]} == {0}
        assert [line async for line in lane.lines(replace(QUERY, tail=3))] == lines[1:]


async def test_follow_ends_with_the_task_and_is_woken_by_commits() -> None:
    ended: list[TaskId] = []
    lane = OutputLane(MemoryOutputStore(), lambda task: task in ended, lambda: NOW)
    seen: list[str] = []
    came = asyncio.Event()

    async def read(query: OutputQuery) -> None:
        async for line in lane.follow(query):
            seen.append(line.text)
            came.set()

    async def until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(seen) < count:
                came.clear()
                await came.wait()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        await lane.write([piece(0, b"zero\none\ntwo\n")])
        reader = group.create_task(read(replace(QUERY, tail=1)))
        await until(1)
        await lane.write([piece(13, b"three\nfo")])
        await until(2)
        await lane.write([piece(21, b"ur\n"), OutputPiece(MEMBER, Fence(1, 2, 1), "stdout", 0, NOW, b"again")])
        await until(3)
        assert seen == ["two", "three", "four"]
        ended.append(MEMBER.task)
        lane.wake(MEMBER.task)
        async with asyncio.timeout(10):
            await reader
        running.cancel()
    assert seen == ["two", "three", "four", "again"], "the last line of an ended task needs no end"
    await lane.close_reader()


async def test_follow_shows_progress_when_asked() -> None:
    ended: list[TaskId] = []
    lane = OutputLane(MemoryOutputStore(), lambda task: task in ended, lambda: NOW)
    pages: list[OutputPage] = []
    came = asyncio.Event()

    async def read() -> None:
        async for page in lane.follow_pages(replace(QUERY, partial=True)):
            pages.append(page)
            came.set()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        reader = group.create_task(read())
        offset = 0
        for state in (b"10%\r", b"20%\r", b"30%\n"):
            came.clear()
            await lane.write([piece(offset, state)])
            offset += len(state)
            async with asyncio.timeout(10):
                await came.wait()
        ended.append(MEMBER.task)
        lane.wake(MEMBER.task)
        await reader
        running.cancel()
    assert [(line.text, line.partial) for page in pages for line in page.lines] == [
        ("10%", True),
        ("20%", True),
        ("30%", False),
    ]
    await lane.close_reader()


async def test_follow_takes_up_a_broken_thread() -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        await lane.write([piece(0, b"".join(b"%d\n" % n for n in range(5_000)))])
        got: list[str] = []
        cursor = ""
        async for page in lane.follow_pages(replace(QUERY, limit=100)):
            got += [line.text for line in page.lines]
            cursor = page.after
            if len(got) >= 1_000:
                break
        async for line in lane.follow(replace(QUERY, after=cursor, head=4_000)):
            got.append(line.text)
        assert got == [str(n) for n in range(5_000)]


async def test_a_pattern_that_never_ends_is_stopped_and_harms_nobody() -> None:
    reading = ReaderSettings(allowed_s=1)
    lane = OutputLane(MemoryOutputStore(), lambda task: False, lambda: NOW, reading=reading)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        await lane.write([piece(0, b"a" * 40 + b"!\nfine\n")])
        loop = asyncio.get_running_loop()
        worst, done = 0.0, False

        async def watch() -> None:
            nonlocal worst
            while not done:
                before = loop.time()
                await asyncio.sleep(0.005)
                worst = max(worst, loop.time() - before - 0.005)

        watching = group.create_task(watch())
        error = await refused(TimedOut, lane.page(replace(QUERY, regex="(a+)+$")))
        assert error.next_step
        assert [line.text async for line in lane.lines(replace(QUERY, regex="^f.n"))] == ["fine"], "the next goes on"
        done = True
        await watching
        running.cancel()
    assert worst < 0.5, f"the event loop stood still for {worst:.3f} s"
    await lane.close_reader()


async def test_the_loop_stays_free_while_much_is_searched() -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        data = b"".join(b"2026-11-15 INFO step %07d loss 0.123456\n" % n for n in range(20_000))
        for n in range(20):
            await lane.write([piece(n * len(data), data)])
        worst = 0.0

        async def search(**query: Any) -> list[str]:
            return await texts(lane, **query)

        searching = [
            asyncio.create_task(search(regex=r"step 00199\d\d .*nothing")),
            asyncio.create_task(search(text="STEP nothing", ignore_case=True)),
            asyncio.create_task(search(text="0019999 loss")),
        ]
        while not all(task.done() for task in searching):
            before = time.thread_time()  # what this thread computes at a stretch, however busy the machine is
            await asyncio.sleep(0.002)
            worst = max(worst, time.thread_time() - before)
        assert [len(task.result()) for task in searching] == [0, 0, 20]
        assert worst < 0.3, f"the event loop stood still for {worst:.3f} s"


async def test_a_search_answers_in_its_time_and_goes_on_from_there() -> None:
    lane = OutputLane(MemoryOutputStore(), lambda task: False, lambda: NOW, reading=ReaderSettings(search_s=0.0))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(lane.run())
        for n in range(10):
            data = b"nothing to see\n" * 20_000 + (b"here\n" if n == 7 else b"")
            start = (await lane.opened(MEMBER, FENCE)).stdout
            await lane.write([piece(start, data)])
        pages = [await lane.page(replace(QUERY, text="here"))]
        while pages[-1].more:
            assert len(pages) < 100
            pages.append(await lane.page(replace(QUERY, text="here", after=pages[-1].after)))
        assert len(pages) > 3
        assert [line.text for page in pages for line in page.lines] == ["here"]
        assert [line.text async for line in lane.lines(replace(QUERY, text="here", tail=5))] == ["here"]
        running.cancel()
    await lane.close_reader()


@pytest.mark.parametrize(
    ("kind", "query"),
    [
        (BadRequest, {"regex": "(unclosed"}),
        (BadRequest, {"after": "nonsense"}),
        (BadRequest, {"head": 1, "tail": 1}),
        (BadRequest, {"limit": 0}),
        (BadRequest, {"head": -1}),
        (TooLarge, {"limit": 100_000}),
        (TooLarge, {"tail": 100_000}),
        (TooLarge, {"text": "x" * 2_000}),
        (TooLarge, {"regex": "x" * 2_000}),
    ],
)
async def test_questions_that_cannot_be_answered(kind: Any, query: dict[str, Any]) -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        await lane.write([piece(0, b"one\n")])
        await refused(kind, lane.page(replace(QUERY, **query)))


async def test_raw_bytes_of_what_is_not_there() -> None:
    async with lane_on(MemoryOutputStore()) as lane:
        await lane.write([piece(0, b"one\n")])

        async def take(*args: Any) -> bytes:
            return b"".join([part async for part in lane.raw(*args)])

        assert await take(MEMBER, FENCE, "stdout", 1, 3) == b"ne"
        assert await take(MEMBER, FENCE, "stderr") == b""
        await refused(NotFound, take(MEMBER, FENCE, "stdout", 0, 5))
        await refused(NotFound, take(replace(MEMBER, rank=5), FENCE, "stdout", 0, 5))
        await refused(BadRequest, take(MEMBER, FENCE, "stdout", -1, 3))
        await refused(BadRequest, take(MEMBER, FENCE, "stdlog", 0, 3))


@settings(max_examples=15, deadline=None)
@given(st.lists(BIT, min_size=5, max_size=40), st.integers(0, 2**32), st.floats(0.05, 0.95))
def test_both_ends_agree_after_retention(bits: list[bytes], seed: int, part: float) -> None:
    """Whatever was removed, lines cover the stream without holes, the same from either end, and say what is stored."""
    data = b"".join(bits)

    async def check() -> None:
        store = MemoryOutputStore()
        async with lane_on(store) as lane:
            end = await write_runs(lane, [data], Random(seed), ends=bool(seed % 2))
            size = await store.size_bytes()
            policy = RetentionPolicy(size_max_bytes=max(int(size * part), 1))
            kept = await lane.retain(policy, NOW, lambda task: False)
            assert kept.kept_bytes <= policy.size_max_bytes
            found = await forwards(lane, replace(QUERY, limit=10_000, partial=True))
            assert found == await backwards(lane, replace(QUERY, limit=10_000, partial=True))
            edges = [0, *(line.end for line in found)]
            assert [line.start for line in found] == edges[:-1]
            assert edges[-1] == end
            assert all(shown(data[one.start : one.end]) == one.text for one in found if one.kind == "line")
            if not seed % 2:
                await lane.write([piece(end, b"more\n")])
                assert (await forwards(lane, replace(QUERY, limit=10_000)))[-1].text.endswith("more")

    asyncio.run(check())
