"""What every transport must do, as checks that try to break it, with peers that really die.

Each check takes a fresh ``Ground`` and asserts. ``CHECKS`` is for every way; ``NETWORK_CHECKS`` are for those that
others can reach (junk, stopped processes). ``python -m clutch.testing.transports_suite`` is a peer in a process of its
own, told on its standard input what to do.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from clutch.backends.transports.base import Address, AtBound, Caller, Identity, Options, Pusher, Server, Transport
from clutch.backends.transports.keys import AllowList, KeyPair
from clutch.wire.errors import (
    BadRequest,
    ClutchError,
    Conflict,
    NotAllowed,
    NotFound,
    Stale,
    TimedOut,
    TooLarge,
    Unavailable,
)

PATIENCE_S = 20.0
WATCHFUL = Options(heartbeat_s=0.2, dead_after_s=1.5)


class Said(msgspec.Struct, frozen=True):
    """The header that checks use."""

    n: int
    text: str = ""


class Told(msgspec.Struct, frozen=True):
    """What a peer of its own is told at its start."""

    does: str  # serve, call, pull or push
    who: Identity
    keys: KeyPair
    endpoint: str = ""
    address: Address = Address("", "")
    allow: dict[str, str] = {}


class Child(Protocol):
    """A peer that can be killed."""

    said: str  # its endpoint, or "ok" after its first success

    async def kill(self) -> None:
        """Without warning; returns when it is dead."""
        ...

    def stop(self) -> None:
        """Stop it where it is (SIGSTOP)."""
        ...


class Ground(Protocol):
    """A network. Everything it opens is closed by whoever made the ground."""

    allow: AllowList | None

    def party(self, name: str, incarnation: int = 0, *, foreign: bool = False) -> Transport:
        """A party whose key is allowed, unless it is foreign. The same name has the same key each time."""
        ...

    def endpoint(self) -> str:
        """A fresh one to listen at."""
        ...

    def address(self, name: str, endpoint: str) -> Address: ...

    async def spawn(self, does: str, name: str, incarnation: int, where: str | Address) -> Child: ...

    async def junk(self, endpoint: str) -> None:
        """Send bytes there that are not our protocol, in several ways."""
        ...


Check = Callable[[Ground], Awaitable[None]]


# -- what checks are made of --------------------------------------------------------------------------------------


async def refused(kind: type[ClutchError], call: Awaitable[Any], about: str = "") -> ClutchError:
    """The error, which must be of this very kind, say its cause and name what it is about."""
    try:
        await call
    except ClutchError as error:
        assert type(error) is kind, f"expected {kind.__name__}, got {error!r}: {error}"
        assert error.cause
        assert about in error.object and error.object, f"{error!r} is about {error.object!r}, not {about!r}"
        return error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


async def echo(server: Server[Said]) -> None:
    """Answer every request with itself, until cancelled; deaths of callers do not matter."""
    while True:
        try:
            request = await server.receive(within_s=3600)
            await server.reply(request, request.header, request.buffers)
        except Unavailable as error:
            if "closed" in error.cause:
                return


async def served(ground: Ground, options: Options = WATCHFUL) -> tuple[Server[Said], asyncio.Task[None], Address]:
    server = await ground.party("server").serve(ground.endpoint(), Said, allow=ground.allow, options=options)
    return server, asyncio.create_task(echo(server)), ground.address("server", server.endpoint)


async def act(transport: Transport, told: Told, say: Callable[[str], None]) -> None:
    """A peer of its own: does one thing and stays."""
    allow = AllowList(told.allow) if told.allow else None
    if told.does == "serve":
        server = await transport.serve(told.endpoint, Said, allow=allow, options=WATCHFUL)
        say(server.endpoint)
        await echo(server)
    elif told.does == "pull":
        puller = await transport.pull(told.endpoint, Said, allow=allow, options=WATCHFUL)
        say(puller.endpoint)
        while True:
            await puller.pull(within_s=3600)
    elif told.does == "call":
        caller = await transport.connect(told.address, Said, options=WATCHFUL)
        await caller.call(Said(told.who.incarnation), within_s=PATIENCE_S)
        say("ok")
    else:
        pusher = await transport.push(told.address, Said, options=WATCHFUL)
        for n in range(10):
            await pusher.push(Said(n), within_s=PATIENCE_S)
        say("ok")
    await asyncio.Event().wait()


# -- calls --------------------------------------------------------------------------------------------------------


async def check_calls_are_answered_in_order(ground: Ground) -> None:
    server = await ground.party("server").serve(ground.endpoint(), Said, allow=ground.allow)
    address = ground.address("server", server.endpoint)
    callers = {name: await ground.party(name, 3).connect(address, Said) for name in ("ann", "bob")}
    calls = [
        asyncio.ensure_future(callers[name].call(Said(n, "größe"), [b"", bytes([n])], within_s=PATIENCE_S))
        for n in range(50)
        for name in callers
    ]
    heard: dict[Identity, list[int]] = {}
    requests = [await server.receive(within_s=PATIENCE_S) for _ in calls]
    for request in requests:
        heard.setdefault(request.peer, []).append(request.header.n)
        assert [bytes(buffer) for buffer in request.buffers] == [b"", bytes([request.header.n])]
    assert heard == {Identity("ann", 3): list(range(50)), Identity("bob", 3): list(range(50))}
    for request in reversed(requests):
        await server.reply(request, Said(request.header.n * 2, request.peer.name))
    answers = [await call for call in calls]
    assert [(answer.header.n, answer.header.text) for answer in answers] == [
        (n * 2, name) for n in range(50) for name in callers
    ]
    assert {answer.peer.name for answer in answers} == {"server"}


async def check_errors_are_answers(ground: Ground) -> None:
    server = await ground.party("server").serve(ground.endpoint(), Said, allow=ground.allow)
    caller = await ground.party("ann").connect(ground.address("server", server.endpoint), Said)
    for error, kind in ((NotFound("no such policy", object="policy"), NotFound), (KeyError("x"), Unavailable)):
        call = asyncio.ensure_future(caller.call(Said(1), within_s=PATIENCE_S))
        await server.fail(await server.receive(within_s=PATIENCE_S), error)
        assert "no such policy" in str(await refused(kind, call)) or kind is Unavailable
    wrong: Any = {"n": "not a number"}
    await refused(BadRequest, caller.call(wrong, within_s=PATIENCE_S))
    await refused(BadRequest, caller.call(object(), within_s=PATIENCE_S))  # type: ignore[arg-type]
    assert server.counts.garbage == 1
    for within_s in (-1.0, float("nan"), float("inf")):
        await refused(BadRequest, caller.call(Said(1), within_s=within_s))
        await refused(BadRequest, server.receive(within_s=within_s))


async def check_deadlines(ground: Ground) -> None:
    server = await ground.party("server").serve(ground.endpoint(), Said, allow=ground.allow)
    puller = await ground.party("puller").pull(ground.endpoint(), Said, allow=ground.allow)
    await refused(TimedOut, server.receive(within_s=0), server.endpoint)
    await refused(TimedOut, server.receive(within_s=0.02), server.endpoint)
    await refused(TimedOut, puller.pull(within_s=0.02), puller.endpoint)
    address = ground.address("server", server.endpoint)
    caller = await ground.party("ann").connect(address, Said)
    first = asyncio.ensure_future(caller.call(Said(1), within_s=PATIENCE_S))
    late = await server.receive(within_s=PATIENCE_S)
    await refused(TimedOut, caller.call(Said(2), within_s=0.05), "server")
    assert (await server.receive(within_s=PATIENCE_S)).header.n == 2
    await server.reply(late, Said(10))
    assert (await first).header.n == 10
    nobody = ground.address("nobody", ground.endpoint().replace(":*", ":1").replace("inline:1", "inline:nobody"))
    await refused(Unavailable, (await ground.party("ann").connect(nobody, Said)).call(Said(1), within_s=0.05), "nobody")
    await refused(Unavailable, (await ground.party("ann").push(nobody, Said)).push(Said(1), within_s=0.05), "nobody")
    cancelled = asyncio.ensure_future(caller.call(Said(3), within_s=PATIENCE_S))
    request = await server.receive(within_s=PATIENCE_S)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await server.reply(request, Said(3))  # an answer nobody waits for
    again = asyncio.ensure_future(caller.call(Said(4), within_s=PATIENCE_S))
    await server.reply(await server.receive(within_s=PATIENCE_S), Said(5))
    assert (await again).header.n == 5


async def check_large_frames(ground: Ground) -> None:
    _, echoing, address = await served(ground)
    caller = await ground.party("ann").connect(address, Said)
    large = b"0123456789abcdef" * (4 << 20)
    numbers = array("d", range(1000))
    table = memoryview(bytes(range(240))).cast("B", (4, 60))
    answer = await caller.call(Said(1), [large, numbers, b"", table, bytearray(3 << 20)], within_s=60)
    assert answer.buffers[0] == large
    assert memoryview(answer.buffers[1]).cast("B").cast("d").tolist() == numbers.tolist()
    assert bytes(answer.buffers[3]) == bytes(range(240))
    assert [memoryview(buffer).nbytes for buffer in answer.buffers] == [64 << 20, 8000, 0, 240, 3 << 20]
    await refused(BadRequest, caller.call(Said(1), [memoryview(large)[::2]], within_s=1))
    await refused(BadRequest, caller.call(Said(1), ["text"], within_s=1))
    await refused(TooLarge, caller.call(Said(1), [b""] * 5000, within_s=1))
    echoing.cancel()


async def check_oversize_is_refused(ground: Ground) -> None:
    """By who sends it, by who knows that the other side takes less, and by who gets it all the same."""
    small = Options(max_message_bytes=100_000)
    server, echoing, address = await served(ground, small)
    for options in (small, Options()):
        caller = await ground.party("ann").connect(address, Said, options=options)
        await refused(TooLarge, caller.call(Said(1), [bytes(60_000)] * 2, within_s=PATIENCE_S), "server")
        assert len((await caller.call(Said(1), [bytes(90_000)], within_s=PATIENCE_S)).buffers[0]) == 90_000
        await caller.close()
    echoing.cancel()
    tiny = await ground.party("ann", 1).connect(address, Said, options=Options(max_message_bytes=1000))
    call = asyncio.ensure_future(tiny.call(Said(2), within_s=PATIENCE_S))
    request = await server.receive(within_s=PATIENCE_S)
    await refused(TooLarge, server.reply(request, Said(2), [bytes(2000)]), "ann")
    await server.reply(request, Said(3))
    assert (await call).header.n == 3
    puller = await ground.party("puller").pull(ground.endpoint(), Said, allow=ground.allow, options=small)
    pusher = await ground.party("bob").push(ground.address("puller", puller.endpoint), Said)
    await pusher.push(Said(1), [bytes(60_000)] * 2, within_s=PATIENCE_S)
    await pusher.push(Said(2), [bytes(60_000)], within_s=PATIENCE_S)
    assert (await puller.pull(within_s=PATIENCE_S)).header.n == 2
    assert puller.counts.too_large == 1


async def check_thousands_of_calls(ground: Ground) -> None:
    _, echoing, address = await served(ground)
    callers = [await ground.party(f"caller-{n}").connect(address, Said) for n in range(4)]

    async def many(caller: Caller[Said]) -> None:
        for start in range(0, 1000, 50):
            calls = (caller.call(Said(n), within_s=PATIENCE_S) for n in range(start, start + 50))
            assert [answer.header.n for answer in await asyncio.gather(*calls)] == list(range(start, start + 50))

    await asyncio.gather(*map(many, callers))
    echoing.cancel()


# -- streams ------------------------------------------------------------------------------------------------------


async def check_streams_keep_order(ground: Ground) -> None:
    puller = await ground.party("puller").pull(ground.endpoint(), Said, allow=ground.allow)
    address = ground.address("puller", puller.endpoint)
    pushers = [await ground.party(f"actor-{n}", n).push(address, Said) for n in range(3)]

    async def many(pusher: Pusher[Said]) -> None:
        for n in range(2000):
            await pusher.push(Said(n), [b"%d" % n], within_s=PATIENCE_S)

    pushing = [asyncio.create_task(many(pusher)) for pusher in pushers]
    heard: dict[Identity, list[int]] = {}
    for _ in range(6000):
        parcel = await puller.pull(within_s=PATIENCE_S)
        assert bytes(parcel.buffers[0]) == b"%d" % parcel.header.n
        heard.setdefault(parcel.peer, []).append(parcel.header.n)
    assert heard == {Identity(f"actor-{n}", n): list(range(2000)) for n in range(3)}
    await asyncio.gather(*pushing)
    for pusher in pushers:
        await pusher.close()
    await refused(TimedOut, puller.pull(within_s=0.2))  # leaving is not dying


async def check_a_slow_puller_holds_its_pusher_back(ground: Ground) -> None:
    bound = Options(queue=10)
    puller = await ground.party("puller").pull(ground.endpoint(), Said, allow=ground.allow, options=bound)
    address = ground.address("puller", puller.endpoint)
    pusher = await ground.party("actor").push(address, Said, options=bound)
    sent = 0
    try:
        while sent < 2000:
            await pusher.push(Said(sent), [bytes(256 << 10)], within_s=0.3 if sent else PATIENCE_S)
            sent += 1
    except TimedOut as error:
        assert error.object == "puller"
    assert 10 <= sent < 200, f"{sent} messages were taken with nobody pulling"
    waiting = asyncio.ensure_future(pusher.push(Said(sent), within_s=PATIENCE_S))
    heard = [(await puller.pull(within_s=PATIENCE_S)).header.n for _ in range(sent + 1)]
    assert heard == list(range(sent + 1))
    await waiting


async def check_the_oldest_is_dropped_on_demand(ground: Ground) -> None:
    puller = await ground.party("puller").pull(ground.endpoint(), Said, allow=ground.allow, options=Options(queue=10))
    address = ground.address("puller", puller.endpoint)
    newest = Options(queue=10, at_bound=AtBound.DROP_OLDEST)
    pusher = await ground.party("actor").push(address, Said, options=newest)
    for n in range(1000):
        await pusher.push(Said(n), [bytes(256 << 10)], within_s=PATIENCE_S)
        await asyncio.sleep(0)
    heard = [-1]
    while heard[-1] != 999:
        heard.append((await puller.pull(within_s=PATIENCE_S)).header.n)
    assert heard == sorted(set(heard))
    assert pusher.counts.dropped == 1000 - (len(heard) - 1)
    assert pusher.counts.dropped > 700


async def check_a_slow_server_holds_its_callers_back(ground: Ground) -> None:
    bound = Options(queue=5)
    server = await ground.party("server").serve(ground.endpoint(), Said, allow=ground.allow, options=bound)
    caller = await ground.party("ann").connect(ground.address("server", server.endpoint), Said, options=bound)
    calls = [asyncio.ensure_future(caller.call(Said(n), [bytes(512 << 10)], within_s=PATIENCE_S)) for n in range(100)]
    for n in range(100):
        request = await server.receive(within_s=PATIENCE_S)
        assert request.header.n == n
        await server.reply(request, request.header)
    assert [(await call).header.n for call in calls] == list(range(100))


# -- who speaks ---------------------------------------------------------------------------------------------------


async def check_one_connection_a_name(ground: Ground) -> None:
    server, echoing, address = await served(ground)
    first = await ground.party("ann", 1).connect(address, Said)
    assert (await first.call(Said(1), within_s=PATIENCE_S)).header.n == 1
    twin = await ground.party("ann", 1).connect(address, Said)
    await refused(Conflict, twin.call(Said(2), within_s=PATIENCE_S), "ann#1")
    assert (await first.call(Said(3), within_s=PATIENCE_S)).header.n == 3
    later = await ground.party("ann", 2).connect(address, Said)
    assert (await later.call(Said(4), within_s=PATIENCE_S)).header.n == 4
    await refused(Stale, first.call(Said(5), within_s=PATIENCE_S), "ann#1")
    await refused(Stale, first.call(Said(6), within_s=PATIENCE_S), "ann#1")
    await refused(Stale, twin.call(Said(7), within_s=PATIENCE_S), "ann#1")
    await later.close()
    again = await ground.party("ann", 2).connect(address, Said)
    assert (await again.call(Said(8), within_s=PATIENCE_S)).header.n == 8
    echoing.cancel()
    await refused(TimedOut, server.receive(within_s=0.05))  # none of them died


async def check_a_stale_pusher_is_not_heard(ground: Ground) -> None:
    puller = await ground.party("puller").pull(ground.endpoint(), Said, allow=ground.allow)
    address = ground.address("puller", puller.endpoint)
    old, new = [await ground.party("actor", n).push(address, Said) for n in (1, 2)]
    for pusher, n in ((old, 1), (new, 2)):
        await pusher.push(Said(n), within_s=PATIENCE_S)
        assert (await puller.pull(within_s=PATIENCE_S)).header.n == n
    await old.push(Said(3), within_s=PATIENCE_S)
    await refused(TimedOut, puller.pull(within_s=0.3))
    await new.push(Said(4), within_s=PATIENCE_S)
    assert (await puller.pull(within_s=PATIENCE_S)).header.n == 4
    assert puller.counts.stale == 1


# -- death and return ---------------------------------------------------------------------------------------------


async def check_a_killed_server_is_an_error_and_comes_back(ground: Ground) -> None:
    child = await ground.spawn("serve", "server", 1, ground.endpoint())
    address = ground.address("server", child.said)
    caller = await ground.party("ann").connect(address, Said, options=WATCHFUL)
    assert (await caller.call(Said(1), within_s=PATIENCE_S)).peer == Identity("server", 1)
    await child.kill()
    await refused(Unavailable, caller.call(Said(2), within_s=0.5), "server")
    restarted = await ground.spawn("serve", "server", 2, child.said)
    assert (await caller.call(Said(3), within_s=PATIENCE_S)).peer == Identity("server", 2)
    await restarted.kill()


async def check_a_killed_caller_is_an_error_and_comes_back(ground: Ground) -> None:
    server = await ground.party("server").serve(ground.endpoint(), Said, allow=ground.allow, options=WATCHFUL)
    address = ground.address("server", server.endpoint)
    for incarnation in (1, 2):
        spawning = asyncio.ensure_future(ground.spawn("call", "worker", incarnation, address))
        request = await server.receive(within_s=PATIENCE_S)
        assert request.peer == Identity("worker", incarnation)
        await server.reply(request, Said(0))
        child = await spawning
        dying = asyncio.ensure_future(server.receive(within_s=5.0))
        await child.kill()
        await refused(Unavailable, dying, "worker")
        await refused(Unavailable, server.reply(request, Said(0)), "worker")


async def check_a_killed_pusher_is_an_error_behind_its_last_message(ground: Ground) -> None:
    puller = await ground.party("puller").pull(ground.endpoint(), Said, allow=ground.allow, options=WATCHFUL)
    child = await ground.spawn("push", "actor", 1, ground.address("puller", puller.endpoint))
    first = [(await puller.pull(within_s=PATIENCE_S)).header.n for _ in range(10)]
    await child.kill()
    await refused(Unavailable, puller.pull(within_s=5.0), "actor")
    assert first == list(range(10))


async def check_a_killed_puller_is_an_error_and_comes_back(ground: Ground) -> None:
    child = await ground.spawn("pull", "puller", 1, ground.endpoint())
    pusher = await ground.party("actor").push(ground.address("puller", child.said), Said, options=WATCHFUL)
    await pusher.push(Said(1), within_s=PATIENCE_S)
    await child.kill()

    async def until_it_shows() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await pusher.push(Said(2), within_s=0.3)

    await refused(Unavailable, until_it_shows(), "puller")
    puller = await ground.party("puller").pull(child.said, Said, allow=ground.allow)
    await pusher.push(Said(3), within_s=PATIENCE_S)
    assert (await puller.pull(within_s=PATIENCE_S)).header.n == 3


async def check_closing_ends_every_wait(ground: Ground) -> None:
    party, other = ground.party("server"), ground.party("ann")
    server = await party.serve(ground.endpoint(), Said, allow=ground.allow)
    puller = await party.pull(ground.endpoint(), Said, allow=ground.allow)
    caller = await other.connect(ground.address("server", server.endpoint), Said)
    pusher = await other.push(ground.address("server", puller.endpoint), Said)
    await pusher.push(Said(1), within_s=PATIENCE_S)
    assert (await puller.pull(within_s=PATIENCE_S)).header.n == 1
    waits: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(caller.call(Said(1), within_s=PATIENCE_S)),
        asyncio.ensure_future(puller.pull(within_s=PATIENCE_S)),
    ]
    await server.receive(within_s=PATIENCE_S)
    waits.append(asyncio.ensure_future(server.receive(within_s=PATIENCE_S)))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await party.close()
        await party.close()
        for wait in waits:
            await refused(Unavailable, wait)
        await refused(Unavailable, server.receive(within_s=1))
        await other.close()
        await refused(Unavailable, caller.call(Said(1), within_s=1))
        await refused(Unavailable, pusher.push(Said(1), within_s=1))


# -- what only a network brings -----------------------------------------------------------------------------------


async def check_a_foreign_key_is_refused_and_counted(ground: Ground) -> None:
    server, echoing, address = await served(ground)
    puller = await ground.party("puller").pull(ground.endpoint(), Said, allow=ground.allow)
    stranger = ground.party("stranger", foreign=True)
    caller = await stranger.connect(address, Said)
    await refused(NotAllowed, caller.call(Said(1), within_s=PATIENCE_S), "server")
    pusher = await stranger.push(ground.address("puller", puller.endpoint), Said)
    await refused(NotAllowed, pusher.push(Said(1), within_s=PATIENCE_S), "puller")
    await refused(TimedOut, puller.pull(within_s=0.05))
    assert server.counts.refused >= 1
    assert puller.counts.refused >= 1
    assert ground.allow is not None
    impostor = ground.party("bob")
    ground.allow.forbid(impostor.public_key)  # type: ignore[attr-defined]
    ground.allow.allow("not-bob", impostor.public_key)  # type: ignore[attr-defined]
    misnamed = await impostor.connect(address, Said)
    await refused(NotAllowed, misnamed.call(Said(1), within_s=PATIENCE_S), "bob")
    ground.allow.allow("stranger", stranger.public_key)  # type: ignore[attr-defined]
    assert (await _eventually(caller)).header.n == 1
    ground.allow.forbid(stranger.public_key)  # type: ignore[attr-defined]
    await refused(NotAllowed, caller.call(Said(1), within_s=PATIENCE_S), "server")
    echoing.cancel()


async def _eventually(caller: Caller[Said]) -> Any:
    """A call by one whose key was allowed a moment ago: attempts made before that may still be refused."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await caller.call(Said(1), within_s=PATIENCE_S)
            except NotAllowed:
                continue


