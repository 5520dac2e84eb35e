"""The most slots a user or a workspace may hold at once, over all pools.

One ``QuotaBook`` is shared by the ledgers of all pools. It knows limits and usage by scope (``user:ada``,
``workspace:vision``); it never knows nodes, requests or time. Only ledgers book usage; a policy reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from clutch.wire.errors import BrokenInvariant
from clutch.wire.schedule import Request
from clutch.wire.specs import Quota


def user_scope(owner: str) -> str:
    return "user:" + owner


def workspace_scope(workspace: str) -> str:
    return "workspace:" + workspace


def group_of(request: Request) -> str:
    """The group a request belongs to: its own, or its task alone."""
    return request.group or request.task


class QuotaBook:
    """Limits, and what is held against them."""

    def __init__(self) -> None:
        self._limits: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self.scopes_version = 0
        """Grows when another scope is bounded, or one no longer is."""

    @property
    def limits(self) -> Mapping[str, int]:
        return self._limits

    @property
    def used(self) -> Mapping[str, int]:
        return self._used

    def set_limit(self, quota: Quota) -> None:
        """Bound a scope. What is held already stays held."""
        if quota.scope not in self._limits:
            self.scopes_version += 1
        self._limits[quota.scope] = quota.slots

    def clear_limit(self, scope: str) -> None:
        if self._limits.pop(scope, None) is not None:
            self.scopes_version += 1

    def left(self, scope: str) -> int | None:
        """How many more slots the scope may take (negative if its limit was lowered below its use); None: no limit."""
        limit = self._limits.get(scope)
        return None if limit is None else limit - self._used.get(scope, 0)

    def take(self, request: Request, slots: int) -> None:
        """Book slots to a request's user and workspace. Never refuses: a policy asks ``left`` before it grants."""
        if slots:
            used = self._used
            for scope in (user_scope(request.owner), workspace_scope(request.workspace)):
                used[scope] = used.get(scope, 0) + slots

    def give(self, request: Request, slots: int) -> None:
        """Take slots off the books again."""
        if slots:
            for scope in (user_scope(request.owner), workspace_scope(request.workspace)):
                rest = self._used.get(scope, 0) - slots
                if rest < 0:
                    raise BrokenInvariant(f"gives back {slots} slots but has {rest + slots} on the books", object=scope)
                if rest:
                    self._used[scope] = rest
                else:
                    del self._used[scope]
