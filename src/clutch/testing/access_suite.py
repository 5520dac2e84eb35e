"""The suite of access: the same promises on SQLite and on PostgreSQL. Run each of ``CHECKS`` on a fresh ``Ground``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from sqlalchemy import update

from clutch.master.access.accumulator import Account, Changes, Charge, Holding, OpenTask
from clutch.master.access.audit import AuditFilter
from clutch.master.access.database import open_database
from clutch.master.access.door import Access
from clutch.master.access.tables import meta, secrets
from clutch.master.access.token_text import hash_of
from clutch.master.access.usage_store import UsageFilter, cursor_of
from clutch.master.settings import MasterSettings
from clutch.wire.access import (
    AuditEntry,
    CallerKind,
    NewGroup,
    NewProject,
    NewSecret,
    NewUser,
    NewWorkspace,
    PlaceChange,
    Role,
    RoleGrant,
    TokenKind,
    TokenView,
    UserChange,
)
from clutch.wire.errors import (
    BadRequest,
    ClutchError,
    Conflict,
    Corrupt,
    NotAuthenticated,
    NotFound,
    Stale,
    TooNew,
)
from clutch.wire.ids import Fence, MemberId, NodeId, TaskId

MEMBER, FENCE = MemberId(TaskId("t"), "main", 0), Fence(1, 1, 1)
KEY = "0123456789abcdef" * 4


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time


class Ground:
    """A folder and a database of one's own; masters come and go on it."""

    def __init__(self, folder: Path, db: str = "", key: str = "") -> None:
        self.settings = MasterSettings(data=folder, db=db, master_key=key)
        self.clock = Hand()
        self.live: set[tuple[MemberId, Fence]] = set()

    @asynccontextmanager
    async def master(self, key: str = "") -> AsyncIterator[Access]:
        """One start of a master, as far as access goes."""
        settings = msgspec.structs.replace(self.settings, master_key=key) if key else self.settings
        access = await Access.open(settings, self.clock, lambda member, fence: (member, fence) in self.live)
        try:
            await access.bootstrap()
            yield access
        finally:
            await access.close()


async def refused(kind: type[ClutchError], doing: Awaitable[object]) -> ClutchError:
    """The error with which something was refused, as it must be."""
    try:
        await doing
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def add_user(access: Access, name: str, role: Role | None = None, scope: str = "cluster") -> None:
    await access.store.users.create(NewUser(name), "", access.clock.now())
    if role is not None:
        await access.store.grants.put(RoleGrant(f"user:{name}", role, scope))
        access.forget()


async def token_of(access: Access, user: str, lifetime_s: float = 0.0, **view: object) -> tuple[str, str]:
    """A token of this user, and its id."""
    made = await access.make_token(
        msgspec.convert({"id": "", "kind": "personal", "user": user, **view}, TokenView), lifetime_s
    )
    return made.token, made.view.id


# -- the first start ----------------------------------------------------------------------------------------------


async def check_the_first_start_makes_an_administrator_once(ground: Ground) -> None:
    async with ground.master() as access:
        assert not await access.bootstrap()
        assert [user.name for user in await access.store.users.page("", 10)] == ["admin"]
        assert [place.name for place in await access.store.workspaces.page(None, "", 10)] == ["default"]
        path = await access.local_token()
        assert path.stat().st_mode & 0o777 == 0o600
        token = path.read_text().strip()
        assert (await access.identify(token)).cluster_role() is Role.ADMIN
    async with ground.master() as access:
        assert (await access.local_token()).read_text().strip() == token, "it is kept while it is valid"
        await access.revoke((await access.identify(token)).token)
        assert (await access.local_token()).read_text().strip() != token


async def check_two_masters_may_start_at_once(ground: Ground) -> None:
    given = KEY if ground.settings.db else ""
    async with ground.master(given) as one, ground.master(given) as other:
        await asyncio.gather(one.bootstrap(), other.bootstrap())
        token = (await other.local_token()).read_text().strip()
        assert (await one.identify(token)).name == "admin"


