"""A working directory as one content-addressed archive: the same files give the same bytes, whoever packs them, when
and where.

The archive is a gzipped tar: entries sorted, times zero, owners nobody, modes kept. Links that stay inside are kept as
links; those that lead out, sockets and devices are left out and named, so that nothing goes missing unsaid.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from clutch.sdk.ignore import FILE_NAME, Rule, default_rules, is_ignored, parse_rules
from clutch.wire.api import UPLOAD_MAX_BYTES
from clutch.wire.errors import BadRequest, Conflict, NotFound, TooLarge

COMPRESSION = 4
"""Half the time of gzip's default for a few percent more bytes."""
MEMORY_MAX_BYTES = 8 * 2**20
"""A larger archive is kept in a temporary file while it is sent."""
CHUNK_BYTES = 256 * 2**10
LARGEST_SHOWN = 8

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are done."""


class Entry(msgspec.Struct, frozen=True):
    """One thing that is packed. ``link`` is where a symbolic link leads, as it says itself."""

    path: str
    mode: int
    size_bytes: int = 0
    link: str = ""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


class Contents(msgspec.Struct, frozen=True):
    """What would be packed, in order, and what was left out, with the reason."""

    entries: tuple[Entry, ...]
    left_out: tuple[str, ...]


class Packed:
    """An archive ready to be sent. Close it, or use it as a context, to free its file."""

    def __init__(self, file: IO[bytes], digest: str, size_bytes: int, contents: Contents) -> None:
        self.file = file
        self.digest = digest
        """``sha256:HEX`` of the archive."""
        self.size_bytes = size_bytes
        self.contents = contents

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()

    def chunks(self, progress: Progress | None = None) -> Iterator[bytes]:
        """The archive from its beginning; can be asked again for another try."""
        self.file.seek(0)
        done = 0
        while chunk := self.file.read(CHUNK_BYTES):
            yield chunk
            done += len(chunk)
            if progress is not None:
                progress(done, self.size_bytes)


class _Sink:
    """Takes the archive's bytes: keeps, counts and hashes them, and stops at the limit."""

    def __init__(self, file: IO[bytes], limit_bytes: int) -> None:
        self.file = file
        self.hash = hashlib.sha256()
        self.size_bytes = 0
        self.limit_bytes = limit_bytes

    def write(self, data: bytes) -> int:
        self.size_bytes += len(data)
        if self.size_bytes > self.limit_bytes:
            raise _Full
        self.hash.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


class _Full(Exception):
    pass


def pack(directory: Path, *, limit_bytes: int = UPLOAD_MAX_BYTES, progress: Progress | None = None) -> Packed:
    """A working directory as an archive. ``progress`` is told how much of it was read."""
    contents = survey(directory)
    total = sum(entry.size_bytes for entry in contents.entries)
    file = tempfile.SpooledTemporaryFile(max_size=MEMORY_MAX_BYTES)  # noqa: SIM115 -- closed by who holds the archive
    sink = _Sink(file, limit_bytes)
    try:
        _write(directory, contents, sink, lambda done: progress(done, total) if progress is not None else None)
    except _Full:
        file.close()
        raise _too_large(directory, contents, limit_bytes) from None
    except BaseException:
        file.close()
        raise
    return Packed(file, f"sha256:{sink.hash.hexdigest()}", sink.size_bytes, contents)


def _write(directory: Path, contents: Contents, sink: _Sink, progress: Callable[[int], None]) -> None:
    done = 0
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=COMPRESSION, fileobj=sink, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive,
    ):
        for entry in contents.entries:
            _add(archive, directory / entry.path, entry)
            done += entry.size_bytes
            progress(done)


def _add(archive: tarfile.TarFile, path: Path, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.path)
    info.mode = stat.S_IMODE(entry.mode)
    if entry.is_folder:
        info.type = tarfile.DIRTYPE
    elif entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    else:
        info.size = entry.size_bytes
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size != entry.size_bytes:
                    raise _changed(path)
                archive.addfile(info, file)
        except PermissionError as error:
            raise _unreadable(path, error) from error
        except OSError as error:
            raise _changed(path) from error
        return
    archive.addfile(info)


