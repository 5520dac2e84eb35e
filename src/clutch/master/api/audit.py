"""What was asked for, by whom, over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import get
from litestar.params import Parameter

from clutch.master.access.audit import AuditFilter
from clutch.master.access.rules import INDEX_MAX, check_text
from clutch.master.api.paging import After, Limit, paged
from clutch.master.services import Services
from clutch.wire.access import AuditEntry, Needs
from clutch.wire.api import API, Page
from clutch.wire.errors import BadRequest

Text = Annotated[str, Parameter(max_length=400)]
Moment = Annotated[float, Parameter(ge=0, le=1e12, description="Seconds since 1970.")]


async def give_asked(
    who: Text = "", action: Text = "", object: Text = "", since: Moment = 0.0, until: Moment = 0.0
) -> AuditFilter:
    """What a list of entries must match."""
    for name, value in (("who", who), ("action", action), ("object", object)):
        check_text(value, name)
    return AuditFilter(who=who, action=action, object=object, since=since, until=until)


@get(
    f"{API}/audit",
    operation_id="list_audit",
    tags=["audit"],
    dependencies={"asked": give_asked},
    opt={"needs": Needs.CLUSTER_ADMIN},
)
async def list_audit(services: Services, asked: AuditFilter, after: After = "", limit: Limit = 100) -> Page[AuditEntry]:
    """Every change that was asked for and how it ended, newest first. `who` is `user:NAME`, `agent:NODE`."""
    await services.access.audited()
    found = await services.access.store.audit.page(asked, _index(after), limit + 1)
    return paged(found, limit, lambda entry: entry.index)


def _index(after: str) -> int:
    if not after:
        return 0
    if not (after.isascii() and after.isdigit() and 0 < int(after) <= INDEX_MAX):
        raise BadRequest("it is no cursor", object="page", path="after", next_step="Begin without one.")
    return int(after)


ROUTES: list[Any] = [list_audit]