async def check_a_newer_database_is_refused(ground: Ground) -> None:
    async with ground.master():
        pass
    database = await open_database(ground.settings.data, ground.settings.db)
    newer = update(meta).where(meta.c.name == "version").values(value=b"9")
    await database.write(lambda connection: connection.execute(newer).rowcount)
    await database.close()
    await refused(TooNew, open_database(ground.settings.data, ground.settings.db))


# -- people and places --------------------------------------------------------------------------------------------


async def check_users_come_by_name_and_are_never_deleted(ground: Ground) -> None:
    async with ground.master() as access:
        for name in ("zoe", "ada", "Bob", "b.2", "b-1"):
            await add_user(access, name)
        names = [user.name for user in await access.store.users.page("", 10)]
        assert names == ["Bob", "ada", "admin", "b-1", "b.2", "zoe"], "by code point, everywhere"
        assert [user.name for user in await access.store.users.page("admin", 2)] == ["b-1", "b.2"]
        await refused(Conflict, access.store.users.create(NewUser("ada"), "", 0.0))
        await refused(NotFound, access.store.users.get("nobody"))
        changed = await access.store.users.change("ada", UserChange(display_name="Ada", uid=1000, gid=100), None)
        assert (changed.display_name, changed.uid, changed.gid, changed.active) == ("Ada", 1000, 100, True)
        cleared = await access.store.users.change("ada", UserChange(unmap=True), None)
        assert (cleared.uid, cleared.gid) == (None, None)
        await refused(NotFound, access.store.users.change("nobody", UserChange(active=False), None))


async def check_a_deactivated_user_is_out_at_once_and_for_good(ground: Ground) -> None:
    async with ground.master() as access:
        await add_user(access, "ada", Role.EDITOR)
        token, _ = await token_of(access, "ada")
        assert (await access.identify(token)).name == "ada"
        await access.store.users.change("ada", UserChange(active=False), None)
        access.forget()
        await refused(NotAuthenticated, access.identify(token))
        made_later, _ = await token_of(access, "ada")
        await refused(NotAuthenticated, access.identify(made_later))
        await access.store.users.change("ada", UserChange(active=True), None)
        access.forget()
        await refused(NotAuthenticated, access.identify(token))


async def check_groups_give_their_members_roles(ground: Ground) -> None:
    async with ground.master() as access:
        for name in ("ada", "bob"):
            await add_user(access, name)
        await refused(BadRequest, access.store.groups.create(NewGroup("lab", ("ada", "nobody")), 0.0))
        await refused(NotFound, access.store.groups.get("lab"))
        await access.store.groups.create(NewGroup("lab", ("ada",)), 0.0)
        await refused(Conflict, access.store.groups.create(NewGroup("lab"), 0.0))
        await access.store.workspaces.create(NewWorkspace("vision"), "admin", 0.0)
        await access.store.grants.put(RoleGrant("group:lab", Role.EDITOR, "workspace:vision"))
        await access.store.grants.put(RoleGrant("user:ada", Role.VIEWER, "workspace:vision"))
        token, _ = await token_of(access, "ada")
        assert (await access.identify(token)).role_in("vision") is Role.EDITOR, "the highest counts"
        assert (await access.store.users.get("ada")).groups == ("lab",)
        assert (await access.store.groups.add("lab", "bob")).members == ("ada", "bob")
        assert (await access.store.groups.set_members("lab", ("bob", "bob"))).members == ("bob",)
        access.forget()
        assert (await access.identify(token)).role_in("vision") is Role.VIEWER
        await access.store.groups.delete("lab")
        access.forget()
        assert await access.store.grants.page(("workspace:vision",), "group:lab", "", 10) == []


async def check_an_administrator_is_always_left(ground: Ground) -> None:
    async with ground.master() as access:
        await refused(Conflict, access.store.grants.delete("user:admin", "cluster"))
        await refused(Conflict, access.store.grants.put(RoleGrant("user:admin", Role.EDITOR, "cluster")))
        await refused(Conflict, access.store.users.change("admin", UserChange(active=False), None))
        await add_user(access, "ada")
        await access.store.groups.create(NewGroup("ops", ("ada",)), 0.0)
        await access.store.grants.put(RoleGrant("group:ops", Role.ADMIN, "cluster"))
        await access.store.grants.delete("user:admin", "cluster")
        await refused(Conflict, access.store.groups.remove("ops", "ada"))
        await refused(Conflict, access.store.groups.set_members("ops", ()))
        await refused(Conflict, access.store.groups.delete("ops"))
        await refused(Conflict, access.store.users.change("ada", UserChange(active=False), None))
        token = (await access.local_token()).read_text().strip()
        assert (await access.identify(token)).name == "ada", "whoever owns the folder can always come in"
        assert (await access.store.groups.get("ops")).members == ("ada",), "what was refused changed nothing"


