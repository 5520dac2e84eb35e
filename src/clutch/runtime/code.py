"""A task's working directory: fetched from a master once for each user of a machine, checked, unpacked for each member.

The archive (a tar, compressed or not) is kept in a cache under its digest and is put there by a rename, so members that
start together share one download or at worst make the same one twice. It is checked against its digest each time it is
used. What is unpacked stays inside the folder: no absolute names, no ``..``, no link that leads out, no device, and no
more than a stated size.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from clutch.wire.errors import BadRequest, Corrupt, DiskFull, NotAllowed, TooLarge

if TYPE_CHECKING:
    from clutch.runtime.http import MasterConnection

ARCHIVE_MAX_BYTES = 1 << 30
UNPACKED_MAX_BYTES = 8 << 30
ENTRIES_MAX = 1_000_000
CACHED_MAX_BYTES = 4 << 30
CHUNK_BYTES = 1 << 20
_FULL = (28, 122)  # ENOSPC, EDQUOT


def place_code(
    connect: Callable[[], MasterConnection], digest: str, target: Path, cache: str, *, within_s: float
) -> None:
    """Fill ``target`` with the working directory of this digest. Nobody is connected to for what the cache has."""
    hexadecimal = digest.removeprefix("sha256:")
    if len(hexadecimal) != 64 or not set(hexadecimal) <= set("0123456789abcdef"):
        raise BadRequest("this is no digest", object=f"code {digest[:80]}", next_step="Give sha256: and 64 hex digits.")
    try:
        folder = cache_folder(cache)
        archive = folder / f"{hexadecimal}.tar"
        if not _is_sound(archive, hexadecimal):
            connection = connect()
            try:
                _fetch(connection, digest, archive, within_s)
            finally:
                connection.close()
            _keep_small(folder, archive)
        unpack(archive, target)
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(str(error), object=f"code {digest}", next_step="Free space on the node.") from error
        raise NotAllowed(f"cannot be placed: {error}", object=f"code {digest}") from error


def cache_folder(given: str) -> Path:
    """The folder of this user's archives; it is nobody else's, or it is not used."""
    path = Path(given) if given else Path("/tmp") / f"clutch-code-{os.geteuid()}"
    path.mkdir(mode=0o700, parents=bool(given), exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise NotAllowed(
            "the cache of code is not a folder of this user alone",
            object=str(path),
            next_step="Remove it, or name another with CLUTCH_CACHE.",
        )
    return path


def _is_sound(archive: Path, hexadecimal: str) -> bool:
    digest = hashlib.sha256()
    try:
        with archive.open("rb") as file:
            while piece := file.read(CHUNK_BYTES):
                digest.update(piece)
    except FileNotFoundError:
        return False
    if digest.hexdigest() == hexadecimal:
        with suppress(OSError):
            os.utime(archive)
        return True
    return False


def _fetch(connection: MasterConnection, digest: str, archive: Path, within_s: float) -> None:
    draft = archive.with_name(f".{archive.name}.{os.getpid()}.{secrets.token_hex(4)}")
    found, size = hashlib.sha256(), 0
    try:
        with draft.open("xb") as file:
            for piece in connection.download(f"/api/v1/code/{digest}", within_s=within_s):
                size += len(piece)
                if size > ARCHIVE_MAX_BYTES:
                    raise TooLarge(f"more than {ARCHIVE_MAX_BYTES} bytes", object=f"code {digest}")
                found.update(piece)
                file.write(piece)
        if found.hexdigest() != digest.removeprefix("sha256:"):
            raise Corrupt(
                f"{size} bytes came that have another digest", object=f"code {digest}", next_step="Start it again."
            )
        draft.rename(archive)
    finally:
        draft.unlink(missing_ok=True)


def _keep_small(folder: Path, newest: Path) -> None:
    """Drop what was not used for longest when there is too much. Others may do the same at the same time."""
    found: list[tuple[float, int, Path]] = []
    for path in folder.glob("*.tar"):
        with suppress(OSError):
            known = path.stat()
            found.append((known.st_mtime, known.st_size, path))
    over = sum(size for _, size, _ in found) - CACHED_MAX_BYTES
    for _, size, path in sorted(found):
        if over <= 0:
            return
        if path != newest:
            path.unlink(missing_ok=True)
            over -= size


# -- unpacking ----------------------------------------------------------------------------------------------------


def unpack(archive: Path, target: Path, *, max_bytes: int = UNPACKED_MAX_BYTES) -> None:
    """Everything of an archive, inside ``target``. ``BadRequest`` names the first entry that does not belong there."""
    links: list[tuple[tarfile.TarInfo, Path]] = []
    size = 0
    try:
        with tarfile.open(archive, "r:*") as opened:
            for number, entry in enumerate(_entries(opened)):
                size += entry.size
                if number >= ENTRIES_MAX or size > max_bytes:
                    raise TooLarge(
                        f"more than {ENTRIES_MAX} entries or {max_bytes} bytes",
                        object=f"archive {archive.name}",
                    )
                place = target / _inside(entry.name)
                if entry.isdir():
                    place.mkdir(mode=0o755, parents=True, exist_ok=True)
                elif entry.isreg():
                    _write(opened, entry, place)
                elif entry.issym() or entry.islnk():
                    links.append((entry, place))  # last, so that no file is written through one
                else:
                    raise _refusal(entry.name, "it is a device, a pipe or something else that is no file")
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BadRequest(f"it is no sound archive: {error}", object=f"archive {archive.name}") from error
    _link(links, target)


def _entries(opened: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (entry := opened.next()) is not None:
        opened.members = []  # type: ignore[attr-defined]  # or every entry of a large archive stays in memory
        yield entry


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise _refusal(name, "its name leads out of the folder")
    return path


def _write(opened: tarfile.TarFile, entry: tarfile.TarInfo, place: Path) -> None:
    content = opened.extractfile(entry)
    assert content is not None, "a regular file has content"
    place.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = 0o755 if entry.mode & 0o100 else 0o644
    with os.fdopen(os.open(place, flags, mode), "wb") as file:
        while piece := content.read(CHUNK_BYTES):
            file.write(piece)


def _link(links: list[tuple[tarfile.TarInfo, Path]], target: Path) -> None:
    """Make the links, then see where each really leads: what one means depends on the others."""
    top = target.resolve()
    made: list[tuple[tarfile.TarInfo, Path]] = []
    try:
        for entry, place in links:
            place.parent.mkdir(parents=True, exist_ok=True)
            if entry.issym():
                if PurePosixPath(entry.linkname).is_absolute():
                    raise _refusal(entry.name, "it is a link to an absolute path")
                place.symlink_to(entry.linkname)
            else:
                place.hardlink_to(target / _inside(entry.linkname))
            made.append((entry, place))
        for entry, place in made:
            found = Path(os.path.realpath(place))
            if found != top and top not in found.parents:
                raise _refusal(entry.name, "it is a link that leads out of the folder")
    except (BadRequest, FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        for _, place in made:
            place.unlink(missing_ok=True)
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(f"its links do not fit its files: {error}", object="archive") from error


def _refusal(name: str, why: str) -> BadRequest:
    return BadRequest(why, object=f"archive entry {name[:200]!a}", next_step="Pack the folder without it.")
