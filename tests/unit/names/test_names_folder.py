"""Names in a folder: slow parties, damage, sweeping, and addresses."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clutch.backends.names import folder as module
from clutch.backends.names.file import FileNames
from clutch.backends.names.folder import NameFolder, Record
from clutch.backends.names.memory import MemoryNames, NameBoard
from clutch.backends.names.opening import open_names
from clutch.wire.errors import BadRequest, Conflict, Corrupt, Stale, Unavailable


class SlowLinker(NameFolder):
    """Looks, then lets others act before it links."""

    before_link: Callable[[], object] | None = None

    def _link(self, place: int, number: int, record: Record) -> bool:
        act, self.before_link = self.before_link, None
        if act is not None:
            act()
        return super()._link(place, number, record)


def age(path: Path, seconds: float) -> None:
    for place in (path / "names").iterdir():
        for record in place.iterdir():
            os.utime(record, (record.stat().st_mtime - seconds,) * 2)
        os.utime(place)


def test_who_saw_an_expired_entry_loses_to_renewals_made_since(tmp_path: Path) -> None:
    """The slow party's number was used and swept meanwhile, so its link succeeds; still it must not win."""
    slow, quick = SlowLinker(tmp_path), NameFolder(tmp_path)
    old = quick.add("n", b"old", 10.0, False)
    age(tmp_path, 11)

    def taken_and_renewed() -> None:
        held = quick.add("n", b"quick", 10.0, False)
        for _ in range(3):
            quick.renew("n", held.token, None)

    slow.before_link = taken_and_renewed
    with pytest.raises(Conflict):
        slow.add("n", b"slow", 10.0, False)
    held = quick.get("n")
    assert held is not None
    assert held.value == b"quick"
    with pytest.raises(Stale):
        slow.renew("n", old.token, b"mine")


def test_a_renewal_that_is_overtaken_is_stale(tmp_path: Path) -> None:
    slow, quick = SlowLinker(tmp_path), NameFolder(tmp_path)
    held = slow.add("n", b"slow", 10.0, False)
    slow.before_link = lambda: quick.add("n", b"quick", 10.0, True)
    with pytest.raises(Stale):
        slow.renew("n", held.token, None)
    slow.before_link = None
    heir = quick.get("n")
    assert heir is not None
    slow.before_link = lambda: quick.renew("n", heir.token, b"2")
    quick_view = slow.remove("n", heir.token)  # the token is right, so a concurrent renewal only delays it
    assert quick_view
    assert quick.get("n") is None


def test_threads_that_take_over_from_each_other_never_share_a_token(tmp_path: Path) -> None:
    parties = [NameFolder(tmp_path) for _ in range(4)]

    def take(party: NameFolder) -> list[int]:
        return [party.add("n", b"", 60.0, True).token for _ in range(25)]

    with ThreadPoolExecutor(4) as pool:
        tokens = [token for found in pool.map(take, parties) for token in found]
    assert len(set(tokens)) == 100
    last = parties[0].get("n")
    assert last is not None
    assert last.token == max(tokens)
    assert len(list((tmp_path / "names" / "n").iterdir())) == 1
    assert not [left for left in (tmp_path / "work").iterdir() if left.name.startswith("record-")]


def test_what_ended_long_ago_is_swept_and_tokens_still_grow(tmp_path: Path) -> None:
    names = NameFolder(tmp_path)
    removed = names.add("a/removed", b"", 10.0, False)
    names.remove("a/removed", removed.token)
    expired = names.add("a/expired", b"", 10.0, False)
    names.add("a/stays", b"", None, False)
    age(tmp_path, module.SWEEP_AFTER_S + 60)
    assert [entry.name for entry in names.list("a")] == ["a/stays"]
    assert [place.name for place in (tmp_path / "names").iterdir()] == ["a\\stays"]
    assert names.add("a/expired", b"", 10.0, False).token > expired.token
    assert names.add("a/removed", b"", 10.0, False).token > removed.token


def test_a_sweeper_that_is_overtaken_takes_nothing_away(tmp_path: Path) -> None:
    slow, quick = SlowLinker(tmp_path), NameFolder(tmp_path)
    quick.add("n", b"", 10.0, False)
    age(tmp_path, module.SWEEP_AFTER_S + 60)
    slow.before_link = lambda: quick.add("n", b"new", 10.0, False)
    assert not slow.sweep("n")
    found = slow.get("n")
    assert found is not None
    assert found.value == b"new"
    assert not slow.sweep("n")
    assert not slow.sweep("never")


