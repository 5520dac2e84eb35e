"""Coming in: a password or a one-time token for a session. As slow for the wrong as for the right, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from clutch.core.checks import NAME
from clutch.master.access.passwords import COST, Cost, check_password, hashed, matches
from clutch.master.access.throttle import Throttle
from clutch.master.access.token_text import hash_of
from clutch.wire.access import Login, MadeToken, TokenKind, TokenView
from clutch.wire.errors import BadRequest, NotAuthenticated, TooMany

if TYPE_CHECKING:
    from clutch.master.access.door import Access

T = TypeVar("T")
SESSION_S = 14 * 86400.0
WAITING_MAX = 64
"""Guesses that may wait for their turn; each takes a fifth of a second of a core."""


class Logins:
    """Password hashes are made two at a time: each takes 32 MiB and all of a core."""

    def __init__(self, access: Access, at_once: int = 2, cost: Cost = COST) -> None:
        self._access = access
        self._cost = cost
        self._throttle = Throttle()
        self._turns = asyncio.Semaphore(at_once)
        self._waiting = 0

    async def hash(self, password: str) -> str:
        """What is stored instead of a new password."""
        check_password(password)
        return await self._in_turn(lambda: hashed(password, self._cost))

    async def matches(self, user: str, password: str) -> bool:
        """Whether this is the password of an active user; as slow for one that does not exist."""
        stored, active = await self._access.store.users.credentials(user)
        right = await self._in_turn(lambda: matches(password, stored, self._cost))
        return right and active

    async def log_in(self, login: Login, address: str) -> MadeToken:
        """A session for whoever proves to be a user. ``NotAuthenticated`` says no more than that it failed."""
        now = self._access.clock.now()
        name = login.user if NAME.fullmatch(login.user) else ""
        if bool(login.one_time_token) == bool(login.user):
            raise BadRequest(
                "either a one-time token or a user with a password is needed",
                object="login",
                next_step="Give one of the two.",
            )
        self._throttle.attempt(name, address, now)
        proven = await self._proven(login, name, now)
        if proven is None:
            raise NotAuthenticated(
                "user or password is wrong, or the token was used before" if name else "it lets nobody in",
                object=f"user {name}" if name else "login",
                next_step="Try again; an administrator can set a new password or make a one-time token.",
            )
        self._throttle.succeeded(name, address)
        return await self._access.make_token(
            msgspec.structs.replace(proven, kind=TokenKind.SESSION, description=f"login from {address[:64]}"), SESSION_S
        )

    async def _proven(self, login: Login, name: str, now: float) -> TokenView | None:
        """Whose session this may become, with the limits of the token it comes from; None for nobody's."""
        if login.user:
            right = await self.matches(name, login.password)
            return TokenView(id="", kind=TokenKind.SESSION, user=name) if right else None
        spent = await self._access.store.tokens.spend(hash_of(login.one_time_token), now)
        if spent is None:
            return None
        _, active = await self._access.store.users.credentials(spent.user)
        return msgspec.structs.replace(spent, revoked=False, last_used_at=0.0) if active else None

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self._waiting >= WAITING_MAX:
            raise TooMany("too many logins at once", object="login", next_step="Try again in a few seconds.")
        self._waiting += 1
        try:
            async with self._turns:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1
