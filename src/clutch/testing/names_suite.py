"""What every way to keep names must do, as checks that try to break it.

Each check takes a fresh ``Ground`` and asserts; ``CHECKS`` is all of them. ``python -m clutch.testing.names_suite``
is a party of its own for names in a folder: it races for names, or holds one until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from clutch.backends.names.base import NAME_BYTES_MAX, VALUE_BYTES_MAX, Change, Entry, Names, Seen
from clutch.backends.names.file import FileNames
from clutch.backends.names.holding import hold, wait_for
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotFound, Stale, TimedOut, TooLarge

PATIENCE_S = 20.0
TTL_S = 30.0


class Ground(Protocol):
    """One store. Everything it opens is closed by whoever made the ground."""

    async def open(self) -> Names:
        """One more party."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Let this much time pass on the store's clock."""
        ...


Check = Callable[[Ground], Awaitable[None]]


async def refused(kind: type[ClutchError], call: Awaitable[Any]) -> ClutchError:
    """The error, which must be of this very kind and say cause and object."""
    try:
        await call
    except ClutchError as error:
        assert type(error) is kind, f"expected {kind.__name__}, got {error!r}: {error}"
        assert error.cause and error.object
        return error
    raise AssertionError(f"expected {kind.__name__}, nothing was raised")


async def next_of(changes: AsyncGenerator[Change, None]) -> Change:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(changes)


# -- entries ------------------------------------------------------------------------------------------------------


async def check_gives_back_what_was_added(ground: Ground) -> None:
    one, other = await ground.open(), await ground.open()
    values = [b"", b"tcp://127.0.0.1:5555", bytes(range(256)), b"x" * VALUE_BYTES_MAX]
    added = [await one.add(f"rl/servers/{n}", value, ttl_s=TTL_S) for n, value in enumerate(values)]
    assert [entry.value for entry in added] == values
    assert await other.list() == added
    assert [await other.get(entry.name) for entry in added] == added


async def check_a_name_has_one_holder(ground: Ground) -> None:
    one, other = await ground.open(), await ground.open()
    first = await one.add("a/b", b"1", ttl_s=TTL_S)
    error = await refused(Conflict, other.add("a/b", b"2", ttl_s=TTL_S))
    assert "a/b" in error.object
    assert await other.get("a/b") == first
    below = await other.add("a/b/c", b"a name may stand below another", ttl_s=TTL_S)
    assert await one.list("a") == [first, below]
    tries = await asyncio.gather(
        *(party.add("raced", str(n).encode(), ttl_s=TTL_S) for n, party in enumerate([one, other] * 10)),
        return_exceptions=True,
    )
    won = [result for result in tries if isinstance(result, Entry)]
    assert len(won) == 1
    assert all(isinstance(result, Entry | Conflict) for result in tries)
    assert await one.get("raced") == won[0]


async def check_replace_takes_over(ground: Ground) -> None:
    one, other = await ground.open(), await ground.open()
    first = await one.add("leader", b"one", ttl_s=TTL_S)
    second = await other.add("leader", b"other", ttl_s=TTL_S, replace=True)
    assert second.token > first.token
    assert await one.get("leader") == second
    fresh = await other.add("nobody-held-it", b"", ttl_s=TTL_S, replace=True)
    assert await one.get("nobody-held-it") == fresh


async def check_stale_token_is_refused(ground: Ground) -> None:
    one, other = await ground.open(), await ground.open()
    first = await one.add("n", b"1", ttl_s=TTL_S)
    second = await other.add("n", b"2", ttl_s=TTL_S, replace=True)
    for token in (first.token, second.token + 1, 0, -1):
        await refused(Stale, one.renew("n", token))
        await refused(Stale, one.renew("n", token, value=b"mine again"))
        await refused(Stale, one.remove("n", token))
    assert await other.get("n") == second
    await other.remove("n", second.token)
    await refused(NotFound, one.get("n"))
    await refused(NotFound, other.remove("n", second.token))
    await refused(Stale, other.renew("n", second.token))
    await refused(NotFound, one.remove("never", 1))
    await refused(Stale, one.renew("never", 1))
    await refused(NotFound, one.get("never"))


async def check_tokens_grow(ground: Ground) -> None:
    names = await ground.open()
    last = 0
    for round_ in range(6):
        entry = await names.add("n", b"", ttl_s=TTL_S, replace=round_ == 2)
        assert entry.token > last
        last = entry.token
        if round_ % 2:
            await ground.pass_time(TTL_S + 1)
        elif round_ != 0:
            await names.remove("n", last)
        else:
            await names.renew("n", last)
            await ground.pass_time(TTL_S + 1)


