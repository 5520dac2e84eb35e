"""Everything access keeps, by noun, over one database."""

from __future__ import annotations

from clutch.master.access.audit import Audit
from clutch.master.access.database import Database
from clutch.master.access.grants import Grants
from clutch.master.access.keys import MasterKeys
from clutch.master.access.people import Groups, Users
from clutch.master.access.places import Projects, Workspaces
from clutch.master.access.secret_store import Secrets
from clutch.master.access.tokens import Tokens
from clutch.master.access.usage_store import UsageRows
from clutch.wire.errors import Conflict


class Store:
    """Each noun's questions and changes; each call is one transaction."""

    def __init__(self, database: Database, keys: MasterKeys) -> None:
        self._database = database
        self.users = Users(database)
        self.groups = Groups(database)
        self.workspaces = Workspaces(database)
        self.projects = Projects(database)
        self.grants = Grants(database)
        self.tokens = Tokens(database)
        self.secrets = Secrets(database, keys)
        self.audit = Audit(database)
        self.usage = UsageRows(database)

    async def check_place(self, workspace: str, project: str = "") -> None:
        """Nothing, when something new may be put there: both exist and neither is archived."""
        if (await self.workspaces.get(workspace)).archived:
            raise _archived(f"workspace {workspace}")
        if project and (await self.projects.get(workspace, project)).archived:
            raise _archived(f"project {workspace}/{project}")

    async def close(self) -> None:
        await self._database.close()


def _archived(object: str) -> Conflict:
    return Conflict("it is archived", object=object, next_step="Choose another, or take it out of the archive.")
