"""Three real processes: kill -9, torn logs, wrong keys, two nodes with one id, snapshots, members that come and go."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from clutch.consensus import frames
from clutch.consensus.replicated_log import ReplicatedLog
from clutch.consensus.state import Limits
from clutch.consensus.transport import new_keys
from clutch.testing.raft_processes import ProcessGroup
from clutch.wire.errors import ClutchError, DiskFull, NotFound, NotLeader, TooLarge
from clutch.wire.raft import Applied, Entry, EntryKind, RaftId, Restore


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[ProcessGroup]:
    found = ProcessGroup(tmp_path)
    found.start()
    try:
        yield found
    finally:
        found.close()


async def read_all(group: ProcessGroup, name: str, upto: int) -> list[Entry]:
    """Every entry a member has applied, as a follower of its log sees them."""
    log = await group.connect(name)
    entries: list[Entry] = []
    async with log, asyncio.timeout(20):
        async for event in log.follow():
            assert isinstance(event, Applied), event
            entries += event.entries
            if event.upto >= upto:
                break
    return entries


async def append_somehow(group: ProcessGroup, names: list[str], data: bytes, key: str) -> int:
    """Ask any member until one answers, always with the same key."""
    async with asyncio.timeout(30):
        while True:
            for name in [n for n in names if group.members[n].process is not None]:
                try:
                    log = await ReplicatedLog.connect(group.members[name].settings.socket, timeout_s=0.2)
                    async with log:
                        return await log.append(data, key, timeout_s=3.0)
                except (ClutchError, OSError):
                    continue
            await asyncio.sleep(0.05)


async def test_what_any_member_appends_every_member_has(group: ProcessGroup) -> None:
    await group.leader()
    indexes = []
    for name in group.members:
        async with await group.connect(name) as log:
            indexes.append(await log.append(name.encode(), key=name))
            assert await log.append(name.encode(), key=name) == indexes[-1]  # a retry is the same entry
            assert await log.barrier() >= indexes[-1]
    assert indexes == sorted(indexes)
    for name in group.members:
        await group.until_applied(name, indexes[-1])
        assert [e.data for e in await read_all(group, name, indexes[-1])] == [n.encode() for n in group.members]


async def test_kill_9_of_the_leader_again_and_again_loses_nothing(group: ProcessGroup) -> None:
    acknowledged: dict[str, int] = {}
    names = list(group.members)
    for turn in range(4):
        victim = await group.leader()
        writer = asyncio.create_task(_write(group, names, acknowledged, f"turn{turn}", 40))
        await _until(lambda t=turn: sum(k.startswith(f"turn{t}") for k in acknowledged) >= 10)
        group.members[victim].kill()
        new = await group.leader(among=[n for n in names if n != victim])
        assert new != victim
        await writer
        group.members[victim].start()
    last = max(acknowledged.values())
    assert len(acknowledged) == 160
    for name in names:
        await group.until_applied(name, last)
        seen = {e.key: e.index for e in await read_all(group, name, last)}
        assert {k: seen.get(k) for k in acknowledged} == acknowledged


async def _write(group: ProcessGroup, names: list[str], acknowledged: dict[str, int], prefix: str, count: int) -> None:
    for number in range(count):
        key = f"{prefix}-{number}"
        acknowledged[key] = await append_somehow(group, names, os.urandom(300), key)


async def _until(condition: object, timeout_s: float = 20.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(timeout_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def until_reason(group: ProcessGroup, name: str, word: str) -> None:
    """Wait until a member's status says this."""
    async with asyncio.timeout(20):
        while True:
            status = await group.status(name)
            if status is not None and word in status.reason:
                return
            await asyncio.sleep(0.05)


async def test_kill_9_of_all_at_once_loses_nothing(group: ProcessGroup) -> None:
    await group.leader()
    async with await group.connect("r0.1") as log:
        indexes = [await log.append(bytes([i]) * 1000, key=f"k{i}") for i in range(50)]
    for member in group.members.values():
        member.kill()
    group.start()
    await group.leader()
    entries = await read_all(group, "r1.1", (await append_at(group, "r1.1")) - 1)
    assert [e.index for e in entries[:50]] == indexes


