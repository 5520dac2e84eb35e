"""The model registry as it is stored: models, their numbered versions, and the aliases that mean one of them.

Whatever changes versions or aliases locks the row of their model first, so two changes of one model never cross.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update

from clutch.master.access.database import Database
from clutch.master.access.sql import is_row, put, put_new
from clutch.wire.errors import Conflict, NotFound
from clutch.wire.experiment_views import CheckpointRow
from clutch.wire.library import (
    LATEST,
    AliasView,
    ModelChange,
    ModelView,
    NewModel,
    RegisterVersion,
    SetAlias,
    VersionChange,
    VersionView,
    number_of,
)
from clutch.workloads.experiment.library.pinning import Holds, check_whole, holder_of, intend, is_said
from clutch.workloads.experiment.library.rules import (
    check_json,
    check_labels,
    check_metrics,
    parted,
    prefix_end,
    the_one,
)
from clutch.workloads.experiment.library.tables import aliases, models, versions

VALIDATION = "validation"
"""The name under which a version keeps its checkpoint's own value of the search metric."""


class ModelFilter(msgspec.Struct, frozen=True, kw_only=True):
    workspaces: tuple[str, ...] | None = None
    """None: all."""
    label: str = ""
    prefix: str = ""
    archived: bool = False
    """Those too."""


class Who(msgspec.Struct, frozen=True):
    """Who changes something, and when."""

    name: str
    at: float


def no_model(workspace: str, name: str) -> NotFound:
    return NotFound(
        "there is no such model, or you may not see it",
        object=f"model {workspace}/{name}",
        next_step="'clutch model list' shows those there are.",
    )


