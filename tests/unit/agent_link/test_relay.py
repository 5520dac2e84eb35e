"""The relay over real spools, with a master that commits when it likes: once by offset, fair, bounded, quiet."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clutch.agent.relay import CHUNK_BYTES, Frame, Relay, merged
from clutch.agent.shim import FRAME_HEADER, MAGIC, STDERR, STDOUT
from clutch.agent.spool import Gap, Piece
from clutch.backends.containers.base import Key
from clutch.testing.bars import within
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.link import OutputCommitted, OutputDone, OutputGap, OutputOpen, OutputPiece


def key(name: str = "t", incarnation: int = 1) -> Key:
    return Key(MemberId(TaskId(name), "main", 0), Fence(1, 1, incarnation))


class Spool:
    """A spool as the shim writes one, by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.offsets = {STDOUT: 0, STDERR: 0}
        self.number = 0
        folder.mkdir(parents=True)
        self.next_segment()

    def next_segment(self) -> None:
        self.number += 1
        heads = b"".join(self.offsets[stream].to_bytes(8, "big") for stream in (STDOUT, STDERR))
        (self.folder / f"{self.number:08d}").write_bytes(MAGIC + heads)

    def add(self, data: bytes, stream: int = STDOUT, at: float = 1.0) -> None:
        head = bytes([stream]) + len(data).to_bytes(4, "big") + self.offsets[stream].to_bytes(8, "big")
        head += int(at * 1e6).to_bytes(8, "big")
        assert len(head) == FRAME_HEADER
        with (self.folder / f"{self.number:08d}").open("ab") as file:
            file.write(head + data)
        self.offsets[stream] += len(data)

    def segments(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


class Store:
    """The other end: takes frames, and commits when told."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.data: dict[tuple[Key, str], bytes] = {}
        self.done: dict[Key, bool] = {}
        self.sent_bytes = 0
        self.order: list[str] = []

    def take(self) -> list[Frame]:
        frames = self.relay.take()
        for frame in frames:
            whose = Key(frame.member, frame.fence)
            if isinstance(frame, OutputPiece):
                held = self.data.get((whose, frame.stream), b"")
                assert frame.offset <= len(held), "a hole"
                self.data[whose, frame.stream] = held[: frame.offset] + frame.data
                self.sent_bytes += len(frame.data)
                self.order.append(str(frame.member.task))
            elif isinstance(frame, OutputGap):
                held = self.data.get((whose, frame.stream), b"")
                assert frame.start == len(held)
                self.data[whose, frame.stream] = held + b"?" * (frame.end - frame.start)
            elif isinstance(frame, OutputDone):
                assert (frame.stdout, frame.stderr) == self.ends(whose)
                self.done[whose] = True
        return frames

    def ends(self, whose: Key) -> tuple[int, int]:
        return len(self.data.get((whose, "stdout"), b"")), len(self.data.get((whose, "stderr"), b""))

    def commit(self, whose: Key, done: bool | None = None) -> None:
        is_done = self.done.get(whose, False) if done is None else done
        self.relay.committed(OutputCommitted(*whose, *self.ends(whose), is_done))

    def all(self) -> None:
        """Take and commit until nothing is left."""
        while frames := self.take():
            for whose in dict.fromkeys(Key(frame.member, frame.fence) for frame in frames):
                self.commit(whose)


async def test_what_is_written_before_and_after_arrives_once(tmp_path: Path) -> None:
    relay = Relay()
    store = Store(relay)
    spool = Spool(tmp_path / "a")
    spool.add(b"before ")
    relay.watch(key(), spool.folder)
    relay.reconnected()
    assert store.take() == [OutputOpen(*key())]
    store.commit(key())
    store.all()
    spool.add(b"after ")
    spool.add(b"err", STDERR)
    assert not relay.take(), "nobody said that there is more"
    relay.stir(key())
    store.all()
    relay.exited(key(), 13, 3)
    store.all()
    assert store.data == {(key(), "stdout"): b"before after ", (key(), "stderr"): b"err"}
    assert store.done == {key(): True} and store.sent_bytes == 16


async def test_a_new_connection_begins_where_the_store_is(tmp_path: Path) -> None:
    relay = Relay()
    shipped: list[Key] = []
    relay.shipped = shipped.append
    spool = Spool(tmp_path / "a")
    relay.watch(key(), spool.folder)
    for number in range(20):
        spool.add(b"%02d" % number * 50)
    relay.reconnected()
    lost = Store(relay)
    lost.take()
    lost.commit(key())
    assert lost.take()  # sent, never committed: the connection breaks
    relay.disconnected()
    relay.stir(key())
    assert not relay.take()
    store = Store(relay)
    store.data[key(), "stdout"] = lost.data[key(), "stdout"][:777]  # as much as became durable
    relay.exited(key(), 2000, 0)
    relay.reconnected()
    store.all()
    assert store.data[key(), "stdout"] == b"".join(b"%02d" % number * 50 for number in range(20))
    assert store.sent_bytes == 2000 - 777
    assert shipped == [key()]
    relay.reconnected()
    assert store.take() == [OutputOpen(*key())], "a new master must hear of what was shipped, too"
    store.commit(key())
    assert not store.take() and shipped == [key()]
    relay.drop(key())
    relay.reconnected()
    assert not store.take()


async def test_a_loud_member_does_not_silence_the_others(tmp_path: Path) -> None:
    relay = Relay()
    store = Store(relay)
    loud = Spool(tmp_path / "loud")
    for _ in range(40):
        loud.add(b"x" * 200_000)
    relay.watch(key("loud"), loud.folder)
    quiet = [Spool(tmp_path / f"q{number}") for number in range(3)]
    for number, spool in enumerate(quiet):
        spool.add(b"hello")
        relay.watch(key(f"q{number}"), spool.folder)
    relay.reconnected()
    store.all()
    first = store.order.index("q2")
    assert first <= 6, store.order[:10]
    assert len(store.data[key("loud"), "stdout"]) == 8_000_000


async def test_it_is_never_more_than_its_window_ahead(tmp_path: Path) -> None:
    relay = Relay(window_bytes=300_000)
    store = Store(relay)
    spools = {key(f"m{number}"): Spool(tmp_path / f"m{number}") for number in range(3)}
    for whose, spool in spools.items():
        for _ in range(10):
            spool.add(b"y" * 100_000)
        relay.watch(whose, spool.folder)
    relay.reconnected()
    store.take()
    for whose in spools:
        store.commit(whose)
    while store.take():
        pass
    assert 300_000 <= store.sent_bytes < 300_000 + CHUNK_BYTES
    stopped = store.sent_bytes
    relay.stir(key("m0"))
    assert not store.take() and store.sent_bytes == stopped
    for whose in spools:
        store.commit(whose)
    store.all()
    assert store.sent_bytes == 3_000_000


async def test_space_is_given_back_only_for_what_is_committed(tmp_path: Path) -> None:
    relay = Relay()
    store = Store(relay)
    spool = Spool(tmp_path / "a")
    for _ in range(4):
        spool.add(b"z" * 250_000)
        spool.next_segment()
    relay.watch(key(), spool.folder)
    relay.reconnected()
    store.take()
    store.commit(key())
    while store.take():
        pass
    assert len(spool.segments()) == 5, "nothing is durable yet"
    store.commit(key())
    assert len(spool.segments()) <= 2


async def test_what_was_dropped_at_the_cap_and_what_a_record_counts_beyond_the_spool_are_gaps(tmp_path: Path) -> None:
    relay = Relay()
    store = Store(relay)
    spool = Spool(tmp_path / "a")
    spool.add(b"a" * 10)
    spool.next_segment()
    spool.add(b"b" * 10)
    (spool.folder / "00000001").unlink()
    relay.watch(key(), spool.folder)
    relay.exited(key(), 25, 0)
    relay.reconnected()
    store.all()
    assert store.data[key(), "stdout"] == b"?" * 10 + b"b" * 10 + b"?" * 5
    assert store.done[key()]


async def test_a_spool_that_a_power_cut_made_shorter_than_the_store_ends_where_the_store_is(tmp_path: Path) -> None:
    relay = Relay()
    store = Store(relay)
    spool = Spool(tmp_path / "a")
    spool.add(b"a" * 80)
    store.data[key(), "stdout"] = b"a" * 100
    relay.watch(key(), spool.folder)
    relay.exited(key(), 80, 0)
    relay.reconnected()
    store.all()
    assert store.done[key()] and store.sent_bytes == 0


async def test_a_spool_that_cannot_be_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    relay = Relay()
    store = Store(relay)
    (tmp_path / "bad" / "00000001").mkdir(parents=True)
    good = Spool(tmp_path / "good")
    good.add(b"fine")
    relay.watch(key("bad"), tmp_path / "bad")
    relay.watch(key("good"), good.folder)
    relay.reconnected()
    store.all()
    assert store.data == {(key("good"), "stdout"): b"fine"}
    (tmp_path / "bad" / "00000001").rmdir()
    (tmp_path / "bad").rmdir()
    Spool(tmp_path / "bad").add(b"mended")
    relay.stir(key("bad"))
    store.all()
    assert store.data[key("bad"), "stdout"] == b"mended"


async def test_an_exited_members_spool_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    """Nobody stirs the dead: without this its allocation would wait for output until its deadline."""
    relay = Relay()
    store = Store(relay)
    (tmp_path / "bad" / "00000001").mkdir(parents=True)
    relay.watch(key(), tmp_path / "bad")
    relay.exited(key(), 6, 0)
    relay.reconnected()
    store.all()
    relay.try_again()
    store.all()
    assert not store.done
    (tmp_path / "bad" / "00000001").rmdir()
    (tmp_path / "bad").rmdir()
    Spool(tmp_path / "bad").add(b"mended")
    relay.try_again()
    store.all()
    assert store.data[key(), "stdout"] == b"mended" and store.done[key()]


async def test_a_thousand_members_that_say_nothing_cost_nothing(tmp_path: Path) -> None:
    relay = Relay()
    store = Store(relay)
    members = [key(f"m{number}") for number in range(1000)]
    for whose in members:
        relay.watch(whose, tmp_path / str(whose.member.task))
    relay.reconnected()
    store.all()
    began = time.perf_counter()
    for _ in range(1000):
        assert not relay.take()
    assert time.perf_counter() - began < within(0.5)
    assert not relay.wake.is_set()


@pytest.mark.parametrize(("pieces", "result"), [
    ([], []),
    ([Piece("stdout", 0, 1.0, b"a"), Piece("stdout", 1, 1.01, b"b")], [Piece("stdout", 0, 1.0, b"ab")]),
    ([Piece("stdout", 0, 1.0, b"a"), Piece("stdout", 1, 1.2, b"b")], None),
    ([Piece("stdout", 0, 1.0, b"a"), Piece("stderr", 0, 1.0, b"b"), Piece("stdout", 1, 1.0, b"c")], None),
    ([Piece("stdout", 0, 1.0, b"a"), Gap("stdout", 1, 5), Piece("stdout", 5, 1.0, b"c")], None),
])  # fmt: skip
def test_pieces_are_merged_only_where_nothing_is_told_by_their_edge(
    pieces: list[Piece | Gap], result: list[Piece | Gap] | None
) -> None:
    assert merged(pieces) == (pieces if result is None else result)
