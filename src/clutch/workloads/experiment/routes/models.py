"""The model registry over HTTP. A model is in a workspace; viewers see it, editors change it."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import delete, get, patch, post, put
from litestar.di import Provide
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.access.rules import check_name, check_text
from clutch.master.api.paging import After, Limit, Word, check_cursor, paged, words
from clutch.master.services import Services
from clutch.wire.access import Needs, Role
from clutch.wire.api import API, Page
from clutch.wire.errors import BadRequest
from clutch.wire.library import (
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
from clutch.workloads.experiment.library.models import ModelFilter, Who
from clutch.workloads.experiment.library.opening import Library
from clutch.workloads.experiment.library.rules import NOTES_MAX, check_alias, check_version

MODELS = f"{API}/models"
IN_WORKSPACE = f"{API}/workspaces/{{workspace:str}}/models"
ONE = f"{IN_WORKSPACE}/{{model:str}}"
VERSIONS = f"{ONE}/versions"
VERSION = f"{VERSIONS}/{{version:str}}"
ALIAS = f"{ONE}/aliases/{{alias:str}}"
Label = Annotated[str, Parameter(max_length=64, description="Only with this label.")]
Begins = Annotated[str, Parameter(max_length=128, description="Only those whose name begins so.")]
ID_MAX = 200


def _may(caller: Caller, workspace: str, model: str = "") -> None:
    """The caller holds the route's role in the workspace."""
    check_name(workspace, "workspace")
    if model:
        check_name(model, "model")
    caller.require(workspace, f"model {workspace}/{model}" if model else f"workspace {workspace}")


def _who(services: Services, caller: Caller) -> Who:
    return Who(caller.name, services.clock.now())


def before_of(after: str) -> int:
    """The number in the cursor of a list that is ordered by number."""
    if not after:
        return 0
    number = number_of(after)
    if number is None:
        raise BadRequest("it is not a cursor of this list", object="cursor", path="after")
    return number


# -- models -------------------------------------------------------------------------------------------------------


async def give_filter(
    caller: Caller, workspace: Word = "", label: Label = "", begins: Begins = "", archived: bool = False
) -> ModelFilter:
    """What the models of a list must match."""
    if begins:
        check_name(begins, "model")
    seen = seen_of(caller, workspace)
    return ModelFilter(workspaces=seen, label=check_text(label, "label"), prefix=begins, archived=archived)


def seen_of(caller: Caller, workspace: str) -> tuple[str, ...] | None:
    """The workspaces of a list: those that were asked for, as far as the caller may see them; None for all."""
    visible, asked = caller.filters(), words(workspace, "workspace")
    if visible is None:
        return asked or None
    return tuple(name for name in visible if not asked or name in asked)


@get(
    MODELS,
    operation_id="list_models",
    tags=["models"],
    opt={"needs": Needs.VIEWER},
    dependencies={"filters": Provide(give_filter)},
)
async def list_models(
    library: Library, caller: Caller, filters: ModelFilter, after: After = "", limit: Limit = 100
) -> Page[ModelView]:
    """The models of the workspaces you may see, by workspace and name."""
    found = await library.models.page(filters, check_cursor(after), limit + 1)
    return paged(found, limit, lambda view: f"{view.workspace}/{view.name}")


@post(IN_WORKSPACE, operation_id="create_model", tags=["models"], opt={"needs": Needs.EDITOR})
async def create_model(
    services: Services, library: Library, caller: Caller, workspace: str, data: NewModel
) -> ModelView:
    """Create a model, which has no version yet."""
    _may(caller, workspace)
    check_name(data.name, "model")
    check_text(data.description, "description")
    check_text(data.notes, "notes", NOTES_MAX)
    await services.access.store.check_place(workspace)
    return await library.models.create(workspace, data, _who(services, caller))


@get(ONE, operation_id="get_model", tags=["models"], opt={"needs": Needs.VIEWER})
async def get_model(library: Library, caller: Caller, workspace: str, model: str) -> ModelView:
    """A model, by its name or a beginning that only it has."""
    _may(caller, workspace, model)
    return await library.models.find(workspace, model)


@patch(ONE, operation_id="change_model", tags=["models"], opt={"needs": Needs.EDITOR})
async def change_model(
    services: Services, library: Library, caller: Caller, workspace: str, model: str, data: ModelChange
) -> ModelView:
    """Describe a model, label it, archive it, or take it out of the archive."""
    _may(caller, workspace, model)
    check_text(data.description or "", "description")
    check_text(data.notes or "", "notes", NOTES_MAX)
    return await library.models.change(workspace, model, data, _who(services, caller))