class Models:
    def __init__(self, database: Database, holds: Holds) -> None:
        self._database = database
        self.holds = holds

    # -- models ---------------------------------------------------------------------------------------------------

    async def create(self, workspace: str, new: NewModel, who: Who) -> ModelView:
        values = {"description": new.description, "notes": new.notes, "labels": check_labels(new.labels)}
        values["metadata"] = check_json(new.metadata, "metadata")

        def work(connection: Connection) -> ModelView:
            made = put_new(
                connection, models, workspace=workspace, name=new.name, archived=False, last_number=0,
                created_by=who.name, created_at=who.at, changed_at=who.at, **values,
            )  # fmt: skip
            if not made:
                raise Conflict(
                    "the workspace has a model of this name",
                    object=f"model {workspace}/{new.name}",
                    next_step="Choose another name, or register versions of the one there is.",
                )
            return _one(connection, workspace, new.name)

        return await self._database.write(work)

    async def find(self, workspace: str, prefix: str) -> ModelView:
        """By its name, or a beginning that only it has."""

        def work(connection: Connection) -> ModelView:
            begins = and_(models.c.name >= prefix, models.c.name < prefix_end(prefix))
            question = select(models.c.name).where(models.c.workspace == workspace, begins)
            found = connection.execute(question.order_by(models.c.name).limit(10)).scalars().all()
            return _one(connection, workspace, the_one(prefix, found, f"model {workspace}/{prefix}"))

        return await self._database.read(work)

    async def page(self, wanted: ModelFilter, after: str, limit: int) -> list[ModelView]:
        """By workspace and name; the cursor is ``workspace/name``."""
        place, _, name = after.partition("/")
        question = select(models).where(
            or_(models.c.workspace > place, and_(models.c.workspace == place, models.c.name > name))
        )
        if wanted.workspaces is not None:
            question = question.where(models.c.workspace.in_(wanted.workspaces))
        if wanted.label:
            question = question.where(models.c.labels.contains(f",{wanted.label},", autoescape=True))
        if wanted.prefix:
            question = question.where(models.c.name >= wanted.prefix, models.c.name < prefix_end(wanted.prefix))
        if not wanted.archived:
            question = question.where(models.c.archived.is_(False))
        question = question.order_by(models.c.workspace, models.c.name).limit(limit)
        return await self._database.read(lambda connection: _views(connection, connection.execute(question).all()))

    async def change(self, workspace: str, name: str, change: ModelChange, who: Who) -> ModelView:
        given: dict[str, Any] = {
            "description": change.description,
            "notes": change.notes,
            "archived": change.archived,
            "labels": None if change.labels is None else check_labels(change.labels),
            "metadata": None if change.metadata is None else check_json(change.metadata, "metadata"),
        }
        values = {key: value for key, value in given.items() if value is not None}

        def work(connection: Connection) -> ModelView:
            _lock(connection, workspace, name)
            here = is_row(models, workspace=workspace, name=name)
            connection.execute(update(models).where(here).values(changed_at=who.at, **values))
            return _one(connection, workspace, name)

        return await self._database.write(work)

    async def delete(self, workspace: str, name: str) -> None:
        """With all its versions; their checkpoints are let go."""

        def work(connection: Connection) -> None:
            _lock(connection, workspace, name)
            here = is_row(versions, workspace=workspace, model=name)
            gone = connection.execute(delete(versions).where(here).returning(versions.c.number, versions.c.checkpoint))
            for row in gone.all():
                intend(connection, row.checkpoint, holder_of(workspace, name, row.number), hold=False)
            connection.execute(delete(aliases).where(is_row(aliases, workspace=workspace, model=name)))
            connection.execute(delete(models).where(is_row(models, workspace=workspace, name=name)))

        await self._database.write(work)
        await self.holds.settle()

    # -- versions -------------------------------------------------------------------------------------------------

    async def register(
        self, workspace: str, model: str, asked: RegisterVersion, row: CheckpointRow, who: Who
    ) -> VersionView:
        """The checkpoint as the next version. Nobody sees it before experiments know that it is held."""
        check_whole(row)
        metrics = ({VALIDATION: row.value} if row.has_value else {}) | asked.metrics
        values = {
            "name": asked.name, "notes": asked.notes, "labels": check_labels(asked.labels),
            "metrics": check_metrics(metrics), "checkpoint": row.key, "experiment": row.experiment, "trial": row.trial,
            "step": row.step, "created_by": who.name, "created_at": who.at,
        }  # fmt: skip

        def begin(connection: Connection) -> int:
            number = _next_number(connection, workspace, model, who.at)
            connection.execute(
                insert(versions).values(workspace=workspace, model=model, number=number, held=False, **values)
            )
            intend(connection, row.key, holder_of(workspace, model, number), hold=True)
            return number

        async with self.holds.lock:
            number = await self._database.write(begin)
            holder = holder_of(workspace, model, number)
            try:
                await self.holds.hold(row.key, holder)
            except BaseException:
                await self._database.write(lambda connection: _undo(connection, workspace, model, number, row.key))
                raise

            def finish(connection: Connection) -> VersionView:
                _lock(connection, workspace, model)
                here = is_row(versions, workspace=workspace, model=model, number=number)
                if not connection.execute(update(versions).where(here).values(held=True)).rowcount:
                    raise no_model(workspace, model)  # deleted meanwhile; what it held is being let go
                is_said(connection, row.key, holder)
                for alias in dict.fromkeys(asked.aliases):
                    _point(connection, (workspace, model, alias), number, who)
                return _version(connection, workspace, model, number)

            return await self._database.write(finish)

    async def version(self, workspace: str, model: str, version: str) -> VersionView:
        """By its number, an alias, or ``latest``."""

        def work(connection: Connection) -> VersionView:
            return _version(connection, workspace, model, _meant(connection, workspace, model, version))

        return await self._database.read(work)

    async def versions(self, workspace: str, model: str, before: int, limit: int) -> list[VersionView]:
        """The newest first; those before this number, 0: from the newest on."""

        def work(connection: Connection) -> list[VersionView]:
            _one(connection, workspace, model)
            question = select(versions).where(_seen(workspace, model))
            if before:
                question = question.where(versions.c.number < before)
            found = connection.execute(question.order_by(versions.c.number.desc()).limit(limit)).all()
            return _version_views(connection, workspace, model, found)

        return await self._database.read(work)

    async def change_version(self, workspace: str, model: str, version: str, change: VersionChange) -> VersionView:
        given: dict[str, Any] = {
            "name": change.name,
            "notes": change.notes,
            "labels": None if change.labels is None else check_labels(change.labels),
            "metrics": None if change.metrics is None else check_metrics(change.metrics),
        }
        values = {key: value for key, value in given.items() if value is not None}

        def work(connection: Connection) -> VersionView:
            _lock(connection, workspace, model)
            number = _meant(connection, workspace, model, version)
            here = is_row(versions, workspace=workspace, model=model, number=number)
            if values:
                connection.execute(update(versions).where(here).values(**values))
            return _version(connection, workspace, model, number)

        return await self._database.write(work)

    async def delete_version(self, workspace: str, model: str, number: int) -> None:
        """With the aliases that mean it; its checkpoint is let go."""

        def work(connection: Connection) -> None:
            _lock(connection, workspace, model)
            found = _version(connection, workspace, model, number)
            connection.execute(
                delete(versions).where(is_row(versions, workspace=workspace, model=model, number=number))
            )
            connection.execute(delete(aliases).where(is_row(aliases, workspace=workspace, model=model, number=number)))
            intend(connection, found.checkpoint, holder_of(workspace, model, number), hold=False)

        await self._database.write(work)
        await self.holds.settle()

    # -- aliases --------------------------------------------------------------------------------------------------

    async def set_alias(self, workspace: str, model: str, alias: str, asked: SetAlias, who: Who) -> AliasView:
        """The alias means this version from now on: nobody sees it mean both, or none."""

        def work(connection: Connection) -> AliasView:
            _lock(connection, workspace, model)
            _version(connection, workspace, model, asked.version)
            before = _alias(connection, workspace, model, alias)
            if asked.instead_of is not None and before != asked.instead_of:
                raise Conflict(
                    f"it means {f'version {before}' if before else 'no version'} now",
                    object=f"alias {workspace}/{model}:{alias}",
                    next_step="Look again, and decide with what it means now.",
                )
            _point(connection, (workspace, model, alias), asked.version, who)
            return AliasView(alias=alias, version=asked.version, before=before)

        return await self._database.write(work)

    async def delete_alias(self, workspace: str, model: str, alias: str) -> None:
        def work(connection: Connection) -> None:
            _lock(connection, workspace, model)
            here = is_row(aliases, workspace=workspace, model=model, alias=alias)
            if not connection.execute(delete(aliases).where(here)).rowcount:
                raise NotFound("the model has no such alias", object=f"alias {workspace}/{model}:{alias}")

        await self._database.write(work)


