"""Backup and restore: from any store to any other, on a live journal, and never half."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from clutch.backends.journal.backup import FORMAT, MAGIC, backup, inspect_backup, restore
from clutch.backends.journal.base import FullJournal
from clutch.backends.journal.memory import MemoryJournal, MemoryStore
from clutch.cli.backup import add_commands
from clutch.testing.journal_suite import numbered_batch, read_all, refused, task
from clutch.wire.errors import BadRequest, Conflict, Corrupt, NotFound, TooNew
from clutch.wire.journal import Batch, Snapshot

Address = Callable[[str], Awaitable[str]]
Open = Callable[[str], Awaitable[FullJournal]]
KINDS = ("memory", "sqlite", "postgres")


async def filled(journal: FullJournal) -> None:
    lead = await journal.lead("a", 0.0)
    for first in range(1, 2_500, 50):
        await journal.append(numbered_batch(lead, first, 50))
    await journal.append(Batch((), (task("naïve 漢字", name="🦜"),)))
    await journal.save_snapshot(Snapshot(1_000, 4, bytes(range(256)) * 9_000))
    await journal.forget(501)


async def contents(journal: FullJournal) -> list[object]:
    return [
        await read_all(journal, after=500),
        await journal.load_snapshot(),
        await journal.page("tasks", {}, "key", "", 10_000),
        await journal.pending(10_000),
    ]


@pytest.fixture
async def make(new_address: Address, opened: Open) -> Callable[[str], Awaitable[FullJournal]]:
    async def one(kind: str) -> FullJournal:
        if kind == "memory":
            return MemoryJournal(MemoryStore(lambda: 0.0))
        return await opened(await new_address(kind))

    return one


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
async def test_a_journal_moves_between_stores(make: Open, tmp_path: Path, source: str, target: str) -> None:
    old, new = await make(source), await make(target)
    await filled(old)
    wrote = await backup(old, tmp_path / "backup")
    assert (wrote.rows, wrote.views, wrote.outbox, wrote.snapshot_index) == (2_000, 52, 50, 1_000)
    assert inspect_backup(tmp_path / "backup") == wrote
    read = await restore(new, tmp_path / "backup")
    assert read.origin.generation == wrote.origin.generation + 1
    assert await contents(new) == await contents(old)
    lead = await new.lead("b", 60.0)
    assert (lead.generation, lead.term, lead.last_index) == (2, 2, 2_500)
    assert await new.append(numbered_batch(lead, 2_501, 10)) == 2_510
    assert len(await read_all(new, after=500)) == 2_010, "the chain goes on"
    await new.resign()
    await backup(new, tmp_path / "again")
    third = await make("memory")
    assert (await restore(third, tmp_path / "again")).origin.generation == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_backup_of_a_live_journal_is_of_one_moment(make: Open, tmp_path: Path, kind: str) -> None:
    journal = await make(kind)
    lead = await journal.lead("a", 60.0)
    for first in range(1, 3_001, 50):
        await journal.append(numbered_batch(lead, first, 50))
    running = True
    appended = 3_000

    async def write() -> None:
        nonlocal appended
        while running:
            appended = await journal.append(numbered_batch(lead, appended + 1, 50))
            await asyncio.sleep(0)

    writer = asyncio.create_task(write())
    summary = await backup(journal, tmp_path / "backup")
    running = False
    await writer
    assert appended > summary.origin.last_index, "the writer stood still; the test proves nothing"
    copy = MemoryJournal(MemoryStore(lambda: 0.0))
    await restore(copy, tmp_path / "backup")
    last = summary.origin.last_index
    assert [row.index for row in await read_all(copy)] == list(range(1, last + 1))
    assert (await copy.view("tasks", "counter")) == task("counter", epoch=last)
    assert {item.token for item in await copy.pending(10**6)} == {f"o{n}" for n in range(50, last + 1, 50)}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_damaged_backup_changes_nothing(make: Open, tmp_path: Path, kind: str) -> None:
    source, target = await make("memory"), await make(kind)
    lead = await source.lead("a", 60.0)
    for first in (1, 11, 21):
        await source.append(numbered_batch(lead, first, 10))
    path = tmp_path / "backup"
    await backup(source, path)
    whole = path.read_bytes()
    bad = tmp_path / "bad"
    for cut in (*range(10), len(whole) // 3, len(whole) // 2, len(whole) - 20, len(whole) - 1):
        bad.write_bytes(whole[:cut])
        await refused(Corrupt, restore(target, bad))
    for place in range(len(MAGIC) + 2, len(whole), 97):
        bad.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        error = await refused(Corrupt, restore(target, bad))
        assert str(bad) in error.object
    bad.write_bytes(whole + b"x")
    await refused(Corrupt, restore(target, bad))
    bad.write_bytes(MAGIC + (FORMAT + 1).to_bytes(2, "big") + whole[10:])
    assert f"format {FORMAT + 1}" in (await refused(TooNew, restore(target, bad))).cause
    bad.write_bytes(b"SQLite format 3\0" * 4)
    await refused(BadRequest, restore(target, bad))
    await refused(NotFound, restore(target, tmp_path / "never"))
    assert await target.read(0) == []
    assert await target.page("tasks", {}, "key", "", 10) == []
    assert (await restore(target, path)).rows == 30, "the target is still empty and takes the good one"
    await refused(Conflict, restore(target, path))
    await refused(Conflict, backup(source, path))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_journal_that_is_led_is_not_overwritten(make: Open, tmp_path: Path, kind: str) -> None:
    source, target = await make("memory"), await make(kind)
    lead = await source.lead("a", 60.0)
    await source.append(numbered_batch(lead, 1, 10))
    await backup(source, tmp_path / "backup")
    await target.lead("b", 60.0)
    assert "led by b" in (await refused(Conflict, restore(target, tmp_path / "backup"))).cause
    await target.resign()
    assert (await restore(target, tmp_path / "backup")).rows == 10


async def test_views_that_gained_fields_are_restored_and_those_that_lost_some_are_too_new(tmp_path: Path) -> None:
    """The file carries fields by name. An older one lacks a field of today; a newer one has one more."""
    from clutch.backends.journal.shapes import view_from

    plain = msgspec.structs.asdict(task("t1"))
    older = {name: value for name, value in plain.items() if name not in ("restarts", "detail")}
    assert view_from("tasks", older) == task("t1", restarts=0, detail="")

    from clutch.backends.journal import backup as files

    part = files._Part(None, (), [("tasks", {**plain, "colour": "red"})], ())
    with pytest.raises(TooNew, match="colour"):
        files._chunk(part, tmp_path)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_the_commands(new_address: Address, opened: Open, tmp_path: Path, kind: str) -> None:
    source, target = await new_address("sqlite"), await new_address(kind)
    journal = await opened(source)
    await journal.append(numbered_batch(await journal.lead("a", 60.0), 1, 10))
    app = typer.Typer()
    add_commands(app)

    async def clutch(*words: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, app, list(words))

    saved = await clutch("backup", "--journal", source, f"{tmp_path}/file")
    assert saved.exit_code == 0, saved.output
    assert "generation 1, rows up to 10 (10 kept)" in saved.output
    done = await clutch("restore", "-j", target, f"{tmp_path}/file", "--json")
    assert done.exit_code == 0, done.output
    assert msgspec.json.decode(done.output)["origin"]["generation"] == 2
    assert await (await opened(target)).read(0) == await journal.read(0)
    assert isinstance((await clutch("restore", "-j", target, f"{tmp_path}/file")).exception, Conflict)
