"""Webhooks as they are stored, and the log of what was delivered to them.

A webhook's address and its secret are sealed with the master key, each row for its own place: either of them lets
whoever has it in somewhere (the address of a chat's webhook is its whole password).
"""

from __future__ import annotations

import secrets as chance
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, UpdateBase, and_, delete, insert, or_, select, update

from clutch.master.access.database import Database
from clutch.master.access.keys import MasterKeys
from clutch.master.access.rules import check_text
from clutch.master.access.sql import is_row, put_new
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.experiment_words import ExperimentNews
from clutch.wire.library import MATCHED, TOLD, Delivery, NewWebhook, WebhookChange, WebhookFormat, WebhookView
from clutch.workloads.experiment.library.addresses import parse_target
from clutch.workloads.experiment.library.models import Who
from clutch.workloads.experiment.library.rules import joined, parted, prefix_end, the_one
from clutch.workloads.experiment.library.tables import deliveries, messages, webhooks

SECRET_MAX = 1000
PATTERNS_MAX = 100
KEPT = 100
"""Deliveries of each webhook that its log keeps."""


class Sealed(msgspec.Struct, frozen=True):
    url: str
    secret: str


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook with what is needed to deliver to it."""

    id: str
    view: WebhookView
    key_id: str
    sealed: bytes

    def opened(self, keys: MasterKeys) -> Sealed:
        plain = keys.open(self.key_id, self.sealed, _place(self.view.scope, self.id))
        return msgspec.msgpack.decode(plain, type=Sealed)

    def wants(self, news: ExperimentNews) -> bool:
        """Whether this is for it: what it is about, and the experiment's name, or that the experiment asks for it."""
        heard = (news.told, MATCHED) if news.event == MATCHED else (news.told,)
        if not self.view.enabled or not any(word in self.view.triggers for word in heard):
            return False
        if self.view.name in news.webhooks:
            return True
        patterns = self.view.experiments
        return not self.view.on_request and (not patterns or any(fnmatchcase(news.name, each) for each in patterns))


def _place(scope: str, id: str) -> str:
    return f"webhook {scope} {id}"


def no_webhook(scope: str, name: str) -> NotFound:
    return NotFound(
        "there is no such webhook, or you may not see it",
        object=f"webhook {scope}/{name}",
        next_step="'clutch webhook list' shows those there are.",
    )


