"""The parts of transports: keys, frames, who is heard, queues, and what is refused before anything is sent."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.backends.transports.base import Address, Identity, Options, flatten
from clutch.backends.transports.frames import PIECE_BYTES, Control, Kind, cut, decode, encode, join, raised
from clutch.backends.transports.inbox import Doorbell, Inbox
from clutch.backends.transports.inline import Exchange, InlineTransport
from clutch.backends.transports.keys import AllowList, KeyPair, check_private, new_keys
from clutch.backends.transports.roster import Roster
from clutch.backends.transports.zmq import ZmqTransport
from clutch.wire.errors import (
    BadRequest,
    ClusterError,
    Conflict,
    Corrupt,
    ErrorView,
    NotAllowed,
    NotFound,
    Stale,
    TimedOut,
    Unavailable,
)


class Said(msgspec.Struct, frozen=True):
    n: int


def test_keys_do_not_show_their_secret() -> None:
    keys = new_keys()
    assert keys.secret not in repr(keys)
    assert keys != new_keys()


def test_an_allow_list_gives_a_key_one_name() -> None:
    one, two = new_keys().public, new_keys().public
    allow = AllowList({"ann": one})
    allow.allow("ann", two)
    assert (allow.name_of(one), allow.name_of(two), allow.name_of("x")) == ("ann", "ann", None)
    with pytest.raises(Conflict):
        allow.allow("bob", one)
    allow.forbid(one)
    allow.forbid(one)
    allow.allow("bob", one)
    for bad in ("", "x" * 39, "é" * 40, " " * 40):
        with pytest.raises(BadRequest):
            allow.allow("ann", bad)


def test_an_ipc_folder_must_be_private(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir(0o700)
    assert check_private(f"ipc://{folder}/x") == folder / "x"
    for mode in (0o750, 0o701, 0o777):
        folder.chmod(mode)
        with pytest.raises(NotAllowed):
            check_private(f"ipc://{folder}/x")
    folder.chmod(0o700)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(NotAllowed):
        check_private(f"ipc://{tmp_path}/link/x")
    for bad in ("ipc://relative/x", "ipc://@abstract", f"ipc://{folder}/{'x' * 100}", f"ipc://{tmp_path}/none/x"):
        with pytest.raises(BadRequest):
            check_private(bad)


async def test_addresses_that_cannot_work(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir(0o700)
    transport = ZmqTransport(Identity("ann"), new_keys())
    allow = AllowList()
    for endpoint in ("", "inproc://x", "udp://1.2.3.4:5", "tcp://nowhere", "tcp://127.0.0.1:99999", "tcp://"):
        with pytest.raises(BadRequest):
            await transport.serve(endpoint, Said, allow=allow)
    with pytest.raises(BadRequest):
        await transport.serve("tcp://127.0.0.1:*", Said)
    key = new_keys().public
    for address in (Address("b", "tcp://127.0.0.1:1"), Address("b", "tcp://127.0.0.1:1", "x"), Address("b", "x", key)):
        with pytest.raises(BadRequest):
            await transport.connect(address, Said)
        with pytest.raises(BadRequest):
            await transport.push(address, Said)
    server = await transport.serve("tcp://127.0.0.1:*", Said, allow=allow)
    with pytest.raises(Conflict):
        await transport.pull(server.endpoint, Said, allow=allow)
    await transport.close()
    with pytest.raises(Unavailable):
        await transport.serve("tcp://127.0.0.1:*", Said, allow=allow)
    for identity in (Identity(""), Identity("x" * 201), Identity("x", -1)):
        with pytest.raises(BadRequest):
            ZmqTransport(identity, new_keys())
        with pytest.raises(BadRequest):
            InlineTransport(Exchange(), identity)
    with pytest.raises(BadRequest):
        ZmqTransport(Identity("x"), KeyPair("short", "short"))


async def test_a_wrong_server_key_reaches_nobody() -> None:
    """Who connects knows whom it wants: another server at that address is not spoken to."""
    ann, server_keys = new_keys(), new_keys()
    one, other = ZmqTransport(Identity("server"), server_keys), ZmqTransport(Identity("ann"), ann)
    server = await one.serve("tcp://127.0.0.1:*", Said, allow=AllowList({"ann": ann.public}))
    caller = await other.connect(Address("server", server.endpoint, new_keys().public), Said)
    with pytest.raises(Unavailable):
        await caller.call(Said(1), within_s=0.5)
    with pytest.raises(TimedOut):
        await server.receive(within_s=0)
    await other.close()
    await one.close()


def test_limits_that_cannot_work() -> None:
    for change in (
        {"queue": 0}, {"max_message_bytes": 0}, {"heartbeat_s": 5.0}, {"heartbeat_s": 0.0}, {"dead_after_s": 1e9},
        {"linger_s": -1.0}, {"linger_s": float("nan")},
    ):  # fmt: skip
        with pytest.raises(BadRequest):
            Options(**change)  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 3 * PIECE_BYTES), max_size=3))
def test_what_is_cut_is_joined(sizes: list[int]) -> None:
    whole = memoryview(bytes(1000) + b"x" * 1000 + bytes(3 * PIECE_BYTES))
    buffers = [whole[n : n + size] for n, size in enumerate(sizes)]
    pieces, declared = cut(buffers)
    assert all(piece.nbytes <= PIECE_BYTES for piece in pieces)
    assert join(pieces, declared) == tuple(buffers)


@given(st.lists(st.binary(max_size=20), max_size=5), st.lists(st.integers(-5, 40), max_size=5))
def test_pieces_that_lie_are_refused(pieces: list[bytes], sizes: list[int]) -> None:
    try:
        joined = join([memoryview(piece) for piece in pieces], tuple(sizes))
    except Corrupt:
        return
    assert b"".join(joined) == b"".join(pieces)
    assert not sizes or [buffer.nbytes for buffer in joined] == sizes


@given(st.binary(max_size=200))
def test_any_bytes_as_a_control_frame(data: bytes) -> None:
    try:
        control = decode(data)
    except Corrupt:
        return
    assert isinstance(control, Control)


def test_errors_cross_the_wire() -> None:
    sent = NotFound("gone", object="x", next_step="look")
    control = decode(encode(Control(Kind.FAILURE, 7, error=sent.view())))
    error = raised(control.error)
    assert type(error) is NotFound
    assert str(error) == str(sent)
    assert type(raised(ErrorView("from_the_future", "why"))) is ClusterError
    assert type(raised(None)) is Corrupt


def test_flatten_gives_plain_bytes() -> None:
    table = memoryview(bytes(12)).cast("B", (3, 4))
    assert [view.nbytes for view in flatten([table, b"", bytearray(3)])] == [12, 0, 3]
    with pytest.raises(BadRequest):
        flatten([memoryview(bytes(10))[::2]])


def test_who_is_heard() -> None:
    roster = Roster(peers_max=2)
    assert roster.admit(Identity("a", 1)) is None
    with pytest.raises(Conflict):
        roster.admit(Identity("a", 1))
    assert roster.admit(Identity("a", 3)) == Identity("a", 1)
    with pytest.raises(Stale):
        roster.admit(Identity("a", 2))
    assert not roster.leave(Identity("a", 1))
    assert roster.leave(Identity("a", 3))
    assert not roster.leave(Identity("a", 3))
    assert roster.admit(Identity("a", 3)) is None
    roster.admit(Identity("b"))
    with pytest.raises(Unavailable):
        roster.admit(Identity("c"))


async def test_an_inbox_keeps_order_and_its_bound() -> None:
    room: list[int] = []
    inbox: Inbox[int] = Inbox(2, on_room=lambda: room.append(1))
    inbox.put(1)
    inbox.trouble(Unavailable("died", object="p"))
    inbox.put(2)
    assert inbox.full
    assert inbox.put_dropping(3) == 1
    with pytest.raises(Unavailable):
        await inbox.take(0, "x")
    loop = asyncio.get_running_loop()
    assert not await inbox.room(loop.time() + 0.01)
    waiting = asyncio.ensure_future(inbox.room(loop.time() + 10))
    await asyncio.sleep(0)
    assert [await inbox.take(0, "x"), await inbox.take(0, "x")] == [2, 3]
    assert await waiting
    assert room == [1]
    with pytest.raises(TimedOut):
        await inbox.take(0.01, "x")
    taking = asyncio.ensure_future(inbox.take(10, "x"))
    await asyncio.sleep(0)
    inbox.end(Unavailable("closed", object="x"))
    for take in (taking, inbox.take(1, "x"), inbox.room(loop.time())):
        with pytest.raises(Unavailable):
            await take


async def test_a_ring_for_who_has_left_goes_to_the_next() -> None:
    bell = Doorbell()
    loop = asyncio.get_running_loop()
    first, second = [asyncio.ensure_future(bell.wait(loop.time() + 10)) for _ in range(2)]
    await asyncio.sleep(0)
    bell.ring_one()
    first.cancel()
    assert await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_waiting_costs_no_time_of_the_processor(tmp_path: Path) -> None:
    """Not with everything idle, and not with a puller whose queue is full and a pusher that waits for it."""
    folder = tmp_path / "f"
    folder.mkdir(0o700)
    transport = ZmqTransport(Identity("ann"), new_keys())
    small = Options(queue=2)
    server = await transport.serve(f"ipc://{folder}/s", Said)
    puller = await transport.pull(f"ipc://{folder}/p", Said, options=small)
    caller = await transport.connect(Address("ann", server.endpoint), Said)
    pusher = await transport.push(Address("ann", puller.endpoint), Said, options=small)
    call = asyncio.ensure_future(caller.call(Said(1), within_s=30))
    request = await server.receive(within_s=10)
    with pytest.raises(TimedOut):
        for n in range(100):
            await pusher.push(Said(n), [bytes(1 << 20)], within_s=0.2 if n else 10)
    before = time.process_time()
    with pytest.raises(TimedOut):
        await pusher.push(Said(0), [bytes(1 << 20)], within_s=0.5)
    assert time.process_time() - before < 0.25
    await server.reply(request, Said(2))
    assert (await call).header.n == 2
    await transport.close()