def test_an_adder_that_looked_before_the_sweep_begins_anew(tmp_path: Path) -> None:
    slow, sweeper, other = SlowLinker(tmp_path), NameFolder(tmp_path), NameFolder(tmp_path)
    other.add("n", b"", 10.0, False)
    age(tmp_path, module.SWEEP_AFTER_S + 60)

    def swept_and_added_again() -> None:
        assert sweeper.sweep("n")
        other.add("n", b"other", 10.0, False)

    slow.before_link = swept_and_added_again
    with pytest.raises(Conflict):
        slow.add("n", b"slow", 10.0, False)


def test_a_dead_sweepers_seal_holds_only_for_a_while(tmp_path: Path) -> None:
    names = NameFolder(tmp_path)
    entry = names.add("n", b"", 10.0, False)
    record = next((tmp_path / "names" / "n").iterdir())
    record.with_name("00000000000000000002").write_bytes(module._pack(Record(module.Kind.SEALED, "n", entry.token)))
    with pytest.raises(Unavailable):
        names.add("n", b"", 10.0, False)
    assert names.get("n") is None
    age(tmp_path, module.SEAL_HOLDS_S + 1)
    assert names.add("n", b"", 10.0, False).token > entry.token


def test_damage_is_said_and_replaced_only_on_demand(tmp_path: Path) -> None:
    names = NameFolder(tmp_path)
    names.add("n", b"value", None, False)
    record = next((tmp_path / "names" / "n").iterdir())
    for damaged in (b"", b"xy", record.read_bytes()[:-1], record.read_bytes() + b"!"):
        record.write_bytes(damaged)
        for call in (lambda: names.get("n"), lambda: names.list(""), lambda: names.add("n", b"", None, False)):
            with pytest.raises(Corrupt):
                call()
    assert names.add("n", b"new", None, True).value == b"new"
    assert [entry.value for entry in names.list("")] == [b"new"]


def test_half_written_work_of_the_dead_is_not_seen_and_swept_after_a_day(tmp_path: Path) -> None:
    NameFolder(tmp_path).close()
    half = tmp_path / "work" / "record-1-dead"
    half.write_bytes(b"half")
    assert NameFolder(tmp_path).list("") == []
    assert half.exists()
    os.utime(half, (0, 0))
    NameFolder(tmp_path)
    assert not half.exists()


def test_the_clock_file_comes_back(tmp_path: Path) -> None:
    names = NameFolder(tmp_path)
    for left in (tmp_path / "work").iterdir():
        left.unlink()
    names.add("n", b"", 10.0, False)
    assert len(names.list("")) == 1


async def test_opening(tmp_path: Path) -> None:
    for url in (str(tmp_path / "x" / "y"), f"file://{tmp_path}/with%20space"):
        names = await open_names(url)
        await names.add("n", b"", ttl_s=1)
        await names.close()
        await names.close()
        with pytest.raises(Unavailable):
            await names.list()
    assert (tmp_path / "with space" / "names").is_dir()
    assert await (await open_names("memory:")).list() == []
    file = tmp_path / "file"
    file.touch()
    for bad in ("", "\0", "file://", "file:///", "file:relative", "redis://host", str(file), str(file / "below")):
        with pytest.raises(BadRequest):
            await open_names(bad)
    for poll_s in (0, 61.0, float("nan")):
        with pytest.raises(BadRequest):
            await FileNames.open(tmp_path, poll_s=poll_s)


async def test_a_memory_watcher_sees_expiry_by_the_loops_time_alone() -> None:
    loop = asyncio.get_running_loop()
    names = MemoryNames(NameBoard(loop.time))
    await names.add("n", b"", ttl_s=0.03)
    seen = [change.seen async for change in _until_gone(names)]
    assert seen == ["added", "gone"]


async def _until_gone(names: MemoryNames):  # type: ignore[no-untyped-def]
    async for change in names.watch():
        yield change
        if change.seen == "gone":
            return


async def test_memory_keeps_no_deadline_of_the_past() -> None:
    now = 0.0
    board = NameBoard(lambda: now)
    names = MemoryNames(board)
    held = await names.add("n", b"", ttl_s=10)
    for _ in range(1000):
        now += 1
        await names.renew("n", held.token)
    assert board.next_deadline() == now + 10
    assert len(board._deadlines) < 100
    now += 11
    board.expire()
    assert board.next_deadline() is None
