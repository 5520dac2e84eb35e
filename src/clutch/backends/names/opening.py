"""From an address to names: ``memory:``, ``file:///FOLDER`` or a plain path."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import unquote

from clutch.backends.names.base import Names
from clutch.backends.names.memory import MemoryNames, NameBoard
from clutch.wire.errors import BadRequest

_KNOWN = "Use memory:, file:///FOLDER, or a path."


async def open_names(url: str) -> Names:
    """The names at this address; a folder is made if it is not there."""
    scheme, colon, rest = url.partition(":")
    if not url or "\0" in url:
        raise BadRequest("this is no address of names", object=f"names {url!a}", next_step=_KNOWN)
    if url == "memory:":
        return MemoryNames(NameBoard(time.monotonic))
    if scheme == "file" and colon:
        if not rest.startswith("///") or len(rest) == 3:
            raise BadRequest("no folder in the address of names", object=url, next_step=_KNOWN)
        return await _open_folder(Path(unquote(rest[2:])))
    if "://" in url:
        raise BadRequest(f"there is no way to keep names in {scheme!r}", object=scheme, next_step=_KNOWN)
    return await _open_folder(Path(url))


async def _open_folder(path: Path) -> Names:
    from clutch.backends.names.file import FileNames

    return await FileNames.open(path)