def survey(directory: Path) -> Contents:
    """What of a directory is packed, sorted, and what is not although no rule says so."""
    try:
        root = directory.resolve(strict=True)
        found = sorted(_walk(root, b"", default_rules()))
    except FileNotFoundError:
        raise NotFound("there is no such folder", object=str(directory), next_step="Name another one.") from None
    except NotADirectoryError:
        raise BadRequest("it is not a folder", object=str(directory), next_step="Name the folder it is in.") from None
    entries = tuple(entry for _, entry, _ in found if entry is not None)
    return Contents(entries, tuple(reason for _, _, reason in found if reason))


def _walk(root: Path, base: bytes, rules: tuple[Rule, ...]) -> Iterator[tuple[bytes, Entry | None, str]]:
    """Everything below a folder that no rule ignores: its path, and either what is packed or why it is not."""
    folder = root / os.fsdecode(base)
    try:
        own = (folder / FILE_NAME).read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        own = b""
    rules = (*rules, *parse_rules(own, base))
    try:
        with os.scandir(folder) as listing:
            children = list(listing)
    except PermissionError as error:
        raise _unreadable(folder, error) from error
    for child in children:
        path = base + os.fsencode(child.name)
        name = os.fsdecode(path)
        is_folder = child.is_dir(follow_symlinks=False)
        if is_ignored(rules, path, is_folder):
            continue
        status = child.stat(follow_symlinks=False)
        if is_folder:
            yield path, Entry(name, status.st_mode), ""
            yield from _walk(root, path + b"/", rules)
        elif child.is_symlink():
            link = os.readlink(child.path)  # noqa: PTH115 -- the very characters, not a normalised path
            inside = _stays_inside(root, Path(child.path), link)
            reason = "" if inside else f"{name} (a link to {link}, outside the folder)"
            yield path, Entry(name, status.st_mode, link=link) if inside else None, reason
        elif stat.S_ISREG(status.st_mode):
            yield path, Entry(name, status.st_mode, status.st_size), ""
        else:
            yield path, None, f"{name} (neither a file, a folder nor a link)"


def _stays_inside(root: Path, place: Path, link: str) -> bool:
    """Both as the link is written, at every step of it, and as the disk resolves it: it may lead through another."""
    depth = len(place.parent.relative_to(root).parts)
    for step in link.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(step, 1)
        if depth < 0:
            return False
    resolved = os.path.realpath(place)
    return not link.startswith("/") and os.path.commonpath((root, resolved)) == str(root)


def _changed(path: Path) -> Conflict:
    return Conflict("it changed while it was packed", object=str(path), next_step="Run the command again.")


def _unreadable(path: Path, error: OSError) -> BadRequest:
    return BadRequest(
        f"it cannot be read: {error.strerror}",
        object=str(path),
        next_step=f"Make it readable, or write its name into {FILE_NAME}.",
    )


def _too_large(directory: Path, contents: Contents, limit_bytes: int) -> TooLarge:
    return TooLarge(
        f"it packs to more than {human_size(limit_bytes)}",
        object=str(directory),
        next_step=(
            f"Largest: {'; '.join(largest(contents.entries))}. Write what the task does not need into {FILE_NAME}, "
            "mount large data with --mount, or choose a smaller folder with --code."
        ),
    )


def largest(entries: tuple[Entry, ...], shown: int = LARGEST_SHOWN) -> tuple[str, ...]:
    """The largest files and folders, folders with all that is in them, largest first."""
    sizes: dict[str, int] = {}
    for entry in entries:
        if not entry.size_bytes:
            continue
        sizes[entry.path] = entry.size_bytes
        step = entry.path
        while "/" in step:
            step = step.rpartition("/")[0]
            sizes[f"{step}/"] = sizes.get(f"{step}/", 0) + entry.size_bytes
    ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:shown]
    return tuple(f"{path} {human_size(size)}" for path, size in ranked)


def human_size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.3g} TiB"