async def check_expiry_on_the_stores_clock(ground: Ground) -> None:
    one, other = await ground.open(), await ground.open()
    short = await one.add("short", b"", ttl_s=TTL_S)
    await one.add("long", b"", ttl_s=10 * TTL_S)
    await one.add("for-ever", b"", ttl_s=None)
    assert len(await other.list()) == 3
    await ground.pass_time(TTL_S + 1)
    assert [entry.name for entry in await other.list()] == ["for-ever", "long"]
    await refused(NotFound, other.get("short"))
    await refused(Stale, one.renew("short", short.token))
    await refused(NotFound, one.remove("short", short.token))
    heir = await other.add("short", b"heir", ttl_s=TTL_S)
    await refused(Stale, one.renew("short", short.token))
    await refused(Stale, one.remove("short", short.token))
    assert await one.get("short") == heir
    await ground.pass_time(20 * TTL_S)
    assert [entry.name for entry in await other.list()] == ["for-ever"]


async def check_renewal_keeps_a_name(ground: Ground) -> None:
    one, other = await ground.open(), await ground.open()
    held = await one.add("n", b"1", ttl_s=TTL_S)
    for _ in range(4):
        await ground.pass_time(TTL_S * 0.6)
        assert await one.renew("n", held.token) == held
    changed = await one.renew("n", held.token, value=b"2")
    assert changed == Entry("n", b"2", held.token)
    await ground.pass_time(TTL_S * 0.6)
    assert await other.get("n") == changed
    assert await one.renew("n", held.token) == changed
    await ground.pass_time(TTL_S + 1)
    await refused(NotFound, other.get("n"))