class Webhooks:
    def __init__(self, database: Database, keys: MasterKeys) -> None:
        self._database = database
        self.keys = keys

    async def create(self, new: NewWebhook, who: Who) -> tuple[Hook, str]:
        """The webhook and its secret, which is not seen again."""
        secret = _check_secret(new.secret) if new.secret else chance.token_urlsafe(32)
        target = parse_target(new.url)
        id = chance.token_hex(8)
        view = WebhookView(
            scope=new.scope,
            name=new.name,
            url=target.origin,
            format=new.format,
            triggers=_check_triggers(new.triggers),
            experiments=_check_patterns(new.experiments),
            on_request=new.on_request,
            enabled=new.enabled,
            created_by=who.name,
            created_at=who.at,
        )
        sealed = self._seal(Sealed(new.url, secret), new.scope, id)
        hook = Hook(id=id, view=view, key_id=self.keys.newest, sealed=sealed)

        def work(connection: Connection) -> None:
            made = put_new(
                connection, webhooks, scope=new.scope, name=new.name, id=id, key_id=hook.key_id, sealed=sealed,
                origin=target.origin, created_by=who.name, created_at=who.at, **_columns(view),
            )  # fmt: skip
            if not made:
                raise Conflict(
                    "there is a webhook of this name",
                    object=f"webhook {new.scope}/{new.name}",
                    next_step="Choose another name, or change the one there is.",
                )

        await self._database.write(work)
        return hook, secret

    def _seal(self, sealed: Sealed, scope: str, id: str) -> bytes:
        return self.keys.seal(msgspec.msgpack.encode(sealed), _place(scope, id))

    async def find(self, scope: str, prefix: str) -> Hook:
        """By its name, or a beginning that only it has."""

        def work(connection: Connection) -> Hook:
            begins = and_(webhooks.c.name >= prefix, webhooks.c.name < prefix_end(prefix))
            question = select(webhooks).where(webhooks.c.scope == scope, begins)
            found = connection.execute(question.order_by(webhooks.c.name).limit(10)).all()
            name = the_one(prefix, [row.name for row in found], f"webhook {scope}/{prefix}")
            return next(_hook(row) for row in found if row.name == name)

        return await self._database.read(work)

    async def get(self, id: str) -> Hook | None:
        question = select(webhooks).where(webhooks.c.id == id)
        row = await self._database.read(lambda connection: connection.execute(question).first())
        return None if row is None else _hook(row)

    async def page(self, scopes: tuple[str, ...] | None, after: str, limit: int) -> list[Hook]:
        """Of these scopes, or of all for None; the cursor is ``scope/name``."""
        place, _, name = after.partition("/")
        behind = or_(webhooks.c.scope > place, and_(webhooks.c.scope == place, webhooks.c.name > name))
        question = select(webhooks).where(behind).order_by(webhooks.c.scope, webhooks.c.name).limit(limit)
        if scopes is not None:
            question = question.where(webhooks.c.scope.in_(scopes))
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [_hook(row) for row in found]

    async def change(self, scope: str, name: str, change: WebhookChange) -> Hook:
        if change.secret is not None:
            _check_secret(change.secret)
        origin = parse_target(change.url).origin if change.url is not None else None
        given: dict[str, Any] = {
            "format": change.format,
            "triggers": None if change.triggers is None else joined(_check_triggers(change.triggers)),
            "experiments": None if change.experiments is None else joined(_check_patterns(change.experiments)),
            "on_request": change.on_request,
            "enabled": change.enabled,
            "origin": origin,
        }
        values = {key: value for key, value in given.items() if value is not None}
        here = is_row(webhooks, scope=scope, name=name)

        def work(connection: Connection) -> Hook:
            row = connection.execute(select(webhooks).where(here).with_for_update()).first()
            if row is None:
                raise no_webhook(scope, name)
            if change.url is not None or change.secret is not None:
                known = _hook(row).opened(self.keys)
                url = known.url if change.url is None else change.url
                secret = known.secret if change.secret is None else change.secret
                values["sealed"] = self._seal(Sealed(url, secret), scope, row.id)
                values["key_id"] = self.keys.newest
            if values:
                connection.execute(update(webhooks).where(here).values(**values))
            return _hook(connection.execute(select(webhooks).where(here)).one())

        return await self._database.write(work)

    async def delete(self, scope: str, name: str) -> None:
        def work(connection: Connection) -> None:
            here = is_row(webhooks, scope=scope, name=name)
            id = connection.execute(delete(webhooks).where(here).returning(webhooks.c.id)).scalar()
            if id is None:
                raise no_webhook(scope, name)
            connection.execute(delete(deliveries).where(deliveries.c.webhook == id))
            connection.execute(delete(messages).where(messages.c.webhook == id))

        await self._database.write(work)

    async def of_scopes(self, scopes: tuple[str, ...]) -> list[Hook]:
        """All that are enabled there."""
        question = select(webhooks).where(webhooks.c.scope.in_(scopes), webhooks.c.enabled.is_(True))
        question = question.order_by(webhooks.c.scope, webhooks.c.name)
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [_hook(row) for row in found]

    async def reseal(self) -> int:
        """Seal everything with the newest key, in one transaction; how many were sealed with an older one."""
        keys = self.keys

        def work(connection: Connection) -> int:
            due = connection.execute(select(webhooks).where(webhooks.c.key_id != keys.newest).with_for_update()).all()
            for row in due:
                sealed = self._seal(_hook(row).opened(keys), row.scope, row.id)
                here = is_row(webhooks, scope=row.scope, name=row.name)
                connection.execute(update(webhooks).where(here).values(key_id=keys.newest, sealed=sealed))
            return len(due)

        return await self._database.write(work)

    # -- the log --------------------------------------------------------------------------------------------------

    async def note(self, hook: str, delivery: Delivery, *changes: UpdateBase) -> Delivery:
        """Write a try down, with what it changes in the same moment, and forget the oldest ones."""

        def work(connection: Connection) -> Delivery:
            for change in changes:
                connection.execute(change)
            done = connection.execute(
                insert(deliveries)
                .values(
                    webhook=hook, token=delivery.id, experiment=delivery.experiment, state=delivery.state,
                    status=delivery.status, error=delivery.error, again=delivery.again, took_s=delivery.took_s,
                    at=delivery.at,
                )
                .returning(deliveries.c.number)
            ).scalar_one()  # fmt: skip
            newest = select(deliveries.c.number).where(deliveries.c.webhook == hook)
            last = connection.execute(newest.order_by(deliveries.c.number.desc()).offset(KEPT).limit(1)).scalar()
            if last is not None:
                old = and_(deliveries.c.webhook == hook, deliveries.c.number <= last)
                connection.execute(delete(deliveries).where(old))
            return msgspec.structs.replace(delivery, number=int(done))

        return await self._database.write(work)

    async def deliveries(self, hook: str, before: int, limit: int) -> list[Delivery]:
        """The newest first; those before this number, 0: from the newest on."""
        question = select(deliveries).where(deliveries.c.webhook == hook)
        if before:
            question = question.where(deliveries.c.number < before)
        question = question.order_by(deliveries.c.number.desc()).limit(limit)
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [
            Delivery(
                number=row.number,
                id=row.token,
                experiment=row.experiment,
                state=row.state,
                status=row.status,
                error=row.error,
                again=bool(row.again),
                took_s=row.took_s,
                at=row.at,
            )
            for row in found
        ]

    async def settled(self, token: str) -> frozenset[str]:
        """The webhooks (by id) that are done with this message: they took it, or will never."""
        question = select(deliveries.c.webhook).where(deliveries.c.token == token, deliveries.c.again.is_(False))
        found = await self._database.read(lambda connection: connection.execute(question).scalars().all())
        return frozenset(found)


