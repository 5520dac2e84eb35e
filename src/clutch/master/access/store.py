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

    async def close(self) -> None:
        await self._database.close()
