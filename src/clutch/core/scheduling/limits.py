"""Quotas and group caps while a plan is being made: who may still take how much, counting what this pass gave out.

Inside one scope requests keep their order: once somebody waits for quota, nobody behind it in the same scope slips
through with less, or the larger request would starve. It reads the quota book and changes nothing but its own tally.
"""

from __future__ import annotations

from clutch.core.scheduling.demand import scopes_of
from clutch.core.scheduling.ledger import Ledger
from clutch.core.scheduling.quota import group_of, user_scope, workspace_scope
from clutch.core.scheduling.waiting_line import Turn, turn_of
from clutch.wire.schedule import Request, WaitCode


class Limits:
    """The tally of one pass."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.full: dict[str, Turn] = {}
        """Scopes in which somebody waits, and whose turn it was."""
        self._extra: dict[str, int] = {}

    def bounds(self, request: Request) -> list[tuple[str, int, int]]:
        """The scopes that bound this request: name, limit, slots held and given out."""
        quotas = self.ledger.quotas
        found = []
        if quotas.limits:
            for scope in (user_scope(request.owner), workspace_scope(request.workspace)):
                limit = quotas.limits.get(scope)
                if limit is not None:
                    found.append((scope, limit, quotas.used.get(scope, 0) + self._extra.get(scope, 0)))
        if request.max_slots:
            group = group_of(request)
            scope = "group:" + group
            used = self.ledger.group_slots.get(group, 0) + self._extra.get(scope, 0)
            found.append((scope, request.max_slots, used))
        return found

    def refuse(self, request: Request, slots: int) -> WaitCode | None:
        """Why a request may not take so many slots now, or None. What could never be placed holds up nobody."""
        if not slots:
            return None
        for scope, limit, used in self.bounds(request):
            code = WaitCode.GROUP_CAP if scope.startswith("group:") else WaitCode.QUOTA
            if slots > limit or scope in self.full:
                return code
            if used + slots > limit:
                if self.ledger.fits_empty(self.ledger.lines.line_of(request.request)):
                    self.full[scope] = turn_of(request)
                return code
        return None

    def take(self, request: Request, slots: int) -> None:
        """Count slots that were granted or promised in this pass."""
        if slots and (self.ledger.quotas.limits or request.max_slots):
            for scope in scopes_of(request):
                self._extra[scope] = self._extra.get(scope, 0) + slots