def _columns(view: WebhookView) -> dict[str, Any]:
    return {
        "format": view.format,
        "triggers": joined(view.triggers),
        "experiments": joined(view.experiments),
        "on_request": view.on_request,
        "enabled": view.enabled,
    }


def _hook(row: Row[Any]) -> Hook:
    view = WebhookView(
        scope=row.scope,
        name=row.name,
        url=row.origin,
        format=WebhookFormat(row.format),
        triggers=parted(row.triggers),
        experiments=parted(row.experiments),
        on_request=bool(row.on_request),
        enabled=bool(row.enabled),
        created_by=row.created_by,
        created_at=row.created_at,
    )
    return Hook(id=row.id, view=view, key_id=row.key_id, sealed=bytes(row.sealed))


def _check_secret(secret: str) -> str:
    check_text(secret, "secret", SECRET_MAX)
    if len(secret) < 8:
        raise BadRequest(
            "it has fewer than 8 characters", object="secret", path="secret",
            next_step="Leave it out to have a good one made.",
        )  # fmt: skip
    return secret


def _check_triggers(triggers: tuple[str, ...]) -> tuple[str, ...]:
    known = (*TOLD, MATCHED)
    step = f"Name some of {', '.join(known)}, or {MATCHED}:RULE for one output rule."
    if not triggers:
        raise BadRequest(
            "there is none, so it would never be called", object="triggers", path="triggers", next_step=step
        )
    for trigger in triggers:
        check_text(trigger, "triggers", 200)
        is_rule = trigger.startswith(f"{MATCHED}:") and trigger.isprintable() and "," not in trigger
        if trigger not in known and not (is_rule and trigger != f"{MATCHED}:"):
            raise BadRequest(
                f"{trigger!r} is nothing that webhooks are told of", object="triggers", path="triggers", next_step=step
            )
    return tuple(dict.fromkeys(triggers))


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        check_text(pattern, "experiments", 200)
        if not pattern or "," in pattern or not pattern.isprintable():
            raise BadRequest(
                f"{pattern!r} is no pattern for names", object="experiments", path="experiments",
                next_step="Use a name, with * and ? where anything may stand.",
            )  # fmt: skip
    if len(patterns) > PATTERNS_MAX:
        raise BadRequest(f"there are more than {PATTERNS_MAX}", object="experiments", path="experiments")
    return tuple(dict.fromkeys(patterns))
