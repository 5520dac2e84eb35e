"""Where copies of blobs belong, and what is to be done about those that lie elsewhere. Pure.

Every node has a rank for every key (rendezvous hashing), so copies spread evenly, everybody computes the same places
without asking, and a node that comes or goes moves only what belongs on it. The *catalogue* says what lies where; the
*plan* is what makes it right: first copies, then whatever is stale or too much.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from clutch.wire.shelf import Entry

COPIES = 2
GONE_LEAST_S = 3600.0
"""How long what was deleted is remembered while every node is there."""
GONE_MOST_S = 7 * 86400.0
"""How long at most: a node that was away for longer may bring back what was deleted meanwhile."""


def ranked(key: str, nodes: Iterable[str]) -> list[str]:
    """The nodes in the order in which they should have a copy of this key."""
    return sorted(nodes, key=lambda node: (hashlib.sha256(f"{node}\0{key}".encode()).digest(), node))


class CopyTo(Struct, frozen=True):
    """Give this node a copy of this version."""

    entry: Entry
    node: str


class DropFrom(Struct, frozen=True):
    """This node need not have this version any more."""

    entry: Entry
    node: str


Step = CopyTo | DropFrom


class Standing(Struct, frozen=True):
    """The nodes as they are now."""

    here: frozenset[str]
    """Connected, and it is known what they have."""
    away: frozenset[str] = frozenset()
    """Not connected, and expected to come back."""
    lost: frozenset[str] = frozenset()
    """Given up; they may come back all the same."""

    @property
    def wanted(self) -> int:
        """How many copies there should be."""
        return min(COPIES, max(1, len(self.here) + len(self.away)))

    @property
    def is_settled(self) -> bool:
        """Whether everything that was acknowledged can be seen: of two copies at most one is out of sight."""
        expected = len(self.here) + len(self.away)
        return not expected or (bool(self.here) and len(self.away) < COPIES)


class Catalogue:
    """Which version of what lies on which node."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Entry]] = {}
        self.last_stamp = 0

    def __len__(self) -> int:
        return len(self._found)

    def keys(self, folder: str = "") -> list[str]:
        start = f"{folder}/" if folder else ""
        return sorted(key for key in self._found if key.startswith(start))

    def load(self, node: str, entries: Iterable[Entry], asked_at: int = 0) -> None:
        """All that this node has; what it got after the stamp at which it was asked stays as it is known."""
        since = [copies[node] for copies in self._found.values() if node in copies and copies[node].stamp > asked_at]
        self.forget(node)
        for entry in (*entries, *since):
            self.put(node, entry)

    def forget(self, node: str) -> None:
        for key in [key for key, copies in self._found.items() if node in copies]:
            self.drop(node, key)

    def put(self, node: str, entry: Entry) -> None:
        copies = self._found.setdefault(entry.key, {})
        if node not in copies or copies[node].stamp <= entry.stamp:
            copies[node] = entry
        self.last_stamp = max(self.last_stamp, entry.stamp)

    def drop(self, node: str, key: str) -> None:
        copies = self._found.get(key)
        if copies is not None:
            copies.pop(node, None)
            if not copies:
                del self._found[key]

    def copies(self, key: str) -> Mapping[str, Entry]:
        return self._found.get(key, {})

    def newest(self, key: str) -> Entry | None:
        """The valid version, which may say that the key was deleted."""
        copies = self._found.get(key)
        return max(copies.values(), key=lambda entry: entry.stamp) if copies else None

    def holders(self, entry: Entry) -> list[str]:
        """Who has this version, in the order of their names."""
        return sorted(node for node, found in self._found.get(entry.key, {}).items() if found == entry)


def steps(catalogue: Catalogue, key: str, standing: Standing, now: float) -> Iterator[Step]:
    """What is to be done about one key now."""
    newest = catalogue.newest(key)
    if newest is None:
        return
    copies = catalogue.copies(key)
    stale = [node for node in sorted(copies) if node in standing.here and copies[node] != newest]
    holders = catalogue.holders(newest)
    here = ranked(key, [node for node in holders if node in standing.here])
    away = [node for node in holders if node in standing.away]
    if newest.gone and not stale and _is_forgotten(newest, copies, standing, now):
        for node in here:
            yield DropFrom(newest, node)
        return
    missing = standing.wanted - len(here) - len(away)
    if here and missing > 0:
        places = ranked(key, [node for node in standing.here if node not in holders])
        for node in places[:missing]:
            yield CopyTo(newest, node)
        return  # what is stale or too much waits until the copies are there
    if len(here) < standing.wanted:
        return
    for node in stale:
        yield DropFrom(copies[node], node)
    for node in here[standing.wanted :]:
        yield DropFrom(newest, node)


def _is_forgotten(newest: Entry, copies: Mapping[str, Entry], standing: Standing, now: float) -> bool:
    """Whether nobody can bring back what was deleted."""
    age = now - newest.modified_at
    everybody = not standing.away and not standing.lost and all(copy == newest for copy in copies.values())
    return age > GONE_MOST_S or (everybody and age > GONE_LEAST_S)


def copies_held(catalogue: Catalogue, keys: Iterable[str], nodes: Collection[str]) -> int:
    """The fewest copies that one of these keys has on these nodes; ``COPIES`` when there are none to look at."""
    fewest = COPIES
    for key in keys:
        newest = catalogue.newest(key)
        if newest is not None and not newest.gone:
            fewest = min(fewest, sum(node in nodes for node in catalogue.holders(newest)))
    return fewest
