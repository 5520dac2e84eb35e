"""Names that the master serves, over HTTP, for the members of a task (and, in the other scope, of its workspace).

What a master that is killed keeps: every name with its value, its holder's token and its time to live, which begins
anew when the next master is first asked; a holder goes on renewing and notices nothing. Changes are stored before they
are answered, renewals are not. A watch goes on at the next master: it compares everything there with what it has seen,
so what happened meanwhile arrives folded into one change per name.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

from clutch.backends.masters import Masters
from clutch.backends.names.base import (
    Change,
    Entry,
    check_entry,
    check_name,
    check_prefix,
    compare,
    note,
)
from clutch.wire.errors import BadRequest, NotFound, Unavailable
from clutch.wire.push import (
    POLL_MAX_S,
    RUN,
    Acknowledged,
    AddName,
    NameChanges,
    NameEntry,
    RemoveName,
    RenewName,
)

SCOPES = ("task", "workspace")
_TOKENS = range(-(2**63), 2**63)


class MasterNames:
    """One member's door to its names. ``masters`` is closed with it."""

    def __init__(self, masters: Masters, scope: str = "task", *, poll_s: float = POLL_MAX_S / 2) -> None:
        if scope not in SCOPES:
            raise BadRequest(f"there is no scope {scope!r}", object="names", next_step=f"Scopes: {', '.join(SCOPES)}.")
        self._masters = masters
        self._scope = scope
        self._poll_s = poll_s
        self._closed = False

    async def add(self, name: str, value: bytes, *, ttl_s: float | None, replace: bool = False) -> Entry:
        check_entry(name, value, ttl_s)
        key = uuid.uuid4().hex  # the same add said twice, because its answer was lost, is one add
        wanted = AddName(name=name, value=value, ttl_s=ttl_s, replace=replace, key=key)
        return _entry(await self._tell("POST", "", NameEntry, wanted))

    async def renew(self, name: str, token: int, *, value: bytes | None = None) -> Entry:
        check_entry(name, value, None)
        return _entry(
            await self._tell("POST", "/renew", NameEntry, RenewName(name=name, token=_token(token), value=value))
        )

    async def get(self, name: str) -> Entry:
        check_name(name)
        return _entry(await self._tell("GET", "/entry", NameEntry, name=name))

    async def list(self, prefix: str = "") -> list[Entry]:
        found = await self._tell("GET", "", tuple[NameEntry, ...], prefix=check_prefix(prefix))
        return [_entry(entry) for entry in found]

    async def watch(self, prefix: str = "") -> AsyncGenerator[Change, None]:
        plain = check_prefix(prefix)
        view: dict[str, Entry] = {}
        version = ""
        while True:
            news = await self._tell(
                "GET", "/watch", NameChanges, waits_s=self._poll_s, prefix=plain, after=version, timeout_s=self._poll_s
            )
            said = {change.name: change.entry for change in news.changes}
            gone = [name for name in view if name not in said] if news.whole else []
            for name in (*gone, *said):
                now = said.get(name)
                change = compare(view.get(name), _entry(now) if now is not None else None)
                if change is not None:
                    note(view, change)
                    yield change
            version = news.version

    async def remove(self, name: str, token: int) -> None:
        check_name(name)
        asked_before = False
        while True:
            try:
                # Said once: a second time it would find nothing, or another's tenure
                await self._tell(
                    "POST", "/remove", Acknowledged, RemoveName(name=name, token=_token(token)), repeat=False
                )
                return
            except Unavailable:
                if asked_before:
                    raise
                asked_before = True
            except NotFound:
                if not asked_before:
                    raise
                return

    async def close(self) -> None:
        self._closed = True
        await self._masters.close()

    async def _tell(
        self,
        method: str,
        place: str,
        kind: Any,
        body: Any = None,
        *,
        repeat: bool = True,
        waits_s: float = 0.0,
        **query: Any,
    ) -> Any:
        if self._closed:
            raise Unavailable("these names are closed", object="names", next_step="Open them again.")
        return await self._masters.tell(
            method,
            f"{RUN}/names{place}",
            kind,
            body,
            repeat=repeat,
            waits_s=waits_s,
            params={"scope": self._scope, **query},
        )


def _entry(said: NameEntry) -> Entry:
    return Entry(said.name, said.value, said.token)


def _token(token: int) -> int:
    """A number beyond what travels is nobody's token."""
    return token if token in _TOKENS else 0
