"""A shelf and the one who asks it, over two real tunnel ends: what is said, what breaks, what is left behind."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from clutch.agent.shelf import ShelfDoor
from clutch.backends.blobs.directory import DirectoryBlobs
from clutch.backends.blobs.shelf import BlobShelf, place
from clutch.backends.transports.tunnel import TunnelEnd
from clutch.master.shelves import TALKS_AT_ONCE, TunnelShelf
from clutch.master.tunnels import NodeTunnels
from clutch.testing.blobs_ground import MIB, noise, refused
from clutch.wire.errors import BadRequest, Conflict, Corrupt, NotFound, Unavailable
from clutch.wire.ids import NodeId
from clutch.wire.link import TunnelClose, TunnelCredit, TunnelOpen
from clutch.wire.shelf import Entry, Mark, Messages, Question, ShelfBegin, ShelfPiece, packed


class Wire:
    """A bulk connection without a network: frames go across in order. ``cut`` ends it as a broken one does."""

    def __init__(self, folder: Path) -> None:
        self.door = ShelfDoor(folder)
        self.tunnels = NodeTunnels(NodeId("one"), self._down)
        self.shelf = TunnelShelf(NodeId("one"), self.tunnels)
        self._ends: dict[int, TunnelEnd] = {}
        self._lives: list[asyncio.Task[None]] = []

    async def _down(self, frame: Any) -> None:
        await asyncio.sleep(0)
        if isinstance(frame, TunnelOpen):
            self._ends[frame.tunnel] = TunnelEnd(frame.tunnel, self._up)
            self._lives.append(asyncio.create_task(self._serve(self._ends[frame.tunnel])))
        elif frame.tunnel in self._ends:
            self._ends[frame.tunnel].heard(frame)

    async def _serve(self, end: TunnelEnd) -> None:
        await self._up(TunnelCredit(end.number, 0))
        try:
            await self.door.serve(end)
        except (BadRequest, Unavailable) as error:
            await self._up(TunnelClose(end.number, error=error.cause))

    async def _up(self, frame: Any) -> None:
        await asyncio.sleep(0)
        self.tunnels.heard(frame)

    async def cut(self) -> None:
        self.tunnels.broke("the connection to its node is gone")
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)


def mark(content: bytes, stamp: int) -> Mark:
    return Mark(stamp, hashlib.sha256(content).hexdigest(), 1.0)


async def put(wire: Wire, key: str, content: bytes, stamp: int = 1) -> Entry:
    writing = await wire.shelf.begin(key)
    for first in range(0, len(content), 300_000):
        await writing.write(content[first : first + 300_000])
    return await writing.commit(mark(content, stamp))


async def got(wire: Wire, entry: Entry, start: int, stop: int) -> bytes:
    return b"".join([piece async for piece in wire.shelf.read(entry, start, stop)])


async def test_what_is_put_is_listed_read_verified_and_dropped(tmp_path: Path) -> None:
    wire = Wire(tmp_path)
    contents = {"small": noise(1, 1_000), "a/b": noise(2, 5 * MIB + 7), "a": b""}
    entries = {key: await put(wire, key, content, 7) for key, content in contents.items()}
    assert sorted(await wire.shelf.entries(), key=lambda e: e.key) == [entries[key] for key in sorted(entries)]
    for key, entry in entries.items():
        size = len(contents[key])
        assert entry.size_bytes == size
        for start, stop in ((0, size), (size // 3, size), (size // 2, size // 2), (0, min(size, MIB + 1))):
            assert await got(wire, entry, start, stop) == contents[key][start:stop]
        await wire.shelf.verify(entry)
    again = Wire(tmp_path)  # as after a restart of the agent: what is known is read from the files
    assert len(await again.shelf.entries()) == 3
    await again.shelf.drop("a", 6)
    assert len(await again.shelf.entries()) == 3, "a newer version went"
    await again.shelf.drop("a", 7)
    assert sorted(entry.key for entry in await again.shelf.entries()) == ["a/b", "small"]
    await wire.cut()
    await again.cut()


async def test_an_older_version_and_other_bytes_are_refused(tmp_path: Path) -> None:
    wire = Wire(tmp_path)
    entry = await put(wire, "k", b"new", 5)
    await refused(Conflict, put(wire, "k", b"old", 4))
    for content in (b"sent", noise(1, 3 * MIB)):
        writing = await wire.shelf.begin("k")
        await writing.write(content)
        await refused(Corrupt, writing.commit(mark(b"meant", 6)))
    assert await got(wire, entry, 0, 3) == b"new"
    await refused(NotFound, got(wire, Entry("k", 4, 3, "", 1.0), 0, 3))
    await refused(BadRequest, put(wire, "../k", b"x"))
    assert await wire.shelf.entries() == [entry]
    assert list((tmp_path / ".clutch" / "parts").iterdir()) == []
    await wire.cut()


@pytest.mark.parametrize("size", [1_000, 5 * MIB])
async def test_a_write_that_is_cut_leaves_nothing(tmp_path: Path, size: int) -> None:
    wire = Wire(tmp_path)
    for end in ("abort", "cut"):
        writing = await wire.shelf.begin("k")
        await writing.write(noise(1, size))
        if end == "abort":
            await writing.abort()
        else:
            await wire.cut()
            await refused(Unavailable, writing.commit(mark(b"", 1)))
            wire = Wire(tmp_path)
        assert await wire.shelf.entries() == []
        deadline = asyncio.get_running_loop().time() + 10.0
        while list((tmp_path / ".clutch" / "parts").iterdir()):
            assert asyncio.get_running_loop().time() < deadline, "half a blob is left"
            await asyncio.sleep(0.01)
    await wire.cut()


async def test_more_at_once_than_there_are_tunnels(tmp_path: Path) -> None:
    wire = Wire(tmp_path)
    entry = await put(wire, "k", noise(1, 10_000))
    count = TALKS_AT_ONCE * 2
    found = await asyncio.gather(*(got(wire, entry, n, n + 9) for n in range(count)))
    assert found == [noise(1, 10_000)[n : n + 9] for n in range(count)]
    await asyncio.gather(*(put(wire, f"k{n}", b"x", n + 2) for n in range(count)))
    assert len(await wire.shelf.entries()) == count + 1
    await wire.cut()


async def test_damage_is_found_in_the_part_that_is_read_and_at_the_start(tmp_path: Path) -> None:
    wire = Wire(tmp_path)
    content = noise(1, 5 * MIB)
    entry = await put(wire, "k", content)
    path = tmp_path / place("k")
    with path.open("r+b") as file:
        file.seek(3 * MIB + 5)
        file.write(bytes([content[3 * MIB + 5] ^ 1]))
    assert await got(wire, entry, 0, MIB) == content[:MIB]
    await refused(Corrupt, got(wire, entry, 3 * MIB, 3 * MIB + 1))
    await refused(Corrupt, wire.shelf.verify(entry))
    await put(wire, "k", content)
    await wire.shelf.verify(entry)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    assert await BlobShelf(await DirectoryBlobs.open(tmp_path)).entries() == [], "a file cut short is no copy"
    path.unlink()
    await refused(NotFound, got(wire, entry, 0, 5 * MIB))
    assert await wire.shelf.entries() == []
    await wire.cut()


async def test_what_is_no_message_ends_the_tunnel_and_nothing_else(tmp_path: Path) -> None:
    wire = Wire(tmp_path)
    for said in (b"\xff\xff\xff\xff....", (9).to_bytes(4, "big") + b"no msgpac", packed(ShelfPiece(b"x"))):
        talk = await wire.shelf.take()
        await talk._tunnel.write(said)
        with pytest.raises((Unavailable, BadRequest)):
            await talk.hear()
        await wire.shelf.give(talk)
    await put(wire, "k", b"x")
    await wire.cut()


def test_messages_come_out_whole_however_they_are_cut() -> None:
    messages = Messages(Question)
    said = [ShelfBegin("k"), ShelfPiece(b"x" * 100), ShelfPiece(b"")]
    stream = b"".join(packed(message) for message in said)
    heard = []
    for number in range(len(stream)):
        messages.feed(stream[number : number + 1])
        while (message := messages.next()) is not None:
            heard.append(message)
    assert heard == said
