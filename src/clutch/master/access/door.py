"""The one door: who calls, by their token, and what they may do; and the record of what they did.

A caller is known for ``CACHED_S`` without asking the database again. Whatever changes rights on this master (a token
revoked, a user deactivated, a role taken) empties that memory in the same call, so it takes effect at once here; only
the leading master serves, so there is no other place where it could still hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from clutch.core.member import PRESENT
from clutch.core.state import State
from clutch.master.access.audit import Lane
from clutch.master.access.caller import Caller
from clutch.master.access.database import open_database
from clutch.master.access.keys import FILE as KEY_FILE
from clutch.master.access.keys import MasterKeys, load_keys
from clutch.master.access.login import Logins
from clutch.master.access.store import Store
from clutch.master.access.token_text import (
    LENGTH_MAX,
    TASK_PREFIX,
    hash_of,
    new_token,
    read_task_token,
    task_token,
)
from clutch.master.access.tokens import Identity
from clutch.master.loop import Clock
from clutch.master.settings import MasterSettings
from clutch.wire.access import (
    CLUSTER,
    AuditEntry,
    CallerKind,
    MadeToken,
    NewUser,
    NewWorkspace,
    Role,
    RoleGrant,
    TokenKind,
    TokenView,
)
from clutch.wire.errors import ClutchError, Conflict, NotAuthenticated, NotFound
from clutch.wire.ids import Fence, MemberId

ADMIN = "admin"
WORKSPACE = "default"
LOCAL_FILE = "local.token"
ONE_TIME_S = 900.0
CACHED_S = 5.0
CACHED_MAX = 10_000
TOUCH_S = 60.0
TIDY_S = 3600.0
TOKENS_KEPT_S = 30 * 86400.0
"""How long sessions and one-time tokens are shown after their end."""
AUDIT_KEPT_S = 400 * 86400.0

IsLive = Callable[[MemberId, Fence], bool]


def live_in(state: Callable[[], State]) -> IsLive:
    """Whether this very incarnation is the one that should run, as of the state at the moment of the question."""

    def is_live(member: MemberId, fence: Fence) -> bool:
        now = state()
        found = now.members.get(member)
        return found is not None and found.state in PRESENT and found.fence(now.generation) == fence

    return is_live


class Access:
    """Who may come in. Use ``open``; put ``run`` into the master's task group and ``close`` it at the end."""

    def __init__(self, store: Store, keys: MasterKeys, clock: Clock, is_live: IsLive) -> None:
        self.store = store
        self.keys = keys
        self.clock = clock
        self.logins = Logins(self)
        self.folder: Path | None = None
        """Where the local token and the master key are kept; None: nowhere."""
        self.key_was_given = True
        self._is_live = is_live
        self._lane = Lane(store.audit)
        self._known: OrderedDict[bytes, tuple[Identity, float]] = OrderedDict()
        self._changes = 0
        self._used: dict[str, float] = {}
        self._log = structlog.get_logger("access")

    @classmethod
    async def open(cls, settings: MasterSettings, clock: Clock, is_live: IsLive) -> Access:
        """The access of a master: its database opened, its key loaded and known to be the right one."""
        keys = await asyncio.to_thread(load_keys, settings.master_key, settings.data)
        database = await open_database(settings.data, settings.db)
        access = cls(Store(database, keys), keys, clock, is_live)
        access.folder = settings.data
        access.key_was_given = bool(settings.master_key)
        try:
            await access.store.secrets.check_key()
        except BaseException:
            await database.close()
            raise
        return access

    # -- who calls -----------------------------------------------------------------------------------------------

    async def identify(self, bearer: str) -> Caller:
        """The caller behind a token. ``NotAuthenticated`` for one that is unknown, expired or revoked."""
        if len(bearer) > LENGTH_MAX or not bearer.isascii():
            raise _unknown()
        if bearer.startswith(TASK_PREFIX):
            return self._member(bearer)
        identity = await self._identity(hash_of(bearer))
        if identity is None or not identity.is_valid(self.clock.now()):
            raise _unknown()
        token = identity.token
        self._used[token.id] = self.clock.now()
        if token.kind is TokenKind.AGENT:
            return Caller(CallerKind.AGENT, token.node, token=token.id)
        if token.kind is TokenKind.ENROL:
            return Caller(CallerKind.ENROLMENT, token.id, token=token.id)
        if token.kind is TokenKind.ONE_TIME:
            raise NotAuthenticated(
                "a one-time token is exchanged for a session first",
                object="token",
                next_step="Log in with it: 'clutch login --token', or POST /api/v1/login.",
            )
        return Caller(CallerKind.USER, token.user, identity.roles, token=token.id, limits=identity.limits)

    async def as_user(self, user: str) -> Caller:
        """What a user may do now, by a proof of who they are that is not a token: a ticket of the proxy's."""
        roles = await self.store.tokens.roles(user)
        if roles is None:
            raise NotAuthenticated("there is no such user, or they are not active", object=f"user {user}")
        return Caller(CallerKind.USER, user, roles)

    def _member(self, bearer: str) -> Caller:
        claim = read_task_token(bearer, self.keys)
        if claim is None:
            raise _unknown()
        member, fence = claim
        if not self._is_live(member, fence):
            raise NotAuthenticated(
                "its allocation has ended or a newer incarnation runs",
                object=f"member {member} {fence}",
                next_step="Nothing is to be done: this process is no longer wanted.",
            )
        return Caller(CallerKind.TASK, str(member), member=(member, fence))

    async def _identity(self, token_hash: bytes) -> Identity | None:
        """From memory if it is fresh. What changed while the database was asked is never remembered."""
        known = self._known.get(token_hash)
        now = self.clock.now()
        if known is not None and abs(now - known[1]) < CACHED_S:
            self._known.move_to_end(token_hash)
            return known[0]
        changes = self._changes
        identity = await self.store.tokens.identity(token_hash)
        if identity is not None and changes == self._changes:
            self._known[token_hash] = (identity, now)
            self._known.move_to_end(token_hash)
            while len(self._known) > CACHED_MAX:
                self._known.popitem(last=False)
        return identity

    def forget(self) -> None:
        """Rights have changed: everybody is looked up again. Called after each such change, before it is answered."""
        self._changes += 1
        self._known.clear()

    # -- tokens --------------------------------------------------------------------------------------------------

    def task_token(self, member: MemberId, fence: Fence) -> str:
        """The token of one incarnation. It is stored nowhere and dies with its allocation."""
        return task_token(member, fence, self.keys)

    async def make_token(self, view: TokenView, lifetime_s: float) -> MadeToken:
        """A new token like ``view`` (its id and times are filled in), valid so long; 0 for ever."""
        now = self.clock.now()
        view = msgspec.structs.replace(
            view, id=secrets.token_hex(8), created_at=now, expires_at=now + lifetime_s if lifetime_s else 0.0
        )
        token = new_token(view.kind)
        await self.store.tokens.add(view, hash_of(token))
        return MadeToken(token=token, view=view)

    async def make_one_time(self, user: str = ADMIN) -> str:
        """A token that can be exchanged for a session once, within minutes."""
        await self.store.users.get(user)
        view = TokenView(id="", kind=TokenKind.ONE_TIME, user=user, description="one-time login")
        return (await self.make_token(view, ONE_TIME_S)).token

    async def enrol(self, node: str, pool: str = "", by: str = ADMIN, description: str = "") -> MadeToken:
        """A new token for this node's agent. Those it had end here: a name belongs to one machine at a time."""
        view = TokenView(
            id=secrets.token_hex(8),
            kind=TokenKind.AGENT,
            user=by,
            description=description,
            created_at=self.clock.now(),
            pool=pool,
            node=node,
        )
        token = new_token(TokenKind.AGENT)
        await self.store.tokens.enrol(view, hash_of(token))
        self.forget()
        return MadeToken(token=token, view=view)

    async def agent_token(self, node: str) -> str:
        """A new token for an agent on the master's own machine."""
        return (await self.enrol(node, description="an agent beside the master")).token

    async def revoke(self, token: str) -> None:
        await self.store.tokens.revoke(token)
        self.forget()

    # -- the first start -----------------------------------------------------------------------------------------

    async def bootstrap(self) -> bool:
        """Make sure that there is an administrator and a workspace; whether this was the first start."""
        now = self.clock.now()
        first = not await self.store.users.page("", 1)
        if first:
            with contextlib.suppress(Conflict):  # another master of the same cluster is as far
                await self.store.users.create(NewUser(ADMIN, display_name="Administrator"), "", now)
            await self.store.grants.put(RoleGrant(subject=f"user:{ADMIN}", role=Role.ADMIN, scope=CLUSTER))
            with contextlib.suppress(Conflict):
                await self.store.workspaces.create(NewWorkspace(WORKSPACE), ADMIN, now)
        await self.store.secrets.reseal()  # a rotation that was cut short, or a new key that was given
        self.forget()
        return first

    async def local_token(self) -> Path:
        """The file with an administrator's token for commands on this machine: whoever may read it owns the data."""
        if self.folder is None:
            raise NotFound("this master has no data folder", object=LOCAL_FILE)
        path = self.folder / LOCAL_FILE
        with contextlib.suppress(ClutchError, OSError, UnicodeDecodeError):
            known = await self.identify((await asyncio.to_thread(path.read_text)).strip())
            if known.kind is CallerKind.USER and known.cluster_role() is Role.ADMIN:
                return path
        able = await self.store.grants.administrators()  # there is always one, if not the first
        user = ADMIN if ADMIN in able else able[0]
        view = TokenView(id="", kind=TokenKind.PERSONAL, user=user, description="commands on the master's machine")
        made = await self.make_token(view, 0.0)
        await asyncio.to_thread(_write_private, path, made.token + "\n")
        return path

    async def rotate_key(self) -> int:
        """A new master key for this data folder: every secret sealed anew, running members untouched; how many."""
        if self.folder is None or self.key_was_given:
            raise Conflict(
                "the master key was given at the start, so it is not ours to change",
                object="master key",
                next_step="Start every master with --master-key OLD,NEW, and when all have both, with NEW,OLD.",
            )
        keys = self.keys.with_new()
        await asyncio.to_thread(keys.write, self.folder / KEY_FILE)  # first: what is sealed with it must be openable
        self.keys.become(keys)
        return await self.store.secrets.reseal()

    # -- the record ----------------------------------------------------------------------------------------------

    async def record(self, entry: AuditEntry) -> None:
        """Take an entry of the audit. Never waits for the database; ``close`` writes what is left."""
        self._lane.note(entry)

    async def audited(self) -> None:
        """Returns when everything recorded so far can be read."""
        await self._lane.flush()

    async def run(self) -> None:
        """Write the audit and note when tokens were used, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lane.run())
            group.create_task(self._tidy())

    async def _tidy(self) -> None:
        tidied_at = 0.0
        while True:
            await asyncio.sleep(TOUCH_S)
            try:
                await self._touch()
                now = self.clock.now()
                if now - tidied_at > TIDY_S:
                    tidied_at = now
                    await self.store.tokens.forget(now - TOKENS_KEPT_S)
                    await self.store.audit.forget(now - AUDIT_KEPT_S)
            except ClutchError as error:
                self._log.warning("tokens and audit cannot be tidied", error=str(error))

    async def _touch(self) -> None:
        used, self._used = self._used, {}
        await self.store.tokens.touch(used)

    async def close(self) -> None:
        """Write what is left, then let go of the database. Raises when the audit could not be completed."""
        try:
            await self._touch()
            await self._lane.close()
        finally:
            await self.store.close()


def _unknown() -> NotAuthenticated:
    return NotAuthenticated(
        "the token is unknown, expired or revoked", object="token", next_step="Log in again with 'clutch login'."
    )


def _write_private(path: Path, text: str) -> None:
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    draft.replace(path)