async def append_at(group: ProcessGroup, name: str) -> int:
    async with await group.connect(name) as log:
        return await log.append(b"last", key="last")


def _current_segment(folder: Path) -> Path:
    return max(folder.glob("*.wal"))


async def test_a_torn_last_write_is_cut_and_the_member_goes_on(group: ProcessGroup) -> None:
    names = list(group.members)
    leader = await group.leader()
    victim = next(n for n in names if n != leader)
    async with await group.connect(leader) as log:
        index = max([await log.append(os.urandom(200)) for _ in range(20)])
    await group.until_applied(victim, index)
    group.members[victim].kill()
    segment = _current_segment(group.members[victim].folder)
    data = bytearray(segment.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    # A write that the power cut stopped: the first half of a frame, then zeros.
    identity = msgspec.msgpack.decode((group.members[victim].folder / "identity").read_bytes()[4:])
    seed = frames.birth_seed(identity["identity"]["birth"])
    first = frames.number_of(bytes(data))
    number = first + len(frames.scan(bytes(data), first, seed, "segment").records)
    batch = frames.Batch(None, [Entry(99, 1, EntryKind.DATA, os.urandom(900), "torn")])
    torn = b"".join(frames.encode(batch, number, seed, end))[:450]
    data[end : end + len(torn)] = torn
    segment.write_bytes(bytes(data))
    group.members[victim].start()
    async with await group.connect(leader) as log:
        index = await log.append(b"after")
    await group.until_applied(victim, index)
    assert len(await read_all(group, victim, index)) == 21


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "empty", "identity"])
async def test_a_damaged_log_is_refused_and_left_as_it_is(group: ProcessGroup, damage: str) -> None:
    names = list(group.members)
    leader = await group.leader()
    victim = group.members[next(n for n in names if n != leader)]
    async with await group.connect(leader) as log:
        index = max([await log.append(os.urandom(200)) for _ in range(20)])
    await group.until_applied(f"{victim.id.member}.1", index)
    victim.kill()
    segment = _current_segment(victim.folder)
    data = segment.read_bytes()
    if damage == "flip":
        place = len(data.rstrip(b"\0")) // 2
        segment.write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
    elif damage == "truncate":
        segment.write_bytes(data[: len(data.rstrip(b"\0")) - 100])
    elif damage == "missing":
        segment.unlink()
    elif damage == "empty":
        segment.write_bytes(b"")
    else:
        (victim.folder / "identity").unlink()
    before = {p.name: p.read_bytes() for p in victim.folder.iterdir()}
    victim.start()
    assert victim.wait() == 3
    assert msgspec.json.decode(victim.last_error())["code"] == "corrupt"
    assert {p.name: p.read_bytes() for p in victim.folder.iterdir()} == before


async def test_a_folder_is_used_by_one_process(group: ProcessGroup) -> None:
    await group.leader()
    twin = group.members["r0.1"]
    again = type(twin)(twin.settings, twin.home.with_name("twin"))
    again.start()
    assert again.wait() == 2
    assert msgspec.json.decode(again.last_error())["code"] == "conflict"


async def test_a_second_node_with_the_same_id_is_refused(group: ProcessGroup) -> None:
    """The machine of r2 lost its disk and somebody starts it again as if nothing had happened."""
    await group.leader()
    async with await group.connect("r0.1") as log:
        await log.append(b"something")
    await group.until_applied("r2.1", 2)
    impostor = group.members["r2.1"]
    impostor.kill()
    for file in sorted(impostor.folder.iterdir()):
        file.unlink()
    impostor.start()
    assert impostor.wait() in (2, 3)
    error = msgspec.json.decode(impostor.last_error())
    assert error["code"] in ("conflict", "corrupt")  # told by a peer, or seen by itself, whichever comes first
    assert "learner" in error["next_step"]
    async with await group.connect("r0.1") as log:
        await log.append(b"the others go on")


