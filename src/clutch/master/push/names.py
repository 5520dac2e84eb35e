"""Names that the master serves, in two scopes: of one task, and of a workspace.

Adding, changing and removing a name is stored before it is answered; renewing it is not. So a new master finds every
name with its holder's token, and gives each its full time to live once more: holders go on renewing as if nothing had
happened, no name is given to a second holder while the first may still believe in it, and one whose holder died with
the old master goes one time to live later than it would have.

A master that was replaced without noticing confirms its lead before it answers a change: it cannot hand out a name that
its successor has given to another. What it says of a name that is only asked for may be as old as its lead.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from clutch.backends.blobs.base import FullBlobs
from clutch.backends.names.base import check_entry, check_name, check_prefix
from clutch.master.push.bells import Bells
from clutch.master.push.name_board import NAMES_MAX, Board, Tenure
from clutch.wire.errors import BadRequest, Corrupt, NotFound
from clutch.wire.push import AddName, NameChange, NameChanges, NameEntry, RemoveName, RenewName

FOLDER = "push/names"
KEY_MAX = 200
LOADING_AT_ONCE = 16
TOKENS_PER_TERM, TERMS_PER_GENERATION = 1 << 32, 1 << 20

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Tenure)


def first_token(generation: int, term: int) -> int:
    """Above every token that an earlier term gave: terms only grow, and a restored backup raises the generation."""
    return (generation * TERMS_PER_GENERATION + term) * TOKENS_PER_TERM


class Kept:
    """A board with the lock of each name that is being changed."""

    def __init__(self, scope: str, board: Board) -> None:
        self.scope = scope
        self.board = board
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def changing(self, name: str) -> AsyncIterator[None]:
        """One change of a name at a time; the lock goes with the last who wants it."""
        lock, users = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)


class NamesService:
    """All boards, each loaded when it is first asked for. ``clock`` counts seconds and never jumps."""

    def __init__(
        self,
        blobs: FullBlobs,
        clock: Callable[[], float],
        bells: Bells,
        confirm_lead: Callable[[], Awaitable[None]],
        first: Callable[[], int],
    ) -> None:
        self._blobs = blobs
        self._clock = clock
        self._bells = bells
        self._confirm_lead = confirm_lead
        self._first = first
        self._boards: dict[str, Kept] = {}
        self._loading = asyncio.Lock()
        self._over: deque[tuple[str, str]] = deque(maxlen=NAMES_MAX)

    async def add(self, scope: str, wanted: AddName) -> NameEntry:
        check_entry(wanted.name, wanted.value, wanted.ttl_s)
        if len(wanted.key) > KEY_MAX:
            raise BadRequest(f"a key of {len(wanted.key)} characters", object=wanted.name, path="key")
        kept = await self._kept(scope)
        tenure = Tenure(wanted.name, wanted.value, 0, wanted.ttl_s, wanted.key)
        return await self._change(kept, wanted.name, lambda: kept.board.adding(tenure, wanted.replace))

    async def renew(self, scope: str, wanted: RenewName) -> NameEntry:
        check_entry(wanted.name, wanted.value, None)
        kept = await self._kept(scope)
        return await self._change(
            kept, wanted.name, lambda: kept.board.renewing(wanted.name, wanted.token, wanted.value)
        )

    async def remove(self, scope: str, wanted: RemoveName) -> None:
        check_name(wanted.name)
        kept = await self._kept(scope)
        async with kept.changing(wanted.name):
            self._expire(kept)
            kept.board.removing(wanted.name, wanted.token)
            await self._blobs.delete(_key(scope, wanted.name))
            await self._confirm_lead()
            kept.board.drop(wanted.name)
        self._bells.ring(_topic(scope))

    async def get(self, scope: str, name: str) -> NameEntry:
        check_name(name)
        kept = await self._kept(scope)
        tenure = kept.board.get(name)
        if tenure is None:
            raise NotFound("there is no such name", object=name)
        return _entry(tenure)

    async def under(self, scope: str, prefix: str) -> tuple[NameEntry, ...]:
        plain = check_prefix(prefix)
        return tuple(_entry(tenure) for tenure in (await self._kept(scope)).board.under(plain))

    async def watch(self, scope: str, prefix: str, after: str, timeout_s: float) -> NameChanges:
        """What changed at or under a prefix since a version, as soon as something has; everything for no version."""
        plain = check_prefix(prefix)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            kept = await self._kept(scope)
            seen = self._seen(kept, after)
            changes = kept.board.changes(plain, seen) if seen is not None else None
            version = f"{self._first()}.{kept.board.version}"
            if changes is None:
                whole = tuple(NameChange(t.name, _entry(t)) for t in kept.board.under(plain))
                return NameChanges(version=version, whole=True, changes=whole)
            left = until - loop.time()
            if changes or left <= 0:
                said = tuple(NameChange(name, _entry(t) if t is not None else None) for name, t in changes)
                return NameChanges(version=version, changes=said)
            due = kept.board.next_due()
            patience = left if due is None else min(left, max(0.001, due - self._clock() + 0.001))
            await self._bells.wait(_topic(scope), patience)

    def drop(self, scope: str) -> str:
        """A scope is over (its task has ended). Answers with the folder of what is stored of it."""
        self._boards.pop(scope, None)
        self._bells.ring(_topic(scope))
        return f"{FOLDER}/{scope}"

    # ------------------------------------------------------------------------------------------------------------

    async def _change(self, kept: Kept, name: str, decide: Callable[[], Tenure]) -> NameEntry:
        async with kept.changing(name):
            self._expire(kept)
            before, tenure = kept.board.get(name), decide()
            if before is None or before.entry != tenure.entry:
                await self._blobs.put(_key(kept.scope, name), _encoder.encode(tenure))
                await self._confirm_lead()
            kept.board.put(tenure, self._clock())
        self._bells.ring(_topic(kept.scope))
        return _entry(tenure)

    def _expire(self, kept: Kept) -> None:
        """What is over is over for everybody; ``tidy`` takes its stored record away."""
        gone = kept.board.expire(self._clock())
        if gone:
            self._over.extend((kept.scope, tenure.name) for tenure in gone)
            self._bells.ring(_topic(kept.scope))

    async def tidy(self) -> None:
        """Forget what has expired in the store too, unless it was added again meanwhile."""
        for kept in list(self._boards.values()):
            self._expire(kept)
        while self._over:
            scope, name = self._over.popleft()
            if scope in self._boards:
                await self._forget(self._boards[scope], name)

    async def _forget(self, kept: Kept, name: str) -> None:
        async with kept.changing(name):
            if kept.board.get(name) is None:
                await self._blobs.delete(_key(kept.scope, name))

    def _seen(self, kept: Kept, after: str) -> int | None:
        """The number in a version of this very board; another master's numbers mean nothing here."""
        board, _, number = after.partition(".")
        same = board == str(self._first()) and number.isdecimal() and len(number) < 19
        return int(number) if same else None

    async def _kept(self, scope: str) -> Kept:
        if scope not in self._boards:
            async with self._loading:
                if scope not in self._boards:
                    self._boards[scope] = await self._load(scope)
        kept = self._boards[scope]
        self._expire(kept)
        return kept

    async def _load(self, scope: str) -> Kept:
        """What an earlier master stored of this scope."""
        kept = Kept(scope, Board(self._first()))
        gate = asyncio.Semaphore(LOADING_AT_ONCE)

        async def read(key: str) -> Tenure | None:
            async with gate:
                try:
                    return _decoder.decode(await self._blobs.get(key))
                except NotFound:
                    return None
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise Corrupt(f"a stored name does not decode: {error}", object=f"blob {key}") from error

        async for page in self._blobs.list(f"{FOLDER}/{scope}"):
            for tenure in await asyncio.gather(*(read(listed.key) for listed in page)):
                if tenure is not None:
                    kept.board.put(tenure, self._clock())
        return kept


def task_scope(task: str) -> str:
    return f"task/{task}"


def workspace_scope(workspace: str) -> str:
    return f"workspace/{workspace}"


def _topic(scope: str) -> str:
    return f"names:{scope}"


def _key(scope: str, name: str) -> str:
    """Where a name is stored. Its hash, because a name may also be the folder of others."""
    return f"{FOLDER}/{scope}/{hashlib.sha256(name.encode()).hexdigest()}"


def _entry(tenure: Tenure) -> NameEntry:
    return NameEntry(tenure.name, tenure.value, tenure.token)
