"""Who may do what: roles and scopes, and what the outside sees of users, workspaces, tokens, secrets, audit and usage.

A role is held over a *scope*: the whole cluster (``cluster``) or one workspace (``workspace:NAME``). A token can do
what its user can, but never more than its own ceiling. A member's token is not stored at all: it can do only what its
allocation may, and dies with it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

CLUSTER = "cluster"


class Role(StrEnum):
    """What somebody may do in a scope; each includes the ones before it."""

    VIEWER = "viewer"  # read
    EDITOR = "editor"  # submit, stop, change what is in the workspace
    ADMIN = "admin"  # decide who else may


RANKS = {Role.VIEWER: 1, Role.EDITOR: 2, Role.ADMIN: 3}


class CallerKind(StrEnum):
    USER = "user"
    TASK = "task"  # a member, by the token of its incarnation
    AGENT = "agent"  # a node, by the token it enrolled with
    ENROLMENT = "enrolment"  # a machine that may become a node: it can enrol, and nothing else


class Needs(StrEnum):
    """What a route asks of its caller. Every route declares one."""

    PUBLIC = "public"  # nothing: the few routes that let one in
    USER = "user"  # any user, about what is theirs
    VIEWER = "viewer"  # that role in the workspace of the thing; the handler must name the workspace
    EDITOR = "editor"
    ADMIN = "admin"
    CLUSTER_VIEWER = "cluster_viewer"  # that role over the whole cluster
    CLUSTER_EDITOR = "cluster_editor"
    CLUSTER_ADMIN = "cluster_admin"
    TASK = "task"  # a member, about its own allocation
    AGENT = "agent"  # a node's agent, about its own node
    TICKET = "ticket"  # the proxy: an editor's token, or a ticket for that one task; its handler looks itself
    ENROLMENT = "enrolment"  # a machine that wants to become a node
    MEMBER_OR_USER = "member_or_user"  # code and blobs: a member of the workspace, or its own task


class TokenKind(StrEnum):
    SESSION = "session"  # from a login
    PERSONAL = "personal"  # made by its user for programs
    ONE_TIME = "one_time"  # exchanged once for a session, printed by ``clutch up``
    ENROL = "enrol"  # exchanged by an agent for its own
    AGENT = "agent"


# -- what is asked ------------------------------------------------------------------------------------------------


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either a one-time token, or a user and a password."""

    one_time_token: str = ""
    user: str = ""
    password: str = ""


class NewUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    password: str = ""
    """Empty: it can log in only with tokens an administrator makes."""
    display_name: str = ""
    uid: int | None = None
    gid: int | None = None
    """What its tasks run as; None: as the agent does, which only single-user pools allow."""


class UserChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    password: str | None = None
    display_name: str | None = None
    active: bool | None = None
    uid: int | None = None
    gid: int | None = None
    unmap: bool = False
    """Take the uid and gid away."""
    current_password: str = ""
    """Needed when users change their own password."""


class NewGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    members: tuple[str, ...] = ()


class NewWorkspace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    description: str = ""


class NewProject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    description: str = ""


class GroupMembers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All members of a group, instead of those it has."""

    members: tuple[str, ...]


class PlaceChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a workspace or a project. What is archived takes nothing new."""

    description: str | None = None
    archived: bool | None = None


class RoleGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """``subject`` (``user:NAME`` or ``group:NAME``) holds ``role`` over ``scope``."""

    subject: str
    role: Role
    scope: str


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str = ""
    kind: TokenKind = TokenKind.PERSONAL
    expires_in_s: float = 30 * 86400.0
    role: Role | None = None
    """A ceiling: at most this role, wherever its user has more."""
    workspace: str = ""
    """Only in this workspace; empty: wherever its user may."""
    pool: str = ""
    """For enrolment: the pool an agent that uses it joins."""
    user: str = ""
    """Whose token it is; empty: the caller's. Only administrators of the cluster make tokens for others."""


class NewSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    value: str


class Enrol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent introduces itself, with an enrolment token as its bearer."""

    node: str
    pool: str = ""


# -- what is answered ---------------------------------------------------------------------------------------------


class UserView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    display_name: str = ""
    active: bool = True
    uid: int | None = None
    gid: int | None = None
    groups: tuple[str, ...] = ()
    created_at: float = 0.0


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    members: tuple[str, ...] = ()


class ProjectView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    workspace: str
    description: str = ""
    archived: bool = False


class WorkspaceView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
    archived: bool = False
    role: Role | None = None
    """The caller's own role in it."""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: TokenKind
    user: str
    description: str = ""
    created_at: float = 0.0
    expires_at: float = 0.0
    last_used_at: float = 0.0
    revoked: bool = False
    role: Role | None = None
    workspace: str = ""
    pool: str = ""
    node: str = ""
    """Of an agent's token: the only node it speaks for."""


class MadeToken(msgspec.Struct, frozen=True, kw_only=True):
    """The only time the token itself is seen: just its hash is kept."""

    token: str
    view: TokenView


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value: nothing ever answers with that."""

    name: str
    workspace: str
    created_by: str = ""
    changed_at: float = 0.0


class Resealed(msgspec.Struct, frozen=True, kw_only=True):
    """How many secrets were sealed anew, and the id of the master key they are sealed with."""

    secrets: int
    key: str


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    who: str
    action: str
    object: str = ""
    status: int = 0
    detail: str = ""
    index: int = 0


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Slot-seconds of a day: held by leases, and used (device busy, as its agent measured)."""

    day: str
    user: str
    workspace: str
    project: str
    pool: str
    slot_seconds_held: float
    slot_seconds_used: float
    tasks: int


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    kind: CallerKind
    name: str
    roles: dict[str, Role]
    """By scope, groups included."""