async def test_a_wrong_key_and_another_session_are_refused(group: ProcessGroup, tmp_path: Path) -> None:
    await group.leader()
    # The right id with a key that nobody knows.
    stranger = group.members["r2.1"]
    stranger.kill()
    right = stranger.settings
    stranger.settings = msgspec.structs.replace(right, keys=new_keys(), folder=str(tmp_path / "other"))
    stranger.start()
    await until_reason(group, "r2.1", "not_allowed")
    await until_reason(group, "r0.1", "an unknown key")
    stranger.kill()
    # The right key, but a member of another session.
    stranger.settings = msgspec.structs.replace(right, group="session-2", folder=str(tmp_path / "another"))
    stranger.start()
    await until_reason(group, "r0.1", "session-2")
    async with await group.connect(await group.leader(among=["r0.1", "r1.1"])) as log:
        await log.append(b"the session itself goes on")


async def test_an_entry_over_the_limit_is_refused(group: ProcessGroup) -> None:
    await group.leader()
    async with await group.connect("r0.1") as log:
        with pytest.raises(TooLarge):
            await log.append(b"x" * (group.limits.max_entry_bytes + 1))
        assert await log.append(b"y" * (1 << 20)) > 0
    async with await group.connect("r0.1") as log:
        with pytest.raises(ClutchError):
            await log.append(b"x" * (group.limits.max_entry_bytes + (1 << 20)), timeout_s=5.0)
    async with await group.connect("r0.1") as log:
        assert await log.append(b"z") > 0


async def test_a_learner_takes_the_place_of_a_member_without_its_disk(group: ProcessGroup) -> None:
    leader = await group.leader()
    async with await group.connect(leader) as log:
        for number in range(30):
            await log.append(os.urandom(500), key=f"k{number}")
        gone = group.members[next(n for n in group.members if n != leader)]
        gone.kill()
        successor = RaftId(1, gone.id.member, 2)
        keys = new_keys()
        address = group.make_address(successor, keys)
        group.add(address, keys, founder=False).start()
        follower = next(n for n in group.members if n not in (leader, f"{gone.id.member}.1", f"{successor.member}.2"))
        async with await group.connect(follower) as other:
            with pytest.raises(NotLeader) as refused:
                await other.add_learner(address)
            assert refused.value.leader == f"{leader[:2]}.1@g1"
        await log.add_learner(address)
        with pytest.raises(ClutchError):
            await log.add_learner(address)  # an id is never used twice
        async with asyncio.timeout(20):
            while True:
                try:
                    await log.promote(successor)
                    break
                except ClutchError:
                    await asyncio.sleep(0.05)
        await log.remove(gone.id)
        index = await log.append(b"together")
        status = await log.status()
        assert sorted(m.id for m in status.members if m.voter) == sorted(
            [successor, *(a.id for a in group.addresses if a.id != gone.id)]
        )
    await group.until_applied(f"{successor.member}.2", index)
    assert len(await read_all(group, f"{successor.member}.2", index)) == 31


async def test_leadership_is_handed_over(group: ProcessGroup) -> None:
    leader = await group.leader()
    target = next(n for n in group.members if n != leader)
    async with await group.connect(leader) as log:
        await log.append(b"one")
        await log.transfer(group.members[target].id)
        assert await group.leader() == target
        await log.append(b"two")  # by way of the new leader