# -- inside a transaction -----------------------------------------------------------------------------------------


def _lock(connection: Connection, workspace: str, name: str) -> None:
    """From here to the end of the transaction nobody else changes this model."""
    here = is_row(models, workspace=workspace, name=name)
    if connection.execute(select(models.c.name).where(here).with_for_update()).first() is None:
        raise no_model(workspace, name)


def _next_number(connection: Connection, workspace: str, model: str, now: float) -> int:
    here = is_row(models, workspace=workspace, name=model)
    counted = update(models).where(here, models.c.archived.is_(False))
    counted = counted.values(last_number=models.c.last_number + 1, changed_at=now)
    found = connection.execute(counted.returning(models.c.last_number)).scalar()
    if found is not None:
        return int(found)
    _lock(connection, workspace, model)
    raise Conflict(
        "it is archived and takes no new version",
        object=f"model {workspace}/{model}",
        next_step="Take it out of the archive, or choose another.",
    )


def _undo(connection: Connection, workspace: str, model: str, number: int, checkpoint: str) -> None:
    """The version never was. Whether its checkpoint is held nobody knows: it is to be let go."""
    connection.execute(delete(versions).where(is_row(versions, workspace=workspace, model=model, number=number)))
    intend(connection, checkpoint, holder_of(workspace, model, number), hold=False)


def _point(connection: Connection, alias: tuple[str, str, str], number: int, who: Who) -> None:
    workspace, model, name = alias
    put(
        connection, aliases, workspace=workspace, model=model, alias=name, number=number,
        changed_by=who.name, changed_at=who.at,
    )  # fmt: skip


