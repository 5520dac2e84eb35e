"""What is on disk: torn tails are cut, everything else that is wrong is refused, and the files stay as they are."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clutch.consensus import configuration as configurations
from clutch.consensus import identity, packing, snapshots
from clutch.consensus.files import DiskFiles, disk_error
from clutch.consensus.frames import Batch
from clutch.consensus.keys import KeyWindow
from clutch.consensus.member import Member
from clutch.consensus.opening import Founding, Nature, open_log
from clutch.consensus.rules import Rules
from clutch.consensus.state import Limits
from clutch.consensus.wal import LogIdentity, Wal
from clutch.testing.disk import Disk
from clutch.testing.raft_disk import SimulatedFiles
from clutch.wire.errors import ClutchError, Conflict, Corrupt, DiskFull, NotAllowed, Stale, TooNew
from clutch.wire.raft import Address, Entry, EntryKind, HardState, Header, RaftId, SnapshotChunk, SnapshotMeta

A = RaftId(1, "a", 1)
ONE = configurations.first([Address(A)])
FIRST = SnapshotMeta(0, 0, ONE)
IDENTITY = LogIdentity("g", A, "birth")
LIMITS = Limits(segment_bytes=4096, max_segment_bytes=8192)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DiskFiles]:
    found = DiskFiles(tmp_path / "log")
    yield found
    found.close()


def entries(start: int, count: int, term: int = 1, size: int = 50) -> list[Entry]:
    return [Entry(i, term, EntryKind.DATA, bytes([i % 251]) * size, f"k{i}") for i in range(start, start + count)]


def fill(files: DiskFiles | SimulatedFiles, batches: int = 5, size: int = 50) -> list[Entry]:
    wal, _ = Wal.create(files, IDENTITY, FIRST, LIMITS)
    written: list[Entry] = []
    for number in range(batches):
        batch = entries(1 + 3 * number, 3, size=size)
        wal.append(Batch(HardState(1, A, number), batch))
        files.sync(wal.current)
        written += batch
    return written


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_what_was_written_is_read(files: DiskFiles) -> None:
    written = fill(files, 80)
    assert len([n for n in files.names() if n.endswith(".wal")]) > 2  # it rolled over
    _, recovered = Wal.open(files, IDENTITY, LIMITS)
    assert recovered.entries == written
    assert recovered.hard_state == HardState(1, A, 79)


def test_large_entries_are_read_whole(files: DiskFiles) -> None:
    written = fill(files, 2, size=packing.DETACH_FROM_BYTES + 17)
    assert Wal.open(files, IDENTITY, LIMITS)[1].entries == written


def test_a_later_leaders_entries_replace_a_suffix(files: DiskFiles) -> None:
    wal, _ = Wal.create(files, IDENTITY, FIRST, LIMITS)
    wal.append(Batch(HardState(1, A, 0), entries(1, 6)))
    wal.append(Batch(HardState(2, None, 2), entries(4, 1, term=2)))
    files.sync(wal.current)
    _, recovered = Wal.open(files, IDENTITY, LIMITS)
    assert [(e.index, e.term) for e in recovered.entries] == [(1, 1), (2, 1), (3, 1), (4, 2)]


def test_old_segments_go_when_a_snapshot_covers_them(files: DiskFiles) -> None:
    wal, _ = Wal.create(files, IDENTITY, FIRST, LIMITS)
    for number in range(60):
        wal.append(Batch(HardState(1, A, 0), entries(1 + 3 * number, 3)))
        files.sync(wal.current)
    before = len(files.names())
    snapshot, base = SnapshotMeta(150, 1, ONE), SnapshotMeta(140, 1, ONE)
    wal.compact(snapshot, base)
    assert len(files.names()) < before
    _, recovered = Wal.open(files, IDENTITY, LIMITS)
    assert (recovered.snapshot, recovered.base) == (snapshot, base)
    assert recovered.entries[0].index == 141
    assert recovered.entries[-1].index == 180
    assert recovered.hard_state.commit == 150


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_write_cut_anywhere_loses_only_itself(files: DiskFiles, data: st.DataObject) -> None:
    for name in files.names():
        files.remove(name)
    written = fill(files, 4)
    wal, _ = Wal.open(files, IDENTITY, LIMITS)
    name = wal.current
    before = len(files.read(name).rstrip(b"\0"))
    wal.append(Batch(HardState(2, A, 3), entries(13, 3, term=2)))
    whole = files.read(name)
    end = len(whole.rstrip(b"\0"))
    cut = data.draw(st.integers(before, end - 1))
    files.write(name, 0, whole[:cut] + bytes(len(whole) - cut))
    again, recovered = Wal.open(files, IDENTITY, LIMITS)
    assert recovered.entries == written
    # The log goes on from there, and the cut is not seen again.
    again.append(Batch(HardState(3, A, 3), entries(13, 1, term=3)))
    assert Wal.open(files, IDENTITY, LIMITS)[1].entries == [*written, *entries(13, 1, term=3)]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_taken_for_a_log(files: DiskFiles, place: float, bit: int) -> None:
    """Every bit of what was promised counts: a flip is refused, and nothing on disk changes."""
    for name in files.names():
        files.remove(name)
    fill(files, 6)
    name = max(n for n in files.names() if n.endswith(".wal"))
    data = bytearray(files.read(name))
    end = len(bytes(data).rstrip(b"\0"))
    data[int(place * end)] ^= 1 << bit
    files.write(name, 0, bytes(data))
    before = contents(files.folder)
    with pytest.raises((Corrupt, TooNew)):
        Wal.open(files, IDENTITY, LIMITS)
    assert contents(files.folder) == before


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), zeros=st.booleans())
def test_sectors_that_never_arrived_are_told_from_rot(files: DiskFiles, data: st.DataObject, zeros: bool) -> None:
    """A disk writes sectors in any order. Rot in data that is itself zeros looks much the same, and is told apart."""
    for name in files.names():
        files.remove(name)
    wal, _ = Wal.create(files, IDENTITY, FIRST, Limits())
    kept = entries(1, 3)
    wal.append(Batch(HardState(1, A, 0), kept))
    begin = len(files.read(wal.current).rstrip(b"\0"))
    size = data.draw(st.sampled_from([3_000, 50_000]))
    content = bytes(size) if zeros else os.urandom(size)
    wal.append(Batch(HardState(1, A, 0), [Entry(4, 1, EntryKind.DATA, content, "k4")]))
    whole = files.read(wal.current)
    end = len(whole.rstrip(b"\0"))
    place = data.draw(st.integers(begin, end - 1))
    flipped = whole[:place] + bytes([whole[place] ^ 2]) + whole[place + 1 :]
    files.write(wal.current, 0, flipped)
    with pytest.raises((Corrupt, TooNew)):
        Wal.open(files, IDENTITY, Limits())
    sector = data.draw(st.integers(begin // 512, (end - 1) // 512))
    low, high = max(begin, 512 * sector), min(end, 512 * sector + 512)
    missing = whole[:low] + bytes(high - low) + whole[high:]
    if missing != whole:
        files.write(wal.current, 0, missing)
        assert Wal.open(files, IDENTITY, Limits())[1].entries == kept


@pytest.mark.parametrize("damage", ["cut short", "emptied", "missing first", "missing middle", "swapped", "grown"])
def test_damaged_segments_are_refused(files: DiskFiles, damage: str) -> None:
    fill(files, 120)
    segments = [n for n in files.names() if n.endswith(".wal")]
    assert len(segments) >= 4
    path = [files.folder / n for n in segments]
    if damage == "cut short":
        os.truncate(path[-1], 3000)
    elif damage == "emptied":
        os.truncate(path[-1], 0)
    elif damage == "missing first":
        files.remove(segments[0])
    elif damage == "missing middle":
        files.remove(segments[1])
    elif damage == "swapped":
        one, other = path[1].read_bytes(), path[2].read_bytes()
        path[1].write_bytes(other)
        path[2].write_bytes(one)
    else:
        os.truncate(path[-1], 1 << 20)
    files.close()
    again = DiskFiles(files.folder)
    before = contents(again.folder)
    with pytest.raises(Corrupt):
        Wal.open(again, IDENTITY, LIMITS)
    assert contents(again.folder) == before
    again.close()
    files._open.clear()
    files.__init__(files.folder)  # type: ignore[misc]


def test_another_groups_or_members_log_is_refused(files: DiskFiles) -> None:
    fill(files)
    with pytest.raises((NotAllowed, Corrupt)):
        Wal.open(files, LogIdentity("other", A, "birth"), LIMITS)
    with pytest.raises((Stale, Corrupt)):
        Wal.open(files, LogIdentity("g", RaftId(1, "a", 2), "birth"), LIMITS)
    with pytest.raises(Corrupt):
        Wal.open(files, LogIdentity("g", A, "another birth"), LIMITS)


def test_a_newer_format_is_too_new(files: DiskFiles) -> None:
    fill(files)
    name = files.names()[0]
    files.write(name, 3, b"\x09")
    with pytest.raises(TooNew):
        Wal.open(files, IDENTITY, LIMITS)


def test_a_full_disk_is_told_as_such() -> None:
    files = SimulatedFiles(Disk(Random(1)))
    wal, _ = Wal.create(files, IDENTITY, FIRST, LIMITS)
    files.disk.capacity_bytes = files.disk.used_bytes() + 100
    with pytest.raises(DiskFull):
        wal.append(Batch(HardState(1, A, 0), entries(1, 3)))
    assert isinstance(disk_error(OSError(errno.EIO, "I/O error"), "x"), ClutchError)


def test_a_folder_has_one_user(tmp_path: Path) -> None:
    one = DiskFiles(tmp_path / "log")
    with pytest.raises(Conflict):
        DiskFiles(tmp_path / "log")
    one.close()
    DiskFiles(tmp_path / "log").close()


def test_a_folder_knows_whose_it_is(files: DiskFiles) -> None:
    open_log(files, "g", A, Founding("birth", ONE), LIMITS)
    assert open_log(files, "g", A, Founding("other", ONE), LIMITS).identity.birth == "birth"
    with pytest.raises(NotAllowed):
        open_log(files, "h", A, Founding("birth", ONE), LIMITS)
    with pytest.raises(Stale):
        open_log(files, "g", RaftId(1, "a", 2), Founding("birth", ONE), LIMITS)
    files.remove("identity")
    with pytest.raises(Corrupt):
        open_log(files, "g", A, Founding("birth", ONE), LIMITS)


def test_a_folder_that_was_never_finished_begins_again(files: DiskFiles) -> None:
    identity.write_identity(files, IDENTITY, complete=False)
    Wal.create(files, IDENTITY, FIRST, LIMITS)
    assert open_log(files, "g", A, Founding("new", ONE), LIMITS).identity.birth == "new"


def test_the_first_birth_of_an_id_is_the_only_one(files: DiskFiles) -> None:
    met = identity.Acquaintances(files, "g", 1)
    met.admit(Header("g", A, "one"))
    met.admit(Header("g", A, "one"))
    with pytest.raises(Conflict):
        met.admit(Header("g", A, "two"))
    with pytest.raises(NotAllowed):
        met.admit(Header("h", A, "one"))
    with pytest.raises(Stale):
        met.admit(Header("g", RaftId(0, "a", 1), "one"))
    with pytest.raises(Conflict):
        identity.Acquaintances(files, "g", 1).admit(Header("g", A, "two"))  # also after a restart
    files.write("acquaintances", 6, b"\xff")
    with pytest.raises(Corrupt):
        identity.Acquaintances(files, "g", 1)


def test_snapshots_are_whole_or_refused(files: DiskFiles) -> None:
    meta = SnapshotMeta(7, 2, ONE)
    head = snapshots.SnapshotHead(meta, KeyWindow(10).state())
    name = snapshots.write(files, head, [b"a" * 1000, b"b" * 1000])
    snapshots.verify(files, name)
    assert snapshots.read_head(files, name)[0] == head
    assert snapshots.body(files, name) == b"a" * 1000 + b"b" * 1000
    data = files.read(name)
    for place in (0, 5, 14, len(data) // 2, len(data) - 1):
        files.write(name, 0, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises((Corrupt, TooNew)):
            snapshots.verify(files, name)
            snapshots.read_head(files, name)
    files.write(name, 0, data)
    os.truncate(files.folder / name, len(data) - 5)
    with pytest.raises(Corrupt):
        snapshots.verify(files, name)


def test_a_damaged_snapshot_that_arrives_is_not_installed(files: DiskFiles) -> None:
    meta = SnapshotMeta(7, 2, ONE)
    name = snapshots.write(files, snapshots.SnapshotHead(meta, KeyWindow(10).state()), [os.urandom(5000)])
    data = files.read(name)

    def receive(data: bytes) -> snapshots.Incoming:
        chunks = [(at, data[at : at + 700]) for at in range(0, len(data), 700)]
        make = [SnapshotChunk("g", A, A, 1, meta, at, len(data), piece) for at, piece in chunks]
        incoming = snapshots.Incoming(files, make[0])
        for chunk in [make[0], make[2], make[0], *make[1:]]:  # out of order and twice: only what is next is taken
            incoming.take(chunk)
        assert incoming.complete
        return incoming

    receive(data).check()
    damaged = bytearray(data)
    damaged[3000] ^= 4
    with pytest.raises(Corrupt):
        receive(bytes(damaged)).check()


def test_a_member_without_its_snapshot_is_refused(files: DiskFiles) -> None:
    founding = Founding("b", ONE, snapshot_index=5, snapshot_term=1, snapshot_body=b"state")
    log = open_log(files, "g", A, founding, LIMITS)
    assert log.recovered.snapshot.index == 5
    files.remove(snapshots.file_name(log.recovered.snapshot))
    with pytest.raises(Corrupt):
        Member(log, Silent(), Nature(LIMITS, Random(1), Rules()))


class Silent:
    """Ports that do nothing."""

    def send(self, message: object) -> bool:
        return False

    def sync(self, name: str, size_bytes: int, done: object) -> None: ...

    def applied(self, entries: object, upto: int) -> None: ...

    def restored(self, snapshot: object) -> None: ...

    def configured(self, configuration: object) -> None: ...

    def introduced(self, addresses: object) -> None: ...


def test_a_key_is_applied_once_or_refused() -> None:
    window = KeyWindow(2)

    def put(index: int, key: str, since: int) -> int | None:
        return window.take(Entry(index, 1, EntryKind.DATA, b"", key, since))

    assert put(1, "a", 0) == 1
    assert put(2, "a", 0) == 1
    assert put(3, "b", 0) == 3
    assert put(4, "c", 0) == 4  # "a" is forgotten now
    assert put(5, "a", 0) is None  # it may be a repeat: refused
    assert put(6, "d", 4) == 6
    assert KeyWindow(2, window.state()).index_of("d") == 6


@settings(deadline=None)
@given(st.lists(st.integers(0, 3 * packing.DETACH_FROM_BYTES), max_size=5))
def test_detached_data_comes_back(sizes: list[int]) -> None:
    made = [Entry(i + 1, 1, EntryKind.DATA, bytes([i]) * size, f"k{i}") for i, size in enumerate(sizes)]
    light, blobs = packing.detach(made)
    assert packing.attach(light, memoryview(b"".join(blobs))) == tuple(made)
    if blobs:
        with pytest.raises(Corrupt):
            packing.attach(light, memoryview(b"".join(blobs)[1:]))
    with pytest.raises(Corrupt):
        packing.attach(light, memoryview(b"".join(blobs) + b"x"))
