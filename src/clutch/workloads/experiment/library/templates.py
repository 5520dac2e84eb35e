"""Stored configurations: templates by name, and what a workspace or the cluster lays beneath all of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Table, and_, delete, select

from clutch.master.access.database import Database
from clutch.master.access.rules import check_text
from clutch.master.access.sql import is_row, put
from clutch.wire.access import CLUSTER
from clutch.wire.errors import NotFound
from clutch.wire.experiment_api import ConfigProblem
from clutch.wire.library import ConfigDetail, PutConfig, TemplateView
from clutch.workloads.experiment.library.models import Who
from clutch.workloads.experiment.library.rules import SOURCE_MAX, check_json, prefix_end, the_one
from clutch.workloads.experiment.library.tables import defaults, templates

Check = Callable[[Mapping[str, Any]], tuple[ConfigProblem, ...]]
"""Looks at a part of a configuration: raises ``BadRequest`` for what is wrong, and gives back notices."""


class Templates:
    def __init__(self, database: Database, check: Check) -> None:
        self._database = database
        self._check = check

    async def put(self, workspace: str, name: str, asked: PutConfig, who: Who) -> ConfigDetail:
        """Keep it under this name, instead of the one it has."""
        return await self._put(templates, {"workspace": workspace, "name": name}, asked, who)

    async def get(self, workspace: str, prefix: str) -> ConfigDetail:
        """By its name, or a beginning that only it has."""

        def work(connection: Connection) -> Row[Any]:
            begins = and_(templates.c.name >= prefix, templates.c.name < prefix_end(prefix))
            question = select(templates).where(templates.c.workspace == workspace, begins)
            found = connection.execute(question.order_by(templates.c.name).limit(10)).all()
            name = the_one(prefix, [row.name for row in found], f"template {workspace}/{prefix}")
            return next(row for row in found if row.name == name)

        row = await self._database.read(work)
        return _detail(row, workspace, row.name)

    async def page(self, workspaces: tuple[str, ...] | None, after: str, limit: int) -> list[TemplateView]:
        """Of these workspaces, or of all for None; the cursor is ``workspace/name``."""
        place, _, name = after.partition("/")
        behind = (templates.c.workspace > place) | and_(templates.c.workspace == place, templates.c.name > name)
        question = select(templates).where(behind).order_by(templates.c.workspace, templates.c.name).limit(limit)
        if workspaces is not None:
            question = question.where(templates.c.workspace.in_(workspaces))
        found = await self._database.read(lambda connection: connection.execute(question).all())
        return [
            TemplateView(
                workspace=row.workspace,
                name=row.name,
                description=row.description,
                changed_by=row.changed_by,
                changed_at=row.changed_at,
            )
            for row in found
        ]

    async def delete(self, workspace: str, name: str) -> None:
        statement = delete(templates).where(is_row(templates, workspace=workspace, name=name))
        if not await self._database.write(lambda connection: connection.execute(statement).rowcount):
            raise NotFound("its workspace has no such template", object=f"template {workspace}/{name}")

    # -- defaults -------------------------------------------------------------------------------------------------

    async def put_default(self, scope: str, asked: PutConfig, who: Who) -> ConfigDetail:
        """What everything of this scope (``workspace:NAME`` or ``cluster``) is laid over from now on."""
        return await self._put(defaults, {"scope": scope}, asked, who)

    async def default(self, scope: str) -> ConfigDetail:
        question = select(defaults).where(defaults.c.scope == scope)
        row = await self._database.read(lambda connection: connection.execute(question).first())
        if row is None:
            raise _no_default(scope)
        return _detail(row, _workspace_of(scope), "")

    async def delete_default(self, scope: str) -> None:
        statement = delete(defaults).where(defaults.c.scope == scope)
        if not await self._database.write(lambda connection: connection.execute(statement).rowcount):
            raise _no_default(scope)

    async def layers(self, workspace: str, template: str = "") -> list[dict[str, Any]]:
        """What a configuration of this workspace is laid over, the nearest first: its template (by its whole name), the
        workspace's default, the cluster's. Those that there are."""

        def work(connection: Connection) -> list[str]:
            found = []
            if template:
                here = is_row(templates, workspace=workspace, name=template)
                config = connection.execute(select(templates.c.config).where(here)).scalar()
                if config is None:
                    raise NotFound(
                        "its workspace has no such template",
                        object=f"template {workspace}/{template}",
                        next_step=f"'clutch template list -w {workspace}' shows those there are.",
                    )
                found.append(config)
            for scope in (f"workspace:{workspace}", CLUSTER):
                config = connection.execute(select(defaults.c.config).where(defaults.c.scope == scope)).scalar()
                found += [config] if config is not None else []
            return found

        return [msgspec.json.decode(text) for text in await self._database.read(work)]

    async def _put(self, table: Table, key: Mapping[str, str], asked: PutConfig, who: Who) -> ConfigDetail:
        notices = self._check(asked.config)
        config, source = check_json(asked.config, "config"), check_text(asked.source, "source", SOURCE_MAX)
        values = {"description": check_text(asked.description, "description"), "config": config, "source": source}
        values |= key

        def work(connection: Connection) -> None:
            put(connection, table, changed_by=who.name, changed_at=who.at, **values)

        await self._database.write(work)
        return ConfigDetail(
            workspace=key["workspace"] if "workspace" in key else _workspace_of(key["scope"]),
            name=key.get("name", ""),
            description=asked.description,
            config=asked.config,
            source=asked.source,
            changed_by=who.name,
            changed_at=who.at,
            notices=notices,
        )


def _workspace_of(scope: str) -> str:
    return "" if scope == CLUSTER else scope.removeprefix("workspace:")


def _no_default(scope: str) -> NotFound:
    return NotFound("it has no configuration of its own", object=scope, next_step="Put one: 'clutch template set'.")


def _detail(row: Row[Any], workspace: str, name: str) -> ConfigDetail:
    return ConfigDetail(
        workspace=workspace,
        name=name,
        description=row.description,
        config=msgspec.json.decode(row.config),
        source=row.source,
        changed_by=row.changed_by,
        changed_at=row.changed_at,
    )