async def check_grants_are_for_those_who_exist(ground: Ground) -> None:
    async with ground.master() as access:
        await add_user(access, "ada")
        for subject, scope in (
            ("user:nobody", "cluster"),
            ("group:ada", "cluster"),
            ("user:ada", "workspace:nowhere"),
        ):
            await refused(NotFound, access.store.grants.put(RoleGrant(subject, Role.VIEWER, scope)))
        for subject, scope in (("ada", "cluster"), ("user:", "cluster"), ("user:ada", "everything")):
            await refused(BadRequest, access.store.grants.put(RoleGrant(subject, Role.VIEWER, scope)))
        await refused(NotFound, access.store.grants.delete("user:ada", "cluster"))


async def check_a_workspace_is_its_creators(ground: Ground) -> None:
    async with ground.master() as access:
        await add_user(access, "ada")
        await access.store.workspaces.create(NewWorkspace("vision", "cameras"), "ada", 0.0)
        await refused(Conflict, access.store.workspaces.create(NewWorkspace("vision"), "bob", 0.0))
        token, _ = await token_of(access, "ada")
        caller = await access.identify(token)
        assert caller.role_in("vision") is Role.ADMIN and caller.role_in("default") is None
        assert caller.workspaces() == ("vision",)
        await access.store.projects.create("vision", NewProject("maps"))
        await refused(Conflict, access.store.projects.create("vision", NewProject("maps")))
        await refused(NotFound, access.store.projects.create("nowhere", NewProject("maps")))
        await access.store.check_place("vision", "maps")
        await refused(NotFound, access.store.check_place("vision", "other"))
        await refused(NotFound, access.store.check_place("nowhere"))
        await access.store.projects.change("vision", "maps", PlaceChange(archived=True))
        await refused(Conflict, access.store.check_place("vision", "maps"))
        await access.store.workspaces.change("vision", PlaceChange(archived=True, description="none"))
        await refused(Conflict, access.store.check_place("vision"))
        assert [place.name for place in await access.store.workspaces.page(("vision",), "", 9)] == ["vision"]
        assert await access.store.workspaces.page((), "", 9) == []


# -- tokens -------------------------------------------------------------------------------------------------------


async def check_tokens_end_by_time_and_by_word(ground: Ground) -> None:
    async with ground.master() as access:
        await add_user(access, "ada", Role.EDITOR)
        long, long_id = await token_of(access, "ada", 3600.0)
        ground.clock.time += 1.0
        short, _ = await token_of(access, "ada", 60.0)
        for token in (short, long):
            assert (await access.identify(token)).name == "ada"
        ground.clock.time += 60.0
        await refused(NotAuthenticated, access.identify(short))
        assert (await access.identify(long)).name == "ada"
        await access.revoke(long_id)
        await refused(NotAuthenticated, access.identify(long))
        for junk in ("", "clutch_p_", "x" * 5000, "clutch_t_", "clutch_t_a.b", "clutch_t_====.", "\udc80", "ü"):
            await refused(NotAuthenticated, access.identify(junk))
    async with ground.master() as access:
        await refused(NotAuthenticated, access.identify(long))
        third, _ = await token_of(access, "ada", 3600.0)
    async with ground.master() as access:
        assert (await access.identify(third)).name == "ada", "a restart ends no token"
        views = await access.store.tokens.page("ada", "", "", 10)
        assert [view.revoked for view in views] == [False, False, True] and not any("clutch_" in v.id for v in views)


async def check_when_a_token_was_used_is_noted(ground: Ground) -> None:
    async with ground.master() as access:
        token, token_id = await token_of(access, "admin")
        ground.clock.time += 5.0
        await access.identify(token)
        ground.clock.time += 1.0
        await access.identify(token)
        assert (await access.store.tokens.get(token_id)).last_used_at == 0.0, "not at every use"
    async with ground.master() as access:
        assert (await access.store.tokens.get(token_id)).last_used_at == ground.clock.time


