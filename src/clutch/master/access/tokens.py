"""Tokens as they are stored: a hash and what it lets one do, never the token."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Row, and_, bindparam, insert, or_, select, tuple_, update

from clutch.master.access.database import Database
from clutch.master.access.grants import grants_of
from clutch.master.access.rules import Limits, roles_of
from clutch.master.access.tables import tokens, users
from clutch.wire.access import Role, TokenKind, TokenView
from clutch.wire.errors import BadRequest, NotFound

_COLUMNS = tuple(column for column in tokens.c if column.name != "hash")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says of its bearer."""

    token: TokenView
    roles: dict[str, Role]

    @property
    def limits(self) -> Limits:
        return self.token.role, self.token.workspace

    def is_valid(self, now: float) -> bool:
        return not self.token.revoked and (not self.token.expires_at or now < self.token.expires_at)


class Tokens:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, view: TokenView, token_hash: bytes) -> None:
        await self._database.write(lambda connection: _add(connection, view, token_hash))

    async def identity(self, token_hash: bytes) -> Identity | None:
        """Who bears a token, valid or not; None when it is unknown or its user may not come in any more."""

        def work(connection: Connection) -> Identity | None:
            row = connection.execute(select(*_COLUMNS).where(tokens.c.hash == token_hash)).first()
            if row is None:
                return None
            view = _view(row)
            if view.kind is TokenKind.AGENT:
                return Identity(token=view, roles={})
            active = connection.execute(select(users.c.active).where(users.c.name == view.user)).scalar()
            return Identity(token=view, roles=roles_of(grants_of(connection, view.user))) if active else None

        return await self._database.read(work)

    async def roles(self, user: str) -> dict[str, Role] | None:
        """What a user holds now, by scope; None when there is no such user, or they may not come in any more."""

        def work(connection: Connection) -> dict[str, Role] | None:
            active = connection.execute(select(users.c.active).where(users.c.name == user)).scalar()
            return roles_of(grants_of(connection, user)) if active else None

        return await self._database.read(work)

    async def spend(self, token_hash: bytes, now: float) -> TokenView | None:
        """The one-time token of this hash, used up by this very call; None when it is none or was used before."""
        alive = or_(tokens.c.expires_at == 0, tokens.c.expires_at > now)
        statement = (
            update(tokens)
            .where(tokens.c.hash == token_hash, tokens.c.kind == TokenKind.ONE_TIME, ~tokens.c.revoked, alive)
            .values(revoked=True, last_used_at=now)
            .returning(*_COLUMNS)
        )
        row = await self._database.write(lambda connection: connection.execute(statement).first())
        return _view(row) if row is not None else None

    async def enrol(self, view: TokenView, token_hash: bytes) -> tuple[str, ...]:
        """Give a node its token and end those it had; their ids."""

        def work(connection: Connection) -> tuple[str, ...]:
            living = and_(tokens.c.node == view.node, tokens.c.kind == TokenKind.AGENT, ~tokens.c.revoked)
            ended = connection.execute(update(tokens).where(living).values(revoked=True).returning(tokens.c.id))
            gone = tuple(sorted(ended.scalars()))
            _add(connection, view, token_hash)
            return gone

        return await self._database.write(work)

    async def get(self, token: str) -> TokenView:
        question = select(*_COLUMNS).where(tokens.c.id == token)
        row = await self._database.read(lambda connection: connection.execute(question).first())
        if row is None:
            raise NotFound("there is no such token, or you may not see it", object=f"token {token}")
        return _view(row)

    async def page(self, user: str, kind: str, after: str, limit: int) -> list[TokenView]:
        """Newest first, behind the token ``after``; of this user and kind only, where they are given."""
        newest = tuple_(tokens.c.created_at, tokens.c.id)
        question = select(*_COLUMNS).order_by(tokens.c.created_at.desc(), tokens.c.id.desc()).limit(limit)
        if user:
            question = question.where(tokens.c.user == user)
        if kind:
            question = question.where(tokens.c.kind == kind)

        def work(connection: Connection) -> list[TokenView]:
            found = question
            if after:
                place = connection.execute(select(tokens.c.created_at, tokens.c.id).where(tokens.c.id == after)).first()
                if place is None:
                    raise BadRequest("it is no cursor", object="page", path="after", next_step="Begin without one.")
                found = found.where(newest < tuple_(place[0], place[1]))
            return [_view(row) for row in connection.execute(found)]

        return await self._database.read(work)

    async def revoke(self, token: str) -> None:
        statement = update(tokens).where(tokens.c.id == token).values(revoked=True)
        await self._database.write(lambda connection: connection.execute(statement).rowcount)

    async def revoke_node(self, node: str) -> int:
        """End the tokens of a node's agent; how many it had."""
        living = and_(tokens.c.node == node, tokens.c.kind == TokenKind.AGENT, ~tokens.c.revoked)
        statement = update(tokens).where(living).values(revoked=True)
        return await self._database.write(lambda connection: connection.execute(statement).rowcount)

    async def touch(self, used: dict[str, float]) -> None:
        """Note when tokens were last used, by id."""
        statement = update(tokens).where(tokens.c.id == bindparam("token")).values(last_used_at=bindparam("used_at"))
        given = [{"token": token, "used_at": at} for token, at in used.items()]
        if given:
            await self._database.write(lambda connection: connection.execute(statement, given).rowcount)

    async def forget(self, before: float) -> int:
        """Remove session and one-time tokens that ended before a time; how many."""
        short = tokens.c.kind.in_((TokenKind.SESSION, TokenKind.ONE_TIME))
        over = and_(tokens.c.expires_at > 0, tokens.c.expires_at < before)
        statement = tokens.delete().where(short, over)
        return await self._database.write(lambda connection: connection.execute(statement).rowcount)


def _add(connection: Connection, view: TokenView, token_hash: bytes) -> None:
    connection.execute(
        insert(tokens).values(
            id=view.id,
            hash=token_hash,
            kind=view.kind,
            user=view.user,
            description=view.description,
            created_at=view.created_at,
            expires_at=view.expires_at,
            last_used_at=0.0,
            revoked=False,
            role=view.role or "",
            workspace=view.workspace,
            pool=view.pool,
            node=view.node,
        )
    )


def _view(row: Row[Any]) -> TokenView:
    return TokenView(
        id=row.id,
        kind=TokenKind(row.kind),
        user=row.user,
        description=row.description,
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked=bool(row.revoked),
        role=Role(row.role) if row.role else None,
        workspace=row.workspace,
        pool=row.pool,
        node=row.node,
    )
