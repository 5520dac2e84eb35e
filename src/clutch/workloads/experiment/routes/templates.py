"""Stored configurations over HTTP: templates by workspace, and what a workspace or the cluster lays beneath them.

Editors put templates, which somebody must ask for by name. Defaults count for everybody, so a workspace's are put by
its administrators, and the cluster's by those of the cluster.
"""

from __future__ import annotations

from typing import Any

from litestar import delete, get, put

from clutch.master.access.caller import Caller
from clutch.master.access.rules import check_name
from clutch.master.api.paging import After, Limit, Word, check_cursor, paged
from clutch.master.services import Services
from clutch.wire.access import CLUSTER, Needs
from clutch.wire.api import API, Page
from clutch.wire.library import ConfigDetail, PutConfig, TemplateView
from clutch.workloads.experiment.library.models import Who
from clutch.workloads.experiment.library.opening import Library
from clutch.workloads.experiment.routes.models import seen_of

IN_WORKSPACE = f"{API}/workspaces/{{workspace:str}}/templates"
ONE = f"{IN_WORKSPACE}/{{template:str}}"
OF_WORKSPACE = f"{API}/workspaces/{{workspace:str}}/defaults"
OF_CLUSTER = f"{API}/defaults"


def _may(caller: Caller, workspace: str, template: str = "") -> None:
    check_name(workspace, "workspace")
    if template:
        check_name(template, "template")
    caller.require(workspace, f"template {workspace}/{template}" if template else f"workspace {workspace}")


@get(f"{API}/templates", operation_id="list_templates", tags=["templates"], opt={"needs": Needs.VIEWER})
async def list_templates(
    library: Library, caller: Caller, workspace: Word = "", after: After = "", limit: Limit = 100
) -> Page[TemplateView]:
    """The templates of the workspaces you may see, by workspace and name."""
    found = await library.templates.page(seen_of(caller, workspace), check_cursor(after), limit + 1)
    return paged(found, limit, lambda view: f"{view.workspace}/{view.name}")


@get(ONE, operation_id="get_template", tags=["templates"], opt={"needs": Needs.VIEWER})
async def get_template(library: Library, caller: Caller, workspace: str, template: str) -> ConfigDetail:
    """A template, by its name or a beginning that only it has."""
    _may(caller, workspace, template)
    return await library.templates.get(workspace, template)


@put(ONE, operation_id="put_template", tags=["templates"], opt={"needs": Needs.EDITOR})
async def put_template(
    services: Services, library: Library, caller: Caller, workspace: str, template: str, data: PutConfig
) -> ConfigDetail:
    """Keep a configuration, or a part of one, under this name, instead of the one it has."""
    _may(caller, workspace, template)
    await services.access.store.check_place(workspace)
    return await library.templates.put(workspace, template, data, Who(caller.name, services.clock.now()))


@delete(ONE, operation_id="delete_template", tags=["templates"], opt={"needs": Needs.EDITOR})
async def delete_template(library: Library, caller: Caller, workspace: str, template: str) -> None:
    """Delete a template. Experiments that were made with it keep what it said."""
    _may(caller, workspace, template)
    await library.templates.delete(workspace, template)


# -- defaults -----------------------------------------------------------------------------------------------------


@get(OF_WORKSPACE, operation_id="get_workspace_defaults", tags=["templates"], opt={"needs": Needs.VIEWER})
async def get_workspace_defaults(library: Library, caller: Caller, workspace: str) -> ConfigDetail:
    """What every configuration of the workspace is laid over."""
    _may(caller, workspace)
    return await library.templates.default(f"workspace:{workspace}")


@put(OF_WORKSPACE, operation_id="put_workspace_defaults", tags=["templates"], opt={"needs": Needs.ADMIN})
async def put_workspace_defaults(
    services: Services, library: Library, caller: Caller, workspace: str, data: PutConfig
) -> ConfigDetail:
    """Lay every new configuration of the workspace over this one, instead of the one it has."""
    _may(caller, workspace)
    await services.access.store.check_place(workspace)
    who = Who(caller.name, services.clock.now())
    return await library.templates.put_default(f"workspace:{workspace}", data, who)


@delete(OF_WORKSPACE, operation_id="delete_workspace_defaults", tags=["templates"], opt={"needs": Needs.ADMIN})
async def delete_workspace_defaults(library: Library, caller: Caller, workspace: str) -> None:
    """Take away what the workspace's configurations are laid over."""
    _may(caller, workspace)
    await library.templates.delete_default(f"workspace:{workspace}")


@get(OF_CLUSTER, operation_id="get_cluster_defaults", tags=["templates"], opt={"needs": Needs.USER})
async def get_cluster_defaults(library: Library) -> ConfigDetail:
    """What every configuration of the cluster is laid over."""
    return await library.templates.default(CLUSTER)


@put(OF_CLUSTER, operation_id="put_cluster_defaults", tags=["templates"], opt={"needs": Needs.CLUSTER_ADMIN})
async def put_cluster_defaults(services: Services, library: Library, caller: Caller, data: PutConfig) -> ConfigDetail:
    """Lay every new configuration of the cluster over this one, instead of the one it has."""
    return await library.templates.put_default(CLUSTER, data, Who(caller.name, services.clock.now()))


@delete(OF_CLUSTER, operation_id="delete_cluster_defaults", tags=["templates"], opt={"needs": Needs.CLUSTER_ADMIN})
async def delete_cluster_defaults(library: Library) -> None:
    """Take away what the cluster's configurations are laid over."""
    await library.templates.delete_default(CLUSTER)


ROUTES: list[Any] = [
    list_templates,
    get_template,
    put_template,
    delete_template,
    get_workspace_defaults,
    put_workspace_defaults,
    delete_workspace_defaults,
    get_cluster_defaults,
    put_cluster_defaults,
    delete_cluster_defaults,
]
