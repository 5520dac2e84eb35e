"""Somebody who was let in, and what they may do. Pure: it was told everything when its token was looked up."""

from __future__ import annotations

from collections.abc import Mapping

from clutch.wire.access import CLUSTER, RANKS, CallerKind, Needs, Role
from clutch.wire.errors import NotAllowed, NotFound
from clutch.wire.ids import Fence, MemberId

ROLE_NEEDED = {
    Needs.VIEWER: Role.VIEWER,
    Needs.EDITOR: Role.EDITOR,
    Needs.ADMIN: Role.ADMIN,
    Needs.CLUSTER_VIEWER: Role.VIEWER,
    Needs.CLUSTER_EDITOR: Role.EDITOR,
    Needs.CLUSTER_ADMIN: Role.ADMIN,
}
IN_WORKSPACE = (Needs.VIEWER, Needs.EDITOR, Needs.ADMIN)


class Caller:
    """One request's caller. ``checked`` says whether its handler has asked about a workspace; a route that promised to
    and has not is a bug, and the guard says so."""

    __slots__ = ("ceiling", "checked", "fence", "kind", "member", "name", "needs", "only", "roles", "token")

    def __init__(
        self,
        kind: CallerKind,
        name: str,
        roles: Mapping[str, Role] | None = None,
        *,
        token: str = "",
        limits: tuple[Role | None, str] = (None, ""),
        member: tuple[MemberId, Fence] | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.roles = dict(roles or {})
        self.token = token
        self.ceiling, self.only = limits
        self.member: MemberId | None = member[0] if member is not None else None
        self.fence: Fence | None = member[1] if member is not None else None
        self.needs = Needs.PUBLIC
        self.checked = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def role_in(self, workspace: str) -> Role | None:
        """The highest role here: that of the cluster or of the workspace, under the token's ceiling."""
        if self.only and workspace != self.only:
            return None
        held = [r for r in (self.roles.get(CLUSTER), self.roles.get(f"workspace:{workspace}")) if r is not None]
        return self._capped(max(held, key=RANKS.__getitem__)) if held else None

    def cluster_role(self) -> Role | None:
        role = None if self.only else self.roles.get(CLUSTER)
        return self._capped(role) if role is not None else None

    def _capped(self, role: Role) -> Role:
        return role if self.ceiling is None else min(role, self.ceiling, key=RANKS.__getitem__)

    def workspaces(self) -> tuple[str, ...] | None:
        """The workspaces it may read, or None for all of them."""
        if self.only:
            return (self.only,) if self.role_in(self.only) is not None else ()
        if self.roles.get(CLUSTER) is not None:
            return None
        return tuple(sorted(scope.removeprefix("workspace:") for scope in self.roles if scope.startswith("workspace:")))

    def effective_roles(self) -> dict[str, Role]:
        """What it can do, by scope: its user's roles under its own limits."""
        scopes = (f"workspace:{self.only}",) if self.only else tuple(self.roles)
        held = {
            scope: self.cluster_role() if scope == CLUSTER else self.role_in(scope.removeprefix("workspace:"))
            for scope in scopes
        }
        return {scope: role for scope, role in held.items() if role is not None}

    def filters(self) -> tuple[str, ...] | None:
        """``workspaces()`` for a list that shows only those: that counts as having asked."""
        self.checked = True
        return self.workspaces()

    def is_unlimited(self) -> bool:
        """Whether its token can do all that its user can. Only such a one may change how that user comes in."""
        return self.ceiling is None and not self.only

    def require_cluster(self, object: str, role: Role = Role.ADMIN) -> None:
        """Nothing, when this caller holds the role over the whole cluster."""
        self.checked = True
        held = self.cluster_role()
        if held is None or RANKS[held] < RANKS[role]:
            raise NotAllowed(
                f"this needs the role {role} over the whole cluster; {self} has {held or 'none there'}",
                object=object,
                next_step="Ask an administrator of the cluster.",
            )

    def require(self, workspace: str, object: str, role: Role | None = None) -> None:
        """Nothing, when this caller holds the route's role (or ``role``) in a workspace. Where it may not even look,
        the thing does not exist for it."""
        self.checked = True
        needed = role or ROLE_NEEDED[self.needs]
        held = self.role_in(workspace)
        if held is None:
            raise NotFound("there is no such thing, or you may not see it", object=object)
        if RANKS[held] < RANKS[needed]:
            raise NotAllowed(
                f"this needs the role {needed} in workspace {workspace}; {self} has {held}",
                object=object,
                next_step=f"Ask an administrator of workspace {workspace}.",
            )