async def check_bad_names_and_values_are_refused(ground: Ground) -> None:
    names = await ground.open()
    bad = [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "a/.hidden",
        ".x",
        "a\\b",
        "a\0",
        "a\nb",
        "\ud800",
        "e\u0301",
    ]
    for name in (*bad, "ä" * (NAME_BYTES_MAX // 2) + "x", "x" * (NAME_BYTES_MAX + 1)):
        await refused(BadRequest, names.add(name, b"", ttl_s=1))
        await refused(BadRequest, names.get(name))
        await refused(BadRequest, names.renew(name, 1))
        await refused(BadRequest, names.remove(name, 1))
        if name and name != "a/":
            await refused(BadRequest, names.list(name))
            await refused(BadRequest, anext(names.watch(name)))
    for ttl_s in (0, -1.0, float("nan"), float("inf"), 1e300):
        await refused(BadRequest, names.add("a", b"", ttl_s=ttl_s))
    await refused(TooLarge, names.add("a", b"x" * (VALUE_BYTES_MAX + 1), ttl_s=1))
    assert await names.list() == []
    held = await names.add("x" * NAME_BYTES_MAX, b"", ttl_s=TTL_S)
    await refused(TooLarge, names.renew(held.name, held.token, value=b"x" * (VALUE_BYTES_MAX + 1)))
    assert await names.list() == [held]


async def check_any_language(ground: Ground) -> None:
    names = await ground.open()
    texts = [
        "größe/ß",
        "漢字/の/名前",
        "🦜/🦜",
        "with space/and 'quotes\"",
        "$HOME/`x`/%2F;|*?",
        "UPPER",
        "upper",
        "a:1/b@c#d",
    ]
    added = [await names.add(text, text.encode(), ttl_s=TTL_S) for text in texts]
    assert await names.list() == sorted(added, key=lambda entry: entry.name)
    assert await names.list("漢字/の/") == [added[1]]
    for entry in added:
        assert await names.get(entry.name) == entry
        await names.remove(entry.name, entry.token)
    assert await names.list() == []


async def check_prefix_is_whole_segments(ground: Ground) -> None:
    names = await ground.open()
    for name in ("a", "a/b", "a/b/c", "a/bc", "ab", "a!b", "b/a"):
        await names.add(name, b"", ttl_s=TTL_S)
    assert [entry.name for entry in await names.list("a")] == ["a", "a/b", "a/b/c", "a/bc"]
    assert [entry.name for entry in await names.list("a/b/")] == ["a/b", "a/b/c"]
    assert await names.list("a/b/c/d") == []
    assert len(await names.list()) == 7


async def check_two_thousand_names(ground: Ground) -> None:
    names = await ground.open()
    for start in range(0, 2000, 50):
        await asyncio.gather(*(names.add(f"p/{n:04d}", str(n).encode(), ttl_s=TTL_S) for n in range(start, start + 50)))
    other = await ground.open()
    for _ in range(2):
        listed = await other.list("p")
        assert [int(entry.value) for entry in listed] == list(range(2000))
    await ground.pass_time(TTL_S + 1)
    assert await other.list() == []


# -- watching -----------------------------------------------------------------------------------------------------


async def check_watch_sees_add_change_gone_in_order(ground: Ground) -> None:
    one, other = await ground.open(), await ground.open()
    there = await one.add("w/0", b"", ttl_s=None)
    changes = other.watch("w")
    assert await next_of(changes) == Change(Seen.ADDED, there)
    first = await one.add("w/1", b"1", ttl_s=TTL_S)
    assert await next_of(changes) == Change(Seen.ADDED, first)
    await one.add("elsewhere", b"", ttl_s=TTL_S)
    await one.renew("w/1", first.token)
    second = await one.renew("w/1", first.token, value=b"2")
    assert await next_of(changes) == Change(Seen.CHANGED, second)
    third = await one.add("w/1", b"2", ttl_s=TTL_S, replace=True)
    assert await next_of(changes) == Change(Seen.CHANGED, third)
    await one.remove("w/1", third.token)
    assert await next_of(changes) == Change(Seen.GONE, third)
    last = await one.add("w/1", b"3", ttl_s=TTL_S)
    assert await next_of(changes) == Change(Seen.ADDED, last)
    await ground.pass_time(TTL_S + 1)
    assert await next_of(changes) == Change(Seen.GONE, last)
    await changes.aclose()


async def check_watch_survives_a_burst(ground: Ground) -> None:
    """A watcher that does not read for a while ends with the truth, and each name's story makes sense."""
    one, other = await ground.open(), await ground.open()
    changes = other.watch("burst")
    start = await one.add("burst", b"start", ttl_s=None)
    assert await next_of(changes) == Change(Seen.ADDED, start)
    tokens: dict[str, int] = {}
    for n in range(300):
        name = f"burst/{n % 20}"
        if n % 7 == 3 and name in tokens:
            await one.remove(name, tokens.pop(name))
        elif name in tokens:
            await one.renew(name, tokens[name], value=str(n).encode())
        else:
            tokens[name] = (await one.add(name, str(n).encode(), ttl_s=None)).token
    truth = {entry.name: entry for entry in await one.list("burst/")} | {"burst": start}
    await one.add("burst/last", b"", ttl_s=None)
    view = {"burst": start}
    while (change := await next_of(changes)).entry.name != "burst/last":
        name = change.entry.name
        assert (change.seen is Seen.ADDED) == (name not in view), change
        if change.seen is Seen.GONE:
            assert view.pop(name) == change.entry
        else:
            view[name] = change.entry
    # What was touched before the last one is seen before it, or has been seen with a later look.
    assert view == truth
    await changes.aclose()


async def check_many_watchers(ground: Ground) -> None:
    names = await ground.open()
    watches = [(await ground.open()).watch(f"m/{n % 2}") for n in range(8)]
    readers = [asyncio.ensure_future(next_of(changes)) for changes in watches]
    await asyncio.sleep(0)
    entries = [await names.add(f"m/{n}/x", b"", ttl_s=TTL_S) for n in range(2)]
    assert [change.entry for change in await asyncio.gather(*readers)] == entries * 4
    for changes in watches:
        await changes.aclose()


# -- holding ------------------------------------------------------------------------------------------------------


async def check_hold_renews_and_removes(ground: Ground) -> None:
    one, other = await ground.open(), await ground.open()
    async with hold(one, "held", b"here", ttl_s=TTL_S) as held:
        assert await wait_for(other, "held", within_s=PATIENCE_S) == held.entry
        await refused(Conflict, other.add("held", b"", ttl_s=TTL_S))
        assert not held.lost.is_set()
    await refused(NotFound, other.get("held"))
    await refused(TimedOut, wait_for(other, "held", within_s=0.05))
    await refused(BadRequest, hold(one, "held", b"", ttl_s=0).__aenter__())
    async with hold(one, "held", b"here", ttl_s=0.15) as held:
        heir = await other.add("held", b"taken", ttl_s=None, replace=True)
        async with asyncio.timeout(PATIENCE_S):
            await held.lost.wait()
    assert await other.get("held") == heir


CHECKS: tuple[Check, ...] = (
    check_gives_back_what_was_added,
    check_a_name_has_one_holder,
    check_replace_takes_over,
    check_stale_token_is_refused,
    check_tokens_grow,
    check_expiry_on_the_stores_clock,
    check_renewal_keeps_a_name,
    check_bad_names_and_values_are_refused,
    check_any_language,
    check_prefix_is_whole_segments,
    check_two_thousand_names,
    check_watch_sees_add_change_gone_in_order,
    check_watch_survives_a_burst,
    check_many_watchers,
    check_hold_renews_and_removes,
)


# -- a party of its own -------------------------------------------------------------------------------------------


async def race(folder: Path, party: str, count: int) -> str:
    """Try to add ``count`` names that others try to add too; which ones were won."""
    names = await FileNames.open(folder)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    won = []
    for n in range(count):
        try:
            await names.add(f"race/{n}", party.encode(), ttl_s=3600)
            won.append(n)
        except Conflict:
            continue
    await names.close()
    return " ".join(map(str, won))


async def stay(folder: Path, name: str, ttl_s: float) -> str:
    """Hold a name until killed."""
    names = await FileNames.open(folder)
    async with hold(names, name, b"alive", ttl_s=ttl_s) as held:
        sys.stdout.write(f"{held.entry.token}\n")
        sys.stdout.flush()
        await held.lost.wait()
    return "lost"


def main(argv: list[str]) -> None:
    does, folder, subject, amount = argv
    if does == "race":
        said = asyncio.run(race(Path(folder), subject, int(amount)))
    else:
        said = asyncio.run(stay(Path(folder), subject, float(amount)))
    sys.stdout.write(said + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
