"""What several ranks bring to one checkpoint becomes one: which rank stores which file, and whose metadata. Pure.

Folders may overlap. A file that several ranks bring must be the same on all of them, and the lowest stores it. What is
a file on one rank is no folder on another. Metadata is laid together key by key; where ranks differ it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clutch.wire.errors import Conflict
from clutch.wire.push import CheckpointFile

NAMED_MAX = 8


def storing_ranks(folders: Sequence[str]) -> tuple[bool, ...]:
    """By rank, whether it stores its folder: of ranks that name one folder only the lowest does.

    ``folders`` say which physical folder each rank has filled.
    """
    first: dict[str, int] = {}
    for rank, folder in enumerate(folders):
        first.setdefault(folder, rank)
    return tuple(first[folder] == rank for rank, folder in enumerate(folders))


def shared_paths(paths: Mapping[int, Iterable[str]], what: str) -> dict[str, tuple[int, ...]]:
    """Those that several ranks bring, and which ranks. ``Conflict``: a file of one is a folder of another."""
    files: dict[str, list[int]] = {}
    folders: dict[str, int] = {}
    for rank in sorted(paths):
        for path in paths[rank]:
            files.setdefault(path, []).append(rank)
            while path := path.rpartition("/")[0]:
                if path in folders:
                    break
                folders[path] = rank
    both = sorted(set(files) & set(folders))
    if both:
        raise Conflict(
            f"{both[0]} is a file on {_ranks(files[both[0]])} and a folder on rank {folders[both[0]]}",
            object=what,
            next_step="Give them different names.",
        )
    return {path: tuple(ranks) for path, ranks in files.items() if len(ranks) > 1}


def stored_elsewhere(hashes: Mapping[int, Mapping[str, str]], what: str) -> dict[int, set[str]]:
    """By rank, which shared files it need not store, for a lower rank does. ``Conflict``: they differ.

    ``hashes``: of each rank, those of the files it shares with others.
    """
    by_path: dict[str, dict[int, str]] = {}
    for rank in sorted(hashes):
        for path, found in hashes[rank].items():
            by_path.setdefault(path, {})[rank] = found
    different = sorted(path for path, found in by_path.items() if len(set(found.values())) > 1)
    if different:
        more = f", and {len(different) - 1} more files" if len(different) > 1 else ""
        raise Conflict(
            f"{different[0]} has different contents on {_ranks(by_path[different[0]])}{more}",
            object=what,
            next_step="Let one rank write it, or name it by its rank.",
        )
    left: dict[int, set[str]] = {rank: set() for rank in hashes}
    for path, known in by_path.items():
        for rank in list(known)[1:]:
            left[rank].add(path)
    return left


def joined(files: Iterable[CheckpointFile]) -> tuple[CheckpointFile, ...]:
    """The manifest of all, by path. A folder that is empty on one rank and filled by another is not empty."""
    found = sorted(files, key=lambda file: file.path)
    after = [*found[1:], None]
    return tuple(
        file
        for file, following in zip(found, after, strict=True)
        if not (file.is_folder and following is not None and following.path.startswith(file.path))
    )


def merged_metadata(said: Mapping[int, Mapping[str, Any]], what: str) -> dict[str, Any]:
    """One dict of what each rank says. ``Conflict`` names where they differ, and who."""
    return _merged({rank: found for rank, found in said.items() if found}, "", what)


def _merged(said: Mapping[int, Mapping[str, Any]], path: str, what: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for rank in sorted(said) for key in said[rank]):
        values = {rank: said[rank][key] for rank in sorted(said) if key in said[rank]}
        inner = f"{path}.{key}" if path else str(key)
        first = next(iter(values.values()))
        if all(isinstance(value, dict) for value in values.values()):
            found[key] = _merged(values, inner, what)
        elif all(type(value) is type(first) and value == first for value in values.values()):
            found[key] = first
        else:
            raise Conflict(
                f"its metadata {inner} differs between {_ranks(values)}",
                object=what,
                next_step="Say it on one rank, or the same on all.",
            )
    return found


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    words = ", ".join(map(str, listed[:NAMED_MAX])) + (", ..." if len(listed) > NAMED_MAX else "")
    return f"rank {words}" if len(listed) == 1 else f"ranks {words}"