async def check_junk_does_no_harm(ground: Ground) -> None:
    server, echoing, address = await served(ground)
    puller = await ground.party("puller").pull(ground.endpoint(), Said, allow=ground.allow)
    caller = await ground.party("ann").connect(address, Said)
    pusher = await ground.party("actor").push(ground.address("puller", puller.endpoint), Said)
    await pusher.push(Said(0), within_s=PATIENCE_S)
    await caller.call(Said(0), within_s=PATIENCE_S)
    for endpoint in (server.endpoint, puller.endpoint):
        await ground.junk(endpoint)
    async with asyncio.timeout(PATIENCE_S):
        n = 0
        while not (server.counts.garbage and puller.counts.garbage):
            n += 1
            assert (await caller.call(Said(n), within_s=PATIENCE_S)).header.n == n
            await pusher.push(Said(n), within_s=PATIENCE_S)
    heard = [(await puller.pull(within_s=PATIENCE_S)).header.n for _ in range(n + 1)]
    assert heard == list(range(n + 1))
    echoing.cancel()


async def check_a_stopped_peer_is_dead_within_seconds(ground: Ground) -> None:
    child = await ground.spawn("serve", "server", 1, ground.endpoint())
    caller = await ground.party("ann").connect(ground.address("server", child.said), Said, options=WATCHFUL)
    await caller.call(Said(1), within_s=PATIENCE_S)
    child.stop()
    began = asyncio.get_running_loop().time()
    await refused(Unavailable, caller.call(Said(2), within_s=PATIENCE_S), "server")
    assert asyncio.get_running_loop().time() - began < 2 * WATCHFUL.dead_after_s + 1
    await child.kill()


