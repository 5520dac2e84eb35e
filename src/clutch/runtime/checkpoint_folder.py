"""What lies in a folder that becomes a checkpoint: its files and empty folders, by the paths they will have in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from clutch.wire.errors import BadRequest, ClutchError, NotAllowed, NotFound, TooLarge, Unavailable
from clutch.wire.push import FILES_MAX

DEPTH_MAX = 64


class Found(msgspec.Struct, frozen=True):
    """A file to be stored, or an empty folder to be remembered."""

    path: str
    """In the checkpoint. That of a folder ends with ``/``."""
    place: Path
    """Where it lies; a link is followed."""
    size_bytes: int

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/")


def files_in(folder: Path) -> tuple[Found, ...]:
    """Every file below a folder, the largest first, and every folder in it that is empty.

    A link is what it leads to; one that leads out of the folder is refused, and so is what is neither a file nor a
    folder.
    """
    try:
        root = folder.resolve(strict=True)
        if not root.is_dir():
            raise BadRequest(
                "not a folder", object=f"folder {folder}", next_step="Give the folder that holds the files."
            )
        found = list(_walk(root, root, "", 0))
    except FileNotFoundError as missing:
        raise _vanished(folder, missing) from missing
    except PermissionError as refused:
        raise _forbidden(refused.filename or folder) from refused
    except OSError as error:
        raise Unavailable(error.strerror or str(error), object=f"folder {folder}") from error
    if len(found) > FILES_MAX:
        raise TooLarge(
            f"{len(found)} files, at most {FILES_MAX}",
            object=f"folder {folder}",
            next_step="Pack many small files into fewer.",
        )
    return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.path)))


def _walk(root: Path, folder: Path, path: str, depth: int) -> Iterator[Found]:
    if depth > DEPTH_MAX:
        raise BadRequest(f"more than {DEPTH_MAX} folders in one another", object=f"folder {folder}")
    entries = sorted(os.scandir(folder), key=lambda one: one.name)
    if path and not entries:
        yield Found(f"{path}/", folder, 0)
    for entry in entries:
        inner = f"{path}/{entry.name}" if path else entry.name
        place = Path(entry.path)
        if entry.is_symlink():
            place = _followed(root, place)
            if place.is_dir() and place in (folder, *folder.parents):
                raise BadRequest(
                    "this link leads back to a folder that it is in",
                    object=f"link {entry.path}",
                    next_step="Remove it.",
                )
        about = place.stat()
        if stat.S_ISDIR(about.st_mode):
            yield from _walk(root, place, inner, depth + 1)
        elif stat.S_ISREG(about.st_mode):
            yield Found(inner, place, about.st_size)
        else:
            raise BadRequest(
                "neither a file nor a folder", object=f"file {entry.path}", next_step="Remove it from the folder."
            )


def _followed(root: Path, link: Path) -> Path:
    try:
        place = link.resolve(strict=True)
    except FileNotFoundError as missing:
        raise NotFound(
            "this link leads nowhere", object=f"link {link}", next_step="Remove it, or make what it leads to."
        ) from missing
    except RuntimeError as endless:  # a link to itself
        raise BadRequest("this link leads to itself", object=f"link {link}", next_step="Remove it.") from endless
    if place != root and root not in place.parents:
        raise BadRequest(
            "this link leads out of the folder",
            object=f"link {link}",
            next_step="Copy the file into the folder, or leave the link out.",
        )
    return place


def _vanished(folder: Path, missing: FileNotFoundError) -> ClutchError:
    if not folder.exists():
        return NotFound("there is no such folder", object=f"folder {folder}", next_step="Check the path.")
    return NotFound(
        "it vanished while the folder was read",
        object=f"file {missing.filename}",
        next_step="Finish writing and tidying the folder, then call again.",
    )


def _forbidden(place: object) -> NotAllowed:
    return NotAllowed("this user may not read it", object=f"file {place}", next_step="Give this user the right to.")