def _alias(connection: Connection, workspace: str, model: str, alias: str) -> int:
    """The version that it means; 0: none."""
    here = is_row(aliases, workspace=workspace, model=model, alias=alias)
    return int(connection.execute(select(aliases.c.number).where(here)).scalar() or 0)


def _seen(workspace: str, model: str) -> Any:
    return and_(is_row(versions, workspace=workspace, model=model), versions.c.held.is_(True))


def _meant(connection: Connection, workspace: str, model: str, version: str) -> int:
    number = number_of(version)
    if number is not None:
        return number
    if version == LATEST:
        newest = select(func.max(versions.c.number)).where(_seen(workspace, model))
        number = connection.execute(newest).scalar()
    else:
        number = _alias(connection, workspace, model, version)
    if not number:
        _one(connection, workspace, model)
        raise _no_version(workspace, model, version)
    return int(number)


def _no_version(workspace: str, model: str, version: str | int) -> NotFound:
    return NotFound(
        "the model has no such version" if version != LATEST else "the model has no version yet",
        object=f"model {workspace}/{model}:{version}",
        next_step=f"'clutch model show {model}' lists its versions and aliases.",
    )


def _version(connection: Connection, workspace: str, model: str, number: int) -> VersionView:
    found = connection.execute(select(versions).where(_seen(workspace, model), versions.c.number == number)).all()
    if not found:
        _one(connection, workspace, model)
        raise _no_version(workspace, model, number)
    return _version_views(connection, workspace, model, found)[0]


def _version_views(connection: Connection, workspace: str, model: str, found: Sequence[Row[Any]]) -> list[VersionView]:
    names: dict[int, list[str]] = defaultdict(list)
    question = select(aliases).where(is_row(aliases, workspace=workspace, model=model)).order_by(aliases.c.alias)
    for row in connection.execute(question):
        names[row.number].append(row.alias)
    return [
        VersionView(
            workspace=row.workspace,
            model=row.model,
            number=row.number,
            checkpoint=row.checkpoint,
            experiment=row.experiment,
            trial=row.trial,
            step=row.step,
            name=row.name,
            notes=row.notes,
            labels=parted(row.labels),
            metrics=msgspec.json.decode(row.metrics, type=dict[str, float]),
            aliases=tuple(names[row.number]),
            created_by=row.created_by,
            created_at=row.created_at,
        )
        for row in found
    ]


def _one(connection: Connection, workspace: str, name: str) -> ModelView:
    found = connection.execute(select(models).where(is_row(models, workspace=workspace, name=name))).all()
    if not found:
        raise no_model(workspace, name)
    return _views(connection, found)[0]


def _views(connection: Connection, found: Sequence[Row[Any]]) -> list[ModelView]:
    if not found:
        return []
    places, names = {row.workspace for row in found}, {row.name for row in found}
    counts = select(versions.c.workspace, versions.c.model, func.count().label("count"), func.max(versions.c.number))
    counts = counts.where(versions.c.held.is_(True), versions.c.workspace.in_(places), versions.c.model.in_(names))
    counted = {
        (row[0], row[1]): (row[2], row[3])
        for row in connection.execute(counts.group_by(versions.c.workspace, versions.c.model))
    }
    meaning: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    pointed = select(aliases).where(aliases.c.workspace.in_(places), aliases.c.model.in_(names))
    for row in connection.execute(pointed.order_by(aliases.c.alias)):
        meaning[row.workspace, row.model][row.alias] = row.number
    return [_view(row, counted, meaning) for row in found]


def _view(
    row: Row[Any], counted: dict[tuple[str, str], tuple[int, int]], meaning: dict[tuple[str, str], dict[str, int]]
) -> ModelView:
    count, newest = counted.get((row.workspace, row.name), (0, 0))
    return ModelView(
        workspace=row.workspace,
        name=row.name,
        description=row.description,
        notes=row.notes,
        labels=parted(row.labels),
        metadata=msgspec.json.decode(row.metadata),
        archived=bool(row.archived),
        versions=count,
        latest=newest,
        aliases=dict(meaning.get((row.workspace, row.name), {})),
        created_by=row.created_by,
        created_at=row.created_at,
        changed_at=row.changed_at,
    )