async def test_a_member_that_was_away_gets_a_snapshot_then_the_rest(tmp_path: Path) -> None:
    limits = Limits(keep_entries=10, keep_bytes=10_000, chunk_bytes=64 << 10)
    group = ProcessGroup(tmp_path / "group", limits=limits)
    group.start()
    try:
        leader = await group.leader()
        away = next(n for n in group.members if n != leader)
        group.members[away].kill()
        async with await group.connect(leader) as log:
            for number in range(50):
                index = await log.append(os.urandom(100), key=f"before{number}")
            state = tmp_path / "state"
            body = os.urandom(3 << 20)
            state.write_bytes(body)
            with pytest.raises(NotFound):
                await log.save_snapshot(index, tmp_path / "no such file")
            both = await asyncio.gather(
                log.save_snapshot(index, state), log.save_snapshot(index, state), return_exceptions=True
            )
            assert [b for b in both if not isinstance(b, ClutchError)] == [index]  # one at a time
            with pytest.raises(ClutchError):
                await log.save_snapshot(index - 5, state)  # older than the one there is
            for number in range(20):
                last = await log.append(os.urandom(100), key=f"after{number}")
            status = await log.status()
            assert status.first_index > 1
        group.members[away].start()
        await group.until_applied(away, last)
        async with await group.connect(away) as log, asyncio.timeout(20):
            events = log.follow()
            first = await anext(events)
            assert isinstance(first, Restore)
            assert first.index == index
            stored = await asyncio.to_thread(Path(first.path).read_bytes)
            assert stored[first.offset : first.offset + len(body)] == body
            keys: list[str] = []
            async for event in events:
                assert isinstance(event, Applied)
                keys += [e.key for e in event.entries]
                if event.upto >= last:
                    break
            assert keys == [f"after{n}" for n in range(20)]
        # And after a restart from its own snapshot, a repeated key is still known.
        group.members[away].kill()
        group.members[away].start()
        await group.until_applied(away, last)
        async with await group.connect(away) as log:
            assert await log.append(b"ignored", key="before49") == index
    finally:
        group.close()


async def test_a_paused_leader_is_replaced_and_comes_back_as_a_follower(group: ProcessGroup) -> None:
    leader = await group.leader()
    others = [n for n in group.members if n != leader]
    group.members[leader].pause()
    new = await group.leader(among=others)
    async with await group.connect(new) as log:
        index = await log.append(b"while it slept")
    group.members[leader].proceed()
    status = await group.until_applied(leader, index)
    assert status.role == "follower"


async def test_a_user_that_holds_the_interpreter_costs_no_election(group: ProcessGroup) -> None:
    """This process is the user's: it blocks for longer than two election timeouts, and its member goes on leading."""
    leader = await group.leader()
    async with await group.connect(leader) as log:
        await log.append(b"before")
        term = (await log.status()).term
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            sum(range(200_000))
        status = await log.status()
        assert (status.term, status.role) == (term, "leader")
        await log.append(b"after")


async def test_an_application_is_driven_saved_and_restored(tmp_path: Path) -> None:
    """The hooks: apply, save when the log has grown, restore after a restart."""
    limits = Limits(snapshot_after_bytes=20_000, keep_entries=5, keep_bytes=2_000)
    group = ProcessGroup(tmp_path / "group", count=1, limits=limits)
    group.start()
    try:
        await group.leader()
        counter = Counter()
        async with await group.connect("r0.1") as log:
            driving = asyncio.create_task(log.drive(counter, tmp_path / "scratch"))
            async with await group.connect("r0.1") as writer:
                for number in range(200):
                    last = await writer.append(b"x" * 200, key=f"k{number}")
            await _until(lambda: counter.total == 200 and counter.saves >= 1)
            driving.cancel()
        group.members["r0.1"].kill()
        group.members["r0.1"].start()
        await group.until_applied("r0.1", last)
        again = Counter()
        async with await group.connect("r0.1") as log:
            driving = asyncio.create_task(log.drive(again, tmp_path / "scratch"))
            await _until(lambda: again.total == 200)
            assert again.restores == 1
            driving.cancel()
    finally:
        group.close()


class Counter:
    """An application: how many entries there were."""

    def __init__(self) -> None:
        self.total = self.saves = self.restores = 0

    def apply(self, entries: tuple[Entry, ...]) -> None:
        self.total += len(entries)

    def save(self, path: Path) -> None:
        self.saves += 1
        path.write_bytes(self.total.to_bytes(8, "little"))

    def restore(self, path: Path, offset: int) -> None:
        self.restores += 1
        self.total = int.from_bytes(path.read_bytes()[offset : offset + 8], "little")