async def check_a_one_time_token_is_spent_once(ground: Ground) -> None:
    async with ground.master() as access:
        token = await access.make_one_time("admin")
        await refused(NotAuthenticated, access.identify(token))
        tries = [access.store.tokens.spend(hash_of(token), ground.clock.now()) for _ in range(8)]
        found = [view for view in await asyncio.gather(*tries) if view is not None]
        assert [view.user for view in found] == ["admin"]
        late = await access.make_one_time("admin")
        ground.clock.time += 1000.0
        assert await access.store.tokens.spend(hash_of(late), ground.clock.now()) is None
        other, _ = await token_of(access, "admin")
        assert await access.store.tokens.spend(hash_of(other), ground.clock.now()) is None


async def check_a_node_has_one_token(ground: Ground) -> None:
    async with ground.master() as access:
        first = await access.agent_token("n1")
        beside = await access.agent_token("n2")
        caller = await access.identify(first)
        assert (caller.kind, caller.name, caller.cluster_role()) == (CallerKind.AGENT, "n1", None)
        second = await access.enrol("n1", "gpu")
        await refused(NotAuthenticated, access.identify(first))
        assert (await access.identify(second.token)).name == "n1"
        assert (await access.identify(beside)).name == "n2"
        enrol, _ = await token_of(access, "admin", kind="enrol")
        assert (await access.identify(enrol)).kind is CallerKind.ENROLMENT
        assert await access.store.tokens.revoke_node("n1") == 1
        access.forget()
        await refused(NotAuthenticated, access.identify(second.token))
        await add_user(access, "ada", Role.ADMIN)
        await access.store.users.change("admin", UserChange(active=False), None)
        access.forget()
        assert (await access.identify(beside)).name == "n2", "nodes outlive whoever enrolled them"
        await refused(NotAuthenticated, access.identify(enrol))


async def check_a_members_token_dies_with_its_incarnation(ground: Ground) -> None:
    async with ground.master() as access:
        token = access.task_token(MEMBER, FENCE)
        await refused(NotAuthenticated, access.identify(token))
        ground.live.add((MEMBER, FENCE))
        caller = await access.identify(token)
        assert (caller.kind, caller.member, caller.fence, caller.roles) == (CallerKind.TASK, MEMBER, FENCE, {})
        assert access.task_token(MEMBER, FENCE) == token
    async with ground.master() as access:
        assert (await access.identify(token)).member == MEMBER, "a new master knows it too"
        ground.live = {(MEMBER, Fence(1, 1, 2))}
        await refused(NotAuthenticated, access.identify(token))


async def check_pages_of_tokens(ground: Ground) -> None:
    async with ground.master() as access:
        made = []
        for number in range(7):
            ground.clock.time += number % 2  # some share a moment
            made.append((await token_of(access, "admin", description=str(number)))[1])
        seen: list[str] = []
        after = ""
        while views := await access.store.tokens.page("admin", "personal", after, 3):
            seen += [view.id for view in views]
            after = views[-1].id
        assert sorted(seen) == sorted(made) and len(seen) == 7
        await refused(BadRequest, access.store.tokens.page("", "", "nothing", 3))
        assert await access.store.tokens.page("admin", TokenKind.SESSION, "", 3) == []


# -- secrets ------------------------------------------------------------------------------------------------------