async def check_a_call_under_way_fails_as_soon_as_its_server_is_killed(ground: Ground) -> None:
    child = await ground.spawn("serve", "server", 1, ground.endpoint())
    patient = Options(heartbeat_s=10, dead_after_s=60)
    caller = await ground.party("ann").connect(ground.address("server", child.said), Said, options=patient)
    await caller.call(Said(1), within_s=PATIENCE_S)
    child.stop()  # so that it cannot answer
    call = asyncio.ensure_future(caller.call(Said(2), within_s=PATIENCE_S))
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    await child.kill()
    await refused(Unavailable, call, "server")
    assert asyncio.get_running_loop().time() - began < 5


CHECKS: tuple[Check, ...] = (
    check_calls_are_answered_in_order,
    check_errors_are_answers,
    check_deadlines,
    check_large_frames,
    check_oversize_is_refused,
    check_thousands_of_calls,
    check_streams_keep_order,
    check_a_slow_puller_holds_its_pusher_back,
    check_the_oldest_is_dropped_on_demand,
    check_a_slow_server_holds_its_callers_back,
    check_one_connection_a_name,
    check_a_stale_pusher_is_not_heard,
    check_a_killed_server_is_an_error_and_comes_back,
    check_a_killed_caller_is_an_error_and_comes_back,
    check_a_killed_pusher_is_an_error_behind_its_last_message,
    check_a_killed_puller_is_an_error_and_comes_back,
    check_closing_ends_every_wait,
)
KEY_CHECKS: tuple[Check, ...] = (check_a_foreign_key_is_refused_and_counted,)
NETWORK_CHECKS: tuple[Check, ...] = (
    check_junk_does_no_harm,
    check_a_stopped_peer_is_dead_within_seconds,
    check_a_call_under_way_fails_as_soon_as_its_server_is_killed,
)


async def _stand_alone(told: Told) -> None:
    from clutch.backends.transports.zmq import ZmqTransport

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    await act(ZmqTransport(told.who, told.keys), told, say)


if __name__ == "__main__":
    asyncio.run(_stand_alone(msgspec.json.decode(sys.stdin.readline(), type=Told)))