@delete(ONE, operation_id="delete_model", tags=["models"], opt={"needs": Needs.EDITOR})
async def delete_model(library: Library, caller: Caller, workspace: str, model: str) -> None:
    """Delete a model with its versions. Their checkpoints are no longer held."""
    _may(caller, workspace, model)
    await library.models.delete(workspace, model)


# -- versions -----------------------------------------------------------------------------------------------------


@get(VERSIONS, operation_id="list_versions", tags=["models"], opt={"needs": Needs.VIEWER})
async def list_versions(
    library: Library, caller: Caller, workspace: str, model: str, after: After = "", limit: Limit = 100
) -> Page[VersionView]:
    """The versions of a model, the newest first."""
    _may(caller, workspace, model)
    found = await library.models.versions(workspace, model, before_of(after), limit + 1)
    return paged(found, limit, lambda view: view.number)


@post(VERSIONS, operation_id="register_version", tags=["models"], opt={"needs": Needs.EDITOR})
async def register_version(
    services: Services, library: Library, caller: Caller, workspace: str, model: str, data: RegisterVersion
) -> VersionView:
    """Register a checkpoint as the next version of a model, which holds it from then on."""
    _may(caller, workspace, model)
    check_text(data.checkpoint, "checkpoint", ID_MAX)
    check_text(data.name, "name")
    check_text(data.notes, "notes", NOTES_MAX)
    for alias in data.aliases:
        check_alias(alias)
    row = await library.holds.look(data.checkpoint)
    caller.require(row.workspace, f"checkpoint {data.checkpoint}", Role.VIEWER)
    return await library.models.register(workspace, model, data, row, _who(services, caller))


@get(VERSION, operation_id="get_version", tags=["models"], opt={"needs": Needs.VIEWER})
async def get_version(library: Library, caller: Caller, workspace: str, model: str, version: str) -> VersionView:
    """A version by its number, an alias, or `latest`."""
    _may(caller, workspace, model)
    return await library.models.version(workspace, model, check_version(version))


@patch(VERSION, operation_id="change_version", tags=["models"], opt={"needs": Needs.EDITOR})
async def change_version(
    library: Library, caller: Caller, workspace: str, model: str, version: str, data: VersionChange
) -> VersionView:
    """Name a version, label it, or change what is written about it."""
    _may(caller, workspace, model)
    check_text(data.name or "", "name")
    check_text(data.notes or "", "notes", NOTES_MAX)
    return await library.models.change_version(workspace, model, check_version(version), data)


@delete(VERSION, operation_id="delete_version", tags=["models"], opt={"needs": Needs.EDITOR})
async def delete_version(library: Library, caller: Caller, workspace: str, model: str, version: str) -> None:
    """Delete a version by its number, with the aliases that mean it. Its checkpoint is no longer held."""
    _may(caller, workspace, model)
    number = number_of(version)
    if number is None:  # an alias may come to mean another one between looking and deleting
        raise BadRequest(
            f"{version[:80]!r} is no number",
            object=f"model {workspace}/{model}",
            path="version",
            next_step="Look which number the alias means, and delete that.",
        )
    await library.models.delete_version(workspace, model, number)


# -- aliases ------------------------------------------------------------------------------------------------------


async def give_place(workspace: str, model: str, alias: str) -> tuple[str, str, str]:
    return workspace, model, alias


@put(
    ALIAS,
    operation_id="set_alias",
    tags=["models"],
    opt={"needs": Needs.EDITOR},
    dependencies={"place": Provide(give_place)},
)
async def set_alias(
    services: Services, library: Library, caller: Caller, place: tuple[str, str, str], data: SetAlias
) -> AliasView:
    """Let an alias mean a version, instead of the one it means. With `instead_of`, only if it means that one now."""
    workspace, model, alias = place
    _may(caller, workspace, model)
    return await library.models.set_alias(workspace, model, check_alias(alias), data, _who(services, caller))


@delete(ALIAS, operation_id="delete_alias", tags=["models"], opt={"needs": Needs.EDITOR})
async def delete_alias(library: Library, caller: Caller, workspace: str, model: str, alias: str) -> None:
    """Take an alias away; the version stays."""
    _may(caller, workspace, model)
    await library.models.delete_alias(workspace, model, check_alias(alias))


ROUTES: list[Any] = [
    list_models,
    create_model,
    get_model,
    change_model,
    delete_model,
    list_versions,
    register_version,
    get_version,
    change_version,
    delete_version,
    set_alias,
    delete_alias,
]
