"""What only a file can suffer: a torn write-ahead log, two processes, a large snapshot beside small appends."""

import asyncio
import shutil
import sqlite3
from pathlib import Path
from random import Random

from clutch.backends.journal.sqlite import SqliteJournal
from clutch.testing.journal_suite import numbered_batch, read_all, refused, task
from clutch.wire.errors import Unavailable
from clutch.wire.journal import Snapshot

BATCH = 10


async def abandoned(path: Path, batches: int) -> None:
    """A file and its write-ahead log as a killed process leaves them: copied while it runs."""
    journal = await SqliteJournal.open(path.with_suffix(".live"))
    lead = await journal.lead("a", 0.0)
    for n in range(batches):
        await journal.append(numbered_batch(lead, n * BATCH + 1, BATCH))
    for suffix in ("", "-wal"):
        shutil.copy(f"{journal.path}{suffix}", f"{path}{suffix}")
    await journal.close()


def harm(wal: Path, chance: Random, torn: bool) -> None:
    data = bytearray(wal.read_bytes())
    place = chance.randrange(32, len(data))
    if torn:
        wal.write_bytes(data[:place])
    else:
        data[place] ^= 1 << chance.randrange(8)
        wal.write_bytes(data)


async def test_a_torn_or_rotten_write_ahead_log_leaves_whole_batches(tmp_path: Path) -> None:
    """SQLite drops everything from the first frame that is not whole; what is left must be batches, checked."""
    source = tmp_path / "source.db"
    await abandoned(source, 30)
    found = set()
    for seed in range(24):
        path = tmp_path / f"{seed}.db"
        for suffix in ("", "-wal"):
            shutil.copy(f"{source}{suffix}", f"{path}{suffix}")
        harm(Path(f"{path}-wal"), Random(seed), torn=seed % 2 == 0)
        journal = await SqliteJournal.open(path)
        rows = await read_all(journal)
        assert len(rows) % BATCH == 0
        counter = await journal.view("tasks", "counter")
        assert counter == (task("counter", epoch=len(rows)) if rows else None)
        assert len(await journal.pending(999)) == len(rows) // BATCH
        lead = await journal.lead("b", 60.0)
        assert lead.last_index == len(rows)
        assert await journal.append(numbered_batch(lead, len(rows) + 1, BATCH)) == len(rows) + BATCH
        await journal.close()
        found.add(len(rows))
    assert len(found) > 5, f"the harm did not bite: {found}"


async def test_a_large_snapshot_lets_appends_through(tmp_path: Path) -> None:
    journal = await SqliteJournal.open(tmp_path / "journal.db")
    lead = await journal.lead("a", 60.0)
    await journal.append(numbered_batch(lead, 1, BATCH))
    saving = asyncio.create_task(journal.save_snapshot(Snapshot(BATCH, 1, bytes(40 << 20))))
    last, between = BATCH, 0
    while not saving.done():
        last = await journal.append(numbered_batch(lead, last + 1, BATCH))
        between += 1
    await saving
    assert between >= 40, f"{between} appends passed a snapshot of 40 pieces"
    assert len((await journal.load_snapshot() or Snapshot(0, 0, b"")).payload) == 40 << 20
    await journal.close()


async def test_an_unfinished_snapshot_is_no_snapshot_and_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = await SqliteJournal.open(path)
    lead = await journal.lead("a", 60.0)
    await journal.append(numbered_batch(lead, 1, BATCH))
    await journal.save_snapshot(Snapshot(5, 1, b"five"))
    saving = asyncio.create_task(journal.save_snapshot(Snapshot(BATCH, 1, bytes(20 << 20))))
    while _pieces(path) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    saving.cancel()
    await asyncio.gather(saving, return_exceptions=True)
    assert await journal.load_snapshot() == Snapshot(5, 1, b"five")
    await journal.save_snapshot(Snapshot(6, 1, b"six"))
    assert _pieces(path) == 2
    await journal.close()


def _pieces(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM snapshot_pieces").fetchone()[0])
    finally:
        connection.close()


async def test_a_file_locked_by_a_stranger_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = await SqliteJournal.open(path)
    lead = await journal.lead("a", 60.0)
    journal._file._db.execute("PRAGMA busy_timeout = 50")
    stranger = sqlite3.connect(path, isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    await refused(Unavailable, journal.append(numbered_batch(lead, 1, BATCH)))
    assert await journal.read(0) == [], "readers go on"
    stranger.execute("ROLLBACK")
    stranger.close()
    assert await journal.append(numbered_batch(lead, 1, BATCH)) == BATCH
    await journal.close()


async def test_commits_wait_for_the_platter(tmp_path: Path) -> None:
    journal = await SqliteJournal.open(tmp_path / "journal.db")
    assert journal._file._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert journal._file._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert (tmp_path / "journal.db").stat().st_mode & 0o077 == 0
    await journal.close()