async def test_a_member_that_slept_while_the_group_changed_finds_the_new_leader(group: ProcessGroup) -> None:
    """It has never heard of the member that leads now, nor of its key: another member introduces them."""
    leader = await group.leader()
    sleeper = next(n for n in group.members if n != leader)
    async with await group.connect(leader) as log:
        await log.append(b"before")
        group.members[sleeper].kill()
        keys = new_keys()
        address = group.make_address(RaftId(1, "r9", 1), keys)
        group.add(address, keys, founder=False).start()
        await log.add_learner(address)
        async with asyncio.timeout(20):
            while True:
                try:
                    await log.promote(address.id)
                    break
                except ClutchError:
                    await asyncio.sleep(0.05)
        await log.transfer(address.id)
    assert await group.leader() == "r9.1"
    async with await group.connect("r9.1") as log:
        index = await log.append(b"by the new leader")
    group.members[sleeper].start()
    status = await group.until_applied(sleeper, index)
    assert status.leader == address.id


async def test_a_group_without_a_majority_begins_again_as_the_next_generation(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_bytes(b"the last snapshot that was uploaded")
    group = ProcessGroup(tmp_path / "group", generation=2)
    group.change_settings(restore_path=str(state), restore_index=40)
    group.start()
    try:
        leader = await group.leader()
        async with await group.connect(leader) as log:
            assert await log.append(b"next") > 40
            async with asyncio.timeout(20):
                event = await anext(log.follow())
            assert isinstance(event, Restore)
            assert event.index == 40
            stored = await asyncio.to_thread(Path(event.path).read_bytes)
            assert stored[event.offset :].startswith(b"the last snapshot")
    finally:
        group.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
async def test_a_full_disk_is_told_and_what_was_acknowledged_stays(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(place)], check=True)
    group = ProcessGroup(place / "group", count=1)
    try:
        group.start()  # with the usual reserve: refused before anything is written
        await group.leader()
        async with await group.connect("r0.1") as log, asyncio.timeout(20):
            while True:
                try:
                    await log.append(b"x" * 1000)
                except DiskFull:
                    break
        group.members["r0.1"].stop()
        group.change_settings(reserve_bytes=0)  # without: it goes on until the disk itself refuses
        group.start()
        await group.leader()
        acknowledged: dict[str, int] = {}
        async with await group.connect("r0.1") as log:
            with pytest.raises(ClutchError):
                for number in range(100):
                    acknowledged[f"k{number}"] = await log.append(os.urandom(300_000), key=f"k{number}", timeout_s=3)
        assert group.members["r0.1"].wait() == 3
        assert msgspec.json.decode(group.members["r0.1"].last_error())["code"] == "disk_full"
        assert acknowledged
        remount = ["mount", "-o", "remount,size=100m", str(place)]
        await asyncio.to_thread(subprocess.run, remount, check=True)
        group.start()
        await group.leader()
        last = max(acknowledged.values())
        await group.until_applied("r0.1", last)
        seen = {e.key: e.index for e in await read_all(group, "r0.1", last)}
        assert {k: seen.get(k) for k in acknowledged} == acknowledged
    finally:
        group.close()
        await asyncio.to_thread(subprocess.run, ["umount", str(place)], check=True)


async def test_settings_that_cannot_work_are_refused(group: ProcessGroup, tmp_path: Path) -> None:
    await group.leader()
    member = group.members["r0.1"]
    taken = msgspec.structs.replace(member.settings, folder=str(tmp_path / "x"), socket=str(tmp_path / "x.sock"))
    other = type(member)(taken, tmp_path / "other")
    other.start()
    assert other.wait() == 2
    assert msgspec.json.decode(other.last_error())["code"] == "conflict"  # the address is in use
    for content, mode, code in ((b"{}", 0o600, "bad_request"), (msgspec.json.encode(taken), 0o644, "not_allowed")):
        file = tmp_path / "settings.json"
        file.write_bytes(content)
        file.chmod(mode)
        command = [sys.executable, "-m", "clutch.consensus.main", str(file)]
        found = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=30)
        assert found.returncode == 2
        assert msgspec.json.decode(found.stderr)["code"] == code
