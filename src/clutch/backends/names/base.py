"""The contract of names: who adds a name holds it, for as long as it renews; others look it up and watch.

Every implementation passes ``clutch.testing.names_suite``. The rules the suite tries to break:

- A name has at most one holder. ``add`` of a name that is held is ``Conflict``, however many try at once; with
  ``replace`` it takes the name over. Each tenure has a **token** that is higher than any token the name had before.
- Only the holder's token renews, changes or removes an entry. Who slept through its own replacement or expiry is
  ``Stale``, and harms nothing of its successor's.
- Time is the store's: an entry whose ``ttl_s`` passed since it was added or last renewed is gone for everybody, whether
  its holder was killed or is merely slow. ``ttl_s=None`` never expires.
- A holder's own reckoning is safe: an entry lives at least ``ttl_s`` from the moment the holder *began* its last
  successful ``add`` or ``renew``.
- An entry is read whole or not at all.

Names are segments joined by ``/``; a prefix covers whole segments, so ``a/b`` covers
``a/b`` and ``a/b/c``, not ``a/bc``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import Protocol

import msgspec

from clutch.wire.errors import BadRequest, TooLarge

NAME_BYTES_MAX = 240
VALUE_BYTES_MAX = 64 << 10
TTL_S_MAX = 10 * 365 * 86_400.0

_HINT = (
    f"A name is segments joined by '/', at most {NAME_BYTES_MAX} bytes of UTF-8 in all; no segment is empty or starts "
    "with '.', and there is no backslash or control character."
)


class Entry(msgspec.Struct, frozen=True):
    """A name that is held. ``token`` numbers the tenure: higher than every earlier one of this name."""

    name: str
    value: bytes
    token: int


class Seen(StrEnum):
    """What a watcher saw happen to a name."""

    ADDED = "added"  # it was not there before
    CHANGED = "changed"  # another value, or another holder (the token differs)
    GONE = "gone"  # removed, or expired; the entry is the last one that was seen


class Change(msgspec.Struct, frozen=True):
    seen: Seen
    entry: Entry


class Names(Protocol):
    """Add, renew, get, list, watch, remove."""

    async def add(self, name: str, value: bytes, *, ttl_s: float | None, replace: bool = False) -> Entry:
        """Hold this name. ``Conflict`` while another entry lives, unless ``replace`` takes it over."""
        ...

    async def renew(self, name: str, token: int, *, value: bytes | None = None) -> Entry:
        """Hold it for another ``ttl_s`` from now, under the same token; with ``value`` also change it.

        ``Stale`` when this tenure is over: expired, removed or taken over.
        """
        ...

    async def get(self, name: str) -> Entry:
        """The entry that lives now, or ``NotFound``."""
        ...

    async def list(self, prefix: str = "") -> list[Entry]:
        """All living entries at or under a prefix, by name. The empty prefix is everything."""
        ...

    def watch(self, prefix: str = "") -> AsyncGenerator[Change, None]:
        """First what is there, each as ADDED; then every change, for as long as the caller reads.

        Per name the changes are in order and the last one tells the truth. A reader that is slower than the store sees
        fewer of them: what happened in between is folded into one change, so nothing piles up.
        """
        ...

    async def remove(self, name: str, token: int) -> None:
        """End this tenure. ``Stale`` when it is over already and another holds the name, else ``NotFound``."""
        ...

    async def close(self) -> None:
        """Release what this object holds open; entries stay until they expire, as after a crash."""
        ...


def check_name(name: str) -> None:
    if refusal := _refusal(name):
        raise BadRequest(refusal, object=f"name {name[:80]!a}", next_step=_HINT)


def check_prefix(prefix: str) -> str:
    """The prefix without its last slash; empty for everything."""
    plain = prefix.removesuffix("/")
    if plain or prefix:
        check_name(plain)
    return plain


def check_entry(name: str, value: bytes | None, ttl_s: float | None) -> None:
    check_name(name)
    if value is not None and len(value) > VALUE_BYTES_MAX:
        raise TooLarge(
            f"its value has {len(value)} bytes, at most {VALUE_BYTES_MAX} are kept",
            object=name,
            next_step="Keep the bytes in blobs and their key here.",
        )
    if ttl_s is not None and not 0 < ttl_s <= TTL_S_MAX:
        raise BadRequest(
            f"a time to live of {ttl_s} s", object=name, next_step="Give seconds above 0, or None for no expiry."
        )


def covers(prefix: str, name: str) -> bool:
    """Whether a checked prefix covers a name."""
    return not prefix or name == prefix or name.startswith(prefix + "/")


def compare(old: Entry | None, new: Entry | None) -> Change | None:
    """What a watcher that knew ``old`` sees now."""
    if old == new:
        return None
    if new is None:
        assert old is not None
        return Change(Seen.GONE, old)
    return Change(Seen.CHANGED if old else Seen.ADDED, new)


def note(view: dict[str, Entry], change: Change) -> None:
    """Remember what was seen."""
    if change.seen is Seen.GONE:
        del view[change.entry.name]
    else:
        view[change.entry.name] = change.entry


def _refusal(name: str) -> str:
    """Why this is no name, or nothing."""
    if not name:
        return "the name is empty"
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        return "the name contains a control character, a line separator or half of a surrogate pair"
    if "\\" in name:
        return "the name contains a backslash"
    if not unicodedata.is_normalized("NFC", name):
        return "the name is not in Unicode's composed form (NFC), so it might look like another"
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"the name has {len(name.encode())} bytes"
    for segment in name.split("/"):
        if not segment or segment.startswith("."):
            return f"the name has the segment {segment!r}"
    return ""
