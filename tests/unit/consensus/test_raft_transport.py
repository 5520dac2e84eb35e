"""Real sockets on loopback: what is sent arrives whole, and only from whom it says it is from. And the local frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.consensus.replicated_log import to_error
from clutch.consensus.server import LENGTH, SCRATCH_BYTES, FrameBuffer
from clutch.consensus.transport import KeyPair, Transport, new_keys
from clutch.wire.errors import ClutchError, Conflict, DiskFull, NotAllowed, NotLeader, TooLarge
from clutch.wire.raft import Address, Append, Entry, EntryKind, Header, Heartbeat, PeerMessage, RaftId, Refusal

A, B, C = (RaftId(1, name, 1) for name in "abc")


class End:
    """One side: a transport, what it heard, and whom it admits."""

    def __init__(self, me: RaftId, keys: KeyPair, group: str = "g") -> None:
        self.me = me
        self.keys = keys
        self.heard: list[PeerMessage] = []
        self.refuses: ClutchError | None = None
        self.transport = Transport(Header(group, me, f"birth-{me}"), keys, self._admit, self.heard.append, lambda: None)
        control, bulk = self.transport.bind("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
        self.address = Address(me, control, bulk, keys.public)

    def _admit(self, header: Header) -> None:
        if self.refuses is not None:
            raise self.refuses


@pytest.fixture
async def ends() -> AsyncIterator[Callable[..., End]]:
    made: list[End] = []

    def make(me: RaftId, keys: KeyPair | None = None, group: str = "g") -> End:
        made.append(End(me, keys or new_keys(), group))
        return made[-1]

    yield make
    for end in made:
        end.transport.close()


async def until(condition: Callable[[], object], *poll: End) -> None:
    async with asyncio.timeout(10):
        while True:
            for end in poll:
                end.transport.poll()
            if condition():
                return
            await asyncio.sleep(0.01)


async def send(sender: End, receiver: End, message: PeerMessage) -> None:
    """Until the connection is there a message cannot be sent, and says so."""
    await until(lambda: sender.transport.send(message), sender, receiver)


def entry(index: int, size: int) -> Entry:
    return Entry(index, 1, EntryKind.DATA, bytes([index]) * size, f"k{index}")


async def test_small_and_large_messages_arrive_whole(ends: Callable[..., End]) -> None:
    a, b = ends(A), ends(B)
    for end in (a, b):
        end.transport.meet([a.address, b.address])
    messages = [
        Heartbeat("g", A, B, 1, 7),
        Append("g", A, B, 1, 0, 0, (entry(1, 10), entry(2, 3_000_000), entry(3, 20)), 0),
        Append("g", A, B, 1, 3, 1, tuple(entry(4 + i, 40_000) for i in range(20)), 3),
        Append("g", A, B, 1, 23, 1, tuple(entry(24 + i, 20_000) for i in range(40)), 3),  # large, but of small entries
    ]
    for message in messages:
        await send(a, b, message)
    await until(lambda: len(b.heard) == len(messages), a, b)
    assert sorted(b.heard, key=lambda m: (type(m).__name__, str(m)[:60])) == sorted(
        messages, key=lambda m: (type(m).__name__, str(m)[:60])
    )


async def test_an_unknown_key_is_not_let_in_until_it_is_known(ends: Callable[..., End]) -> None:
    a, b = ends(A), ends(B)
    a.transport.meet([a.address, b.address])
    b.transport.meet([b.address])
    await until(lambda: a.transport.refused_by, a, b)
    assert isinstance(a.transport.refused_by[B], NotAllowed)
    assert isinstance(b.transport.refused[-1], NotAllowed)
    assert not a.transport.send(Heartbeat("g", A, B, 1, 0))
    b.transport.meet([a.address, b.address])
    await send(a, b, Heartbeat("g", A, B, 1, 0))  # the refused connection is made anew
    await until(lambda: b.heard, a, b)


async def test_nobody_speaks_in_anothers_name(ends: Callable[..., End]) -> None:
    """c has a good key, but its header, or its message, says that it is a."""
    a, b = ends(A), ends(B)
    keys = new_keys()
    liar = ends(A, keys)
    c = Address(C, liar.address.control, liar.address.bulk, keys.public)
    b.transport.meet([a.address, b.address, c])
    liar.transport.meet([b.address])
    await send(liar, b, Heartbeat("g", A, B, 1, 0))
    await until(lambda: b.transport.refused, liar, b)
    assert "does not belong" in str(b.transport.refused[-1])
    await until(lambda: any(isinstance(m, Refusal) for m in liar.heard), liar, b)
    honest = ends(C, keys)
    honest.transport.meet([b.address])
    await send(honest, b, Heartbeat("g", A, B, 1, 0))
    await until(lambda: "in the name of" in str(b.transport.refused[-1]), honest, b)
    assert b.heard == []


async def test_a_refusal_reaches_the_refused_and_a_full_disk_is_no_refusal(ends: Callable[..., End]) -> None:
    a, b = ends(A), ends(B)
    for end in (a, b):
        end.transport.meet([a.address, b.address])
    b.refuses = DiskFull("no space left")
    await send(a, b, Heartbeat("g", A, B, 1, 0))
    await until(lambda: b.transport.refused, a, b)
    b.refuses = Conflict("another node with this id is known here")
    await send(a, b, Heartbeat("g", A, B, 1, 0))
    await until(lambda: any(isinstance(m, Refusal) for m in a.heard), a, b)
    (refusal,) = [m for m in a.heard if isinstance(m, Refusal)]
    assert refusal.error.code == "conflict"
    assert refusal.birth == "birth-a.1@g1"
    assert b.heard == []


async def test_garbage_from_a_member_is_noted_and_dropped(ends: Callable[..., End]) -> None:
    a, b = ends(A), ends(B)
    for end in (a, b):
        end.transport.meet([a.address, b.address])
    await send(a, b, Heartbeat("g", A, B, 1, 0))
    await until(lambda: b.heard, a, b)
    socket: zmq.Socket[bytes] = a.transport._peers[B].control
    for payload in (b"", b"\x00", b"\xff" * 40, a.transport._header_bytes + b"\xc1garbage"):
        socket.send(payload)
    await send(a, b, Heartbeat("g", A, B, 2, 0))
    await until(lambda: len(b.heard) == 2, a, b)
    assert any("decode" in str(e) for e in b.transport.refused)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2 * SCRATCH_BYTES), max_size=6), st.integers(1_000, SCRATCH_BYTES))
def test_frames_come_out_however_they_are_cut(sizes: list[int], step: int) -> None:
    frames = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    stream = b"".join(LENGTH.pack(len(f)) + f for f in frames)
    buffer = FrameBuffer(4 * SCRATCH_BYTES)
    found: list[bytes] = []
    at = 0
    while at < len(stream):
        room = buffer.room()
        count = min(len(room), step, len(stream) - at)
        room[:count] = stream[at : at + count]
        at += count
        found += [bytes(f) for f in buffer.filled(count)]
    assert found == frames


def test_a_frame_over_the_limit_is_refused() -> None:
    buffer = FrameBuffer(1000)
    head = LENGTH.pack(1001)
    buffer.room()[: len(head)] = head
    with pytest.raises(TooLarge):
        buffer.filled(len(head))


def test_errors_keep_their_type_on_the_way() -> None:
    assert isinstance(to_error(DiskFull("x").view()), DiskFull)
    error = to_error(NotLeader("x").view(), "r1.1@g1")
    assert isinstance(error, NotLeader)
    assert error.leader == "r1.1@g1"