async def check_secrets_are_sealed_for_their_place(ground: Ground) -> None:
    async with ground.master() as access:
        store = access.store.secrets
        await access.store.workspaces.create(NewWorkspace("vision"), "admin", 0.0)
        await store.put("default", NewSecret("key", "first"), "admin", 1.0)
        await store.put("default", NewSecret("key", "hunter2"), "admin", 2.0)
        await store.put("vision", NewSecret("key", "other"), "admin", 3.0)
        assert await store.values("default", ("key", "none")) == {"key": "hunter2"}
        assert [view.name for view in await store.page("default", "", 10)] == ["key"]
        await refused(NotFound, store.put("nowhere", NewSecret("key", "x"), "admin", 1.0))
        await refused(BadRequest, store.put("default", NewSecret("big", "x" * 70_000), "admin", 1.0))
        database = await open_database(ground.settings.data, ground.settings.db)
        stolen = secrets.alias()
        swap = (
            update(secrets)
            .where(secrets.c.workspace == "vision")
            .values(sealed=stolen.select().with_only_columns(stolen.c.sealed).where(
                stolen.c.workspace == "default").scalar_subquery())
        )  # fmt: skip
        await database.write(lambda connection: connection.execute(swap).rowcount)
        await database.close()
        await refused(Corrupt, store.values("vision", ("key",)))
        await store.delete("default", "key")
        assert await store.values("default", ("key",)) == {}
        await refused(NotFound, store.delete("default", "key"))


async def check_a_new_master_key_disturbs_nothing(ground: Ground) -> None:
    ground.live.add((MEMBER, FENCE))
    async with ground.master() as access:
        await access.store.secrets.put("default", NewSecret("key", "hunter2"), "admin", 1.0)
        token, before = access.task_token(MEMBER, FENCE), access.keys.newest
        assert await access.rotate_key() == 1
        assert access.keys.newest != before
        assert await access.store.secrets.values("default", ("key",)) == {"key": "hunter2"}
        assert (await access.identify(token)).member == MEMBER
    async with ground.master() as access:
        assert await access.store.secrets.values("default", ("key",)) == {"key": "hunter2"}
        assert (await access.identify(token)).member == MEMBER
        assert await access.store.secrets.reseal() == 0, "all are sealed with the newest"


async def check_another_master_key_is_refused(ground: Ground) -> None:
    async with ground.master(KEY) as access:
        await access.store.secrets.put("default", NewSecret("key", "hunter2"), "admin", 1.0)
        await refused(Conflict, access.rotate_key())
    other = msgspec.structs.replace(ground.settings, master_key="f" * 64)
    error = await refused(BadRequest, Access.open(other, ground.clock, lambda member, fence: False))
    assert KEY not in str(error) and "f" * 64 not in str(error)
    async with ground.master("f" * 64 + "," + KEY) as access:  # the new one in front: secrets move over at the start
        assert await access.store.secrets.values("default", ("key",)) == {"key": "hunter2"}
    async with ground.master("f" * 64) as access:
        assert await access.store.secrets.values("default", ("key",)) == {"key": "hunter2"}


# -- audit and usage ----------------------------------------------------------------------------------------------


async def check_the_audit_is_complete_at_the_end(ground: Ground) -> None:
    async with ground.master() as access:
        for number in range(1200):
            await access.record(AuditEntry(at=float(number), who=f"user:{number % 3}", action="act", status=200))
    async with ground.master() as access:
        page = access.store.audit.page
        newest = await page(AuditFilter(), 0, 1000)
        assert [entry.at for entry in newest[:3]] == [1199.0, 1198.0, 1197.0]
        assert len(await page(AuditFilter(), newest[-1].index, 1000)) == 200
        assert len(await page(AuditFilter(who="user:1"), 0, 1000)) == 400
        assert len(await page(AuditFilter(since=100.0, until=110.0), 0, 1000)) == 10
        assert await page(AuditFilter(action="none"), 0, 10) == []
        assert await access.store.audit.forget(600.0) == 600


