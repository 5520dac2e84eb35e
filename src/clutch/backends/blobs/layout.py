"""How blobs lie in an object store.

::

    KEY                              a small blob: the content itself, its hash in the object's metadata
    KEY                              a large blob: a *head*, a JSON object that says where its parts are
    .clutch/parts/UPLOAD/000000-HASH a part, named by its place and the hash of the content up to its end
    .clutch/parts/UPLOAD/owner       says which key this upload was committed for

One put of the head publishes a large blob, so it can be conditional, and parts that were sent before a crash are found
by their names. An upload belongs to one head only: whoever replaces or deletes the head may delete its parts.
"""

from __future__ import annotations

from msgspec import Struct

from clutch.backends.blobs.keys import RESERVED

PART_BYTES = 16 << 20
PARTS_MAX = 10_000
WINDOW_BYTES = 256 << 20
WINDOW_MAX = 8

SUM, SIZE, UPLOAD = "clutchsha256", "clutchsize", "clutchupload"
"""Names of metadata; letters and digits only, which every store accepts."""

PARTS = f"{RESERVED}/parts"
OWNER = "owner"


class Head(Struct, frozen=True):
    """Where the content of a large blob is."""

    size_bytes: int
    sha256: str
    upload: str
    part_bytes: int
    sums: tuple[str, ...]
    version: int = 1

    def part(self, index: int) -> str:
        return part_name(self.upload, index, self.sums[index])

    def part_size(self, index: int) -> int:
        return min(self.part_bytes, self.size_bytes - index * self.part_bytes)

    def covering(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Which parts hold these bytes, and from where to where in each."""
        first, last = start // self.part_bytes, (stop - 1) // self.part_bytes
        found = []
        for index in range(first, last + 1):
            base = index * self.part_bytes
            found.append((index, max(start - base, 0), min(stop - base, self.part_bytes)))
        return found


class Owner(Struct, frozen=True):
    """Which key an upload was committed for."""

    key: str


def folder(upload: str) -> str:
    return f"{PARTS}/{upload}"


def part_name(upload: str, index: int, sha256: str) -> str:
    return f"{folder(upload)}/{index:06d}-{sha256}"


def part_size_for(size_bytes: int, part_bytes: int) -> int:
    """Parts as large as need be so that there are not too many."""
    while size_bytes > part_bytes * PARTS_MAX:
        part_bytes *= 2
    return part_bytes


def window_for(part_bytes: int) -> int:
    """How many parts travel at once."""
    return max(2, min(WINDOW_MAX, WINDOW_BYTES // part_bytes))
