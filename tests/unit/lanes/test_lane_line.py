"""The line before a lane's writer: bounded, in order, and whoever waits in it hears something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from clutch.master.lanes.line import Call, Line, LineBounds, LineWords
from clutch.testing.output_suite import refused
from clutch.wire.errors import BadRequest, DiskFull, Stale, TimedOut, TooLarge, Unavailable

WORDS = LineWords("notes", "words", "Say less.", "Say it again.")
One = Call[str]


class Book:
    """A store that writes down the names of each group, and fails as it is told."""

    def __init__(self, bounds: LineBounds) -> None:
        self.line: Line[One] = Line(WORDS, bounds, self._commit, self._forget)
        self.groups: list[list[str]] = []
        self.forgotten = 0
        self.fails: Callable[[list[str]], Exception | None] = lambda names: None
        self.open = asyncio.Event()
        self.open.set()

    async def _commit(self, group: list[One]) -> None:
        await self.open.wait()
        names = [call.name for call in group]
        error = self.fails(names)
        if error is not None:
            raise error
        self.groups.append(names)
        for call in group:
            if call.name == "bad":
                call.refuse(BadRequest("it is bad", object="bad"))
            call.give(f"{call.name} is kept")

    def _forget(self) -> None:
        self.forgotten += 1

    def ask(self, name: str, size: int = 1) -> asyncio.Task[str]:
        return asyncio.create_task(self.line.ask(Call(name, size)))


@asynccontextmanager
async def running(bounds: LineBounds) -> AsyncIterator[Book]:
    book = Book(bounds)
    async with asyncio.TaskGroup() as group:
        work = group.create_task(book.line.run())
        try:
            yield book
        finally:
            work.cancel()


async def test_callers_share_commits_in_the_order_they_came() -> None:
    async with running(LineBounds(100, 10, 5.0)) as book:
        book.open.clear()
        asked = [book.ask(name, size) for name, size in (("a", 1), ("b", 4), ("c", 6), ("d", 30), ("bad", 1))]
        await asyncio.sleep(0)
        book.open.set()
        said = await asyncio.gather(*asked, return_exceptions=True)
    assert said[:4] == ["a is kept", "b is kept", "c is kept", "d is kept"]
    assert isinstance(said[4], BadRequest), "one that is refused stays refused"
    assert [name for group in book.groups for name in group] == ["a", "b", "c", "d", "bad"]
    sizes = {"a": 1, "b": 4, "c": 6, "d": 30, "bad": 1}
    assert all(len(group) == 1 or sum(sizes[name] for name in group) <= 10 for group in book.groups)
    assert len(book.groups) < 5


async def test_the_line_is_bounded() -> None:
    async with running(LineBounds(10, 10, 5.0)) as book:
        await refused(TooLarge, book.line.ask(Call("large", 11)))
        book.open.clear()
        asked = [book.ask(str(n), 4) for n in range(6)]
        for _ in range(20):
            await asyncio.sleep(0)
            assert book.line.waiting_size <= 10
        book.open.set()
        assert await asyncio.gather(*asked) == [f"{n} is kept" for n in range(6)]
    assert book.line.waiting_size == 0


async def test_one_callers_trouble_is_its_own() -> None:
    async with running(LineBounds(100, 100, 5.0)) as book:
        book.fails = lambda names: DiskFull("there is no room", object="book", next_step="") if "b" in names else None
        book.open.clear()
        asked = [book.ask(name) for name in "abc"]
        await asyncio.sleep(0)
        book.open.set()
        said = await asyncio.gather(*asked, return_exceptions=True)
    assert (said[0], said[2]) == ("a is kept", "c is kept")
    assert isinstance(said[1], DiskFull)
    assert book.forgotten >= 1, "whether it was written is not known"


@pytest.mark.parametrize(("failures", "kept"), [(2, True), (3, False)])
async def test_another_master_is_looked_at_again(failures: int, kept: bool) -> None:
    async with running(LineBounds(100, 100, 5.0)) as book:
        left = [failures]

        def fails(names: list[str]) -> Exception | None:
            left[0] -= 1
            return Stale("it moved", object="book", next_step="") if left[0] >= 0 else None

        book.fails = fails
        if kept:
            assert await book.ask("a") == "a is kept"
        else:
            await refused(Unavailable, book.ask("a"))
        assert book.forgotten == min(failures, 3)


async def test_who_waits_hears_of_the_end_and_of_time_that_is_up() -> None:
    async with running(LineBounds(2, 1, 0.05)) as book:
        book.open.clear()
        late = [book.ask("first"), book.ask("in line"), book.ask("outside")]
        for one in late:
            error = await refused(TimedOut, one)
            assert error.next_step == "Say it again."
    book = Book(LineBounds(2, 1, 5.0))
    book.open.clear()
    work = asyncio.create_task(book.line.run())
    asked = [book.ask("first"), book.ask("in line")]
    for _ in range(5):
        await asyncio.sleep(0)
    assert book.line.waiting_size == 2
    work.cancel()
    for one in asked:
        await refused(Unavailable, one)
    await refused(Unavailable, book.ask("after"))
