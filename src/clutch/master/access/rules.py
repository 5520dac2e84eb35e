"""The rules of who may do what, apart from any store: scopes, subjects, and how tokens are limited."""

from __future__ import annotations

import math
from collections.abc import Iterable

from clutch.core.checks import NAME
from clutch.wire.access import CLUSTER, RANKS, Role, RoleGrant
from clutch.wire.errors import BadRequest

TEXT_MAX = 1000
INDEX_MAX = 2**63 - 1
LIFETIME_MAX_S = 10 * 365 * 86400.0
ID_MAX = 2**31 - 2
"""The highest uid or gid that means somebody."""


def check_name(name: str, what: str) -> str:
    """The name itself, or ``BadRequest`` unless it is one."""
    if not NAME.fullmatch(name):
        raise BadRequest(
            "it is not a name",
            object=what,
            path="name",
            next_step="Use up to 128 letters, digits, '.', '_' and '-', beginning with a letter or digit.",
        )
    return name


def check_text(value: str, path: str, length_max: int = TEXT_MAX) -> str:
    """The text itself, or ``BadRequest`` for one that no database of ours could keep."""
    try:
        value.encode()
        kept = "\x00" not in value
    except UnicodeEncodeError:
        kept = False
    if not kept:
        raise BadRequest("it has characters that are no text", object=path, path=path, next_step="Leave them out.")
    if len(value) > length_max:
        raise BadRequest(f"it is longer than {length_max} characters", object=path, path=path, next_step="Shorten it.")
    return value


def check_id(value: int | None, path: str) -> None:
    """``BadRequest`` unless it is a uid or gid somebody may run as; root never is one."""
    if value is not None and not 1 <= value <= ID_MAX:
        raise BadRequest(
            f"{value} is not a uid or gid that members may run as", object=path, path=path,
            next_step=f"Give a number from 1 to {ID_MAX}.",
        )  # fmt: skip


def check_lifetime(seconds: float) -> None:
    if not math.isfinite(seconds) or not 0 < seconds <= LIFETIME_MAX_S:
        raise BadRequest(
            f"a token lives at most {LIFETIME_MAX_S:.0f} seconds",
            object="token",
            path="expires_in_s",
            next_step="Give a number of seconds above 0.",
        )


def workspace_of(scope: str) -> str | None:
    """The workspace a scope names, None for the whole cluster. ``BadRequest`` for anything else."""
    kind, colon, name = scope.partition(":")
    if scope == CLUSTER:
        return None
    if kind == "workspace" and colon and NAME.fullmatch(name):
        return name
    raise BadRequest("it is no scope", object="scope", path="scope", next_step="Use 'cluster' or 'workspace:NAME'.")


def subject_of(subject: str) -> tuple[str, str]:
    """(``user`` or ``group``, its name). ``BadRequest`` for anything else."""
    kind, _, name = subject.partition(":")
    if kind in ("user", "group") and NAME.fullmatch(name):
        return kind, name
    raise BadRequest("it is no subject", object="subject", path="subject", next_step="Use 'user:NAME' or 'group:NAME'.")


def roles_of(grants: Iterable[RoleGrant]) -> dict[str, Role]:
    """What somebody holds by scope, given all grants to them and to their groups: the highest counts."""
    held: dict[str, Role] = {}
    for grant in grants:
        known = held.get(grant.scope)
        if known is None or RANKS[grant.role] > RANKS[known]:
            held[grant.scope] = grant.role
    return held


Limits = tuple[Role | None, str]
"""A token's ceiling and its only workspace; None and empty: unlimited."""


def narrowed(asked: Limits, maker: Limits) -> Limits:
    """The limits of a token made by means of another: never wider than its maker's, or a limit could be shed."""
    ceilings = [ceiling for ceiling in (asked[0], maker[0]) if ceiling is not None]
    ceiling = min(ceilings, key=RANKS.__getitem__) if ceilings else None
    if maker[1] and asked[1] not in ("", maker[1]):
        raise BadRequest(
            f"the token this is asked with is for workspace {maker[1]} only",
            object="token",
            path="workspace",
            next_step=f"Ask for workspace {maker[1]}, or with another token.",
        )
    return ceiling, asked[1] or maker[1]