async def check_an_audit_that_is_cut_short_says_nothing_twice(ground: Ground) -> None:
    async with ground.master() as access:
        for number in range(700):
            await access.record(AuditEntry(at=float(number), who="user:a", action="act"))
        writing = asyncio.create_task(access.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await access.audited()
        found = await access.store.audit.page(AuditFilter(), 0, 1000)
        assert sorted(entry.at for entry in found) == [float(number) for number in range(700)]


async def check_no_entry_holds_up_the_others(ground: Ground) -> None:
    async with ground.master() as access:
        await access.record(AuditEntry(at=1.0, who="user:a", action="act", object="/a\x00b", detail="\udc80" * 9))
        await access.record(AuditEntry(at=2.0, who="user:a", action="act", object="x" * 100_000))
        await access.audited()
        newest, oldest = await access.store.audit.page(AuditFilter(), 0, 10)
        assert (len(newest.object), oldest.object, oldest.detail) == (2000, "/a\ufffdb", "?" * 9)


def _changes(held_s: float, tasks: int = 0) -> Changes:
    ada = Account("ada", "vision", "maps", "gpu")
    return Changes(charges={(0, ada): Charge(held_s=held_s, used_s=held_s / 2, tasks=tasks)})


async def check_usage_adds_up_and_is_written_once(ground: Ground) -> None:
    async with ground.master() as access:
        usage = access.store.usage
        turn, empty = await usage.load()
        assert (turn, empty.index) == (0, 0)
        ada, bob = Account("ada", "vision", "maps", "gpu"), Account("bob", "vision", "", "gpu")
        first = _changes(10.0, 1)
        first.charges[1, bob] = Charge(held_s=4.0)
        first.tasks[TaskId("t")] = OpenTask(ada, 0)
        first.holdings["member t/main.0"] = Holding(TaskId("t"), NodeId("n"), (0, 3))
        first.holdings["member t/main.1"] = Holding(TaskId("t"), NodeId("n"), ())
        await usage.save(0, 7, 100.0, first)
        await usage.save(1, 9, 105.0, _changes(2.5))
        await refused(Stale, usage.save(1, 9, 105.0, _changes(2.5)))
        await refused(Stale, usage.save(0, 1, 1.0, _changes(2.5)))
        rows = await usage.page(UsageFilter(), "", 10)
        assert [(r.day, r.user, r.project, r.slot_seconds_held, r.slot_seconds_used, r.tasks) for r in rows] == [
            ("1970-01-01", "ada", "maps", 12.5, 6.25, 1),
            ("1970-01-02", "bob", "", 4.0, 0.0, 0),
        ]
        by = ("workspace", "pool")
        (total,) = await usage.page(UsageFilter(by=by), "", 10)
        assert (total.workspace, total.pool, total.user, total.slot_seconds_held) == ("vision", "gpu", "", 16.5)
        assert await usage.page(UsageFilter(by=by), cursor_of(total, by), 10) == []
        assert [r.user for r in await usage.page(UsageFilter(), cursor_of(rows[0], UsageFilter().by), 10)] == ["bob"]
        assert len(await usage.page(UsageFilter(since="1970-01-02"), "", 10)) == 1
        assert len(await usage.page(UsageFilter(until="1970-01-01"), "", 10)) == 1
        assert await usage.page(UsageFilter(workspaces=()), "", 10) == []
        assert await usage.page(UsageFilter(user="eve"), "", 10) == []
        await refused(BadRequest, usage.page(UsageFilter(), "one,two", 10))
    async with ground.master() as access:
        turn, kept = await access.store.usage.load()
        assert (turn, kept.index, kept.charged_at) == (2, 9, 105.0)
        assert kept.tasks == {"t": OpenTask(ada, 0)}
        assert kept.holdings["member t/main.0"].slots == (0, 3) and kept.holdings["member t/main.1"].slots == ()


Check = Callable[[Ground], Awaitable[None]]
CHECKS: tuple[Check, ...] = (
    check_the_first_start_makes_an_administrator_once,
    check_two_masters_may_start_at_once,
    check_a_newer_database_is_refused,
    check_users_come_by_name_and_are_never_deleted,
    check_a_deactivated_user_is_out_at_once_and_for_good,
    check_groups_give_their_members_roles,
    check_an_administrator_is_always_left,
    check_grants_are_for_those_who_exist,
    check_a_workspace_is_its_creators,
    check_tokens_end_by_time_and_by_word,
    check_when_a_token_was_used_is_noted,
    check_a_one_time_token_is_spent_once,
    check_a_node_has_one_token,
    check_a_members_token_dies_with_its_incarnation,
    check_pages_of_tokens,
    check_secrets_are_sealed_for_their_place,
    check_a_new_master_key_disturbs_nothing,
    check_another_master_key_is_refused,
    check_the_audit_is_complete_at_the_end,
    check_an_audit_that_is_cut_short_says_nothing_twice,
    check_no_entry_holds_up_the_others,
    check_usage_adds_up_and_is_written_once,
)
