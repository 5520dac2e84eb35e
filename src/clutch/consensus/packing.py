"""Large data apart from what is said about it, so that a megabyte is copied as seldom as possible.

Pure. ``detach`` takes the data of large entries out: the entry that stays says how long it was and is DETACHED, and the
bytes go as they are, behind it, into a socket or a file. ``attach`` puts them back. Both ends see whole entries only.
"""

from __future__ import annotations

from collections.abc import Sequence

from clutch.wire.errors import Corrupt
from clutch.wire.raft import Entry, EntryKind

DETACH_FROM_BYTES = 32 << 10


def detach(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], list[bytes]]:
    """The entries without large data, and that data in order."""
    blobs: list[bytes] = []
    light: list[Entry] = []
    for entry in entries:
        if entry.kind == EntryKind.DATA and len(entry.data) >= DETACH_FROM_BYTES:
            blobs.append(entry.data)
            size = len(entry.data).to_bytes(8, "little")
            light.append(Entry(entry.index, entry.term, EntryKind.DETACHED, size, entry.key, entry.since))
        else:
            light.append(entry)
    return tuple(light), blobs


def has_detached(entries: Sequence[Entry]) -> bool:
    return any(e.kind == EntryKind.DETACHED for e in entries)


def attach(entries: Sequence[Entry], blobs: memoryview) -> tuple[Entry, ...]:
    """Whole entries again. Raises Corrupt if the bytes are not exactly what the entries say."""
    whole: list[Entry] = []
    offset = 0
    for entry in entries:
        if entry.kind != EntryKind.DETACHED:
            whole.append(entry)
            continue
        size = int.from_bytes(entry.data, "little")
        data = bytes(blobs[offset : offset + size])
        if len(data) != size:
            raise Corrupt(f"{size} bytes of data were announced, {len(data)} follow", object=f"entry {entry.index}")
        offset += size
        whole.append(Entry(entry.index, entry.term, EntryKind.DATA, data, entry.key, entry.since))
    if offset != len(blobs):
        raise Corrupt(f"{len(blobs) - offset} bytes belong to no entry", object="entries")
    return tuple(whole)
