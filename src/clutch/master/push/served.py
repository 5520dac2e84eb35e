"""Blobs that the master serves from its own store, one folder for each workspace.

    workspaces/WORKSPACE/KEY                   what was put
    served/WORKSPACE/UPLOAD/000000-SHA256      a part of a large file on its way, named by its place and its own hash

Large files come in parts, so that no request is large and an upload goes on where it was cut off. ``commit`` joins the
parts into the blob; a reader sees it whole or not at all, because the store under it promises that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from heapq import nsmallest

from clutch.backends.blobs.base import Blob, FullBlobs, Listed
from clutch.backends.blobs.keys import check_key, check_prefix
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotFound, Stale, TooLarge
from clutch.wire.push import BlobKey, BlobView, CommitUpload, PartView

WORKSPACES, PARTS = "workspaces", "served"
PIECE_BYTES = 8 << 20
PARTS_MAX = 10_000
WORKSPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_UPLOAD = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"[0-9]{6}-[0-9a-f]{64}")


class Shelves:
    """The workspaces' blobs in one store."""

    def __init__(self, blobs: FullBlobs, now: Callable[[], float]) -> None:
        self._blobs = blobs
        self._now = now

    async def put(self, workspace: str, key: str, content: AsyncIterator[bytes], create: bool) -> BlobView:
        return _view(await self._blobs.put(_place(workspace, key), content, create=create), key)

    async def stat(self, workspace: str, key: str) -> BlobView:
        place = _place(workspace, key)
        with _named(key, place):
            return _view(await self._blobs.stat(place), key)

    async def piece(self, workspace: str, view: BlobView, start: int, stop: int) -> bytes:
        """Bytes of that very version of a blob; ``Conflict`` when it was replaced."""
        place = _place(workspace, view.key)
        content = b""
        with _named(view.key, place), suppress(BadRequest):  # it became shorter than where we read
            if start == 0 and stop == view.size_bytes:
                content = await self._blobs.get(place)  # the store checks a whole read against its hash
            else:
                content = await self._blobs.get(place, start, stop)
        if (await self.stat(workspace, view.key)).sha256 != view.sha256 or len(content) != stop - start:
            raise Conflict("it was replaced while it was read", object=f"blob {view.key}", next_step="Read it again.")
        return content

    async def pieces(self, workspace: str, view: BlobView, start: int, stop: int) -> AsyncIterator[bytes]:
        """The same, in pieces that fit into memory. One that changes under the reader is cut off, never mixed."""
        while start < stop:
            until = min(stop, start + PIECE_BYTES)
            yield await self.piece(workspace, view, start, until)
            start = until

    async def delete(self, workspace: str, key: str) -> None:
        await self._blobs.delete(_place(workspace, key))

    async def page(self, workspace: str, prefix: str, after: str, limit: int) -> tuple[BlobKey, ...]:
        """Keys in a folder by name, behind ``after``."""
        home = _place(workspace)
        folder = check_prefix(prefix)
        found = [
            BlobKey(listed.key.removeprefix(f"{home}/"), listed.modified_at)
            async for page in self._blobs.list(f"{home}/{folder}" if folder else home)
            for listed in page
        ]
        behind = (key for key in found if not after or key.key > after)
        return tuple(nsmallest(limit, behind, key=lambda key: key.key))

    # -- large files ---------------------------------------------------------------------------------------------

    async def put_part(self, workspace: str, upload: str, part: str, content: AsyncIterator[bytes]) -> PartView:
        """Keep a part. It must have the hash it is named by."""
        place = f"{_upload(workspace, upload)}/{_part(part)}"
        blob = await self._blobs.put(place, content)
        if blob.sha256 != part[7:]:
            await self._blobs.delete(place)
            raise BadRequest(
                "its bytes do not have the hash of its name", object=f"part {part}", next_step="Resend it."
            )
        return PartView(part=part, size_bytes=blob.size_bytes)

    async def parts(self, workspace: str, upload: str) -> tuple[PartView, ...]:
        """What is there of an upload."""
        found = await self._listed(_upload(workspace, upload))
        return tuple(sorted((PartView(part=one.key.rpartition("/")[2]) for one in found), key=lambda part: part.part))

    async def commit(self, workspace: str, upload: str, wanted: CommitUpload) -> BlobView:
        """Join an upload's parts into a blob, if they are all there and together have that hash."""
        home = _upload(workspace, upload)
        if len(wanted.parts) > PARTS_MAX:
            raise TooLarge(f"{len(wanted.parts)} parts, at most {PARTS_MAX}", object=f"upload {upload}", path="parts")
        names = [f"{home}/{_part(part)}" for part in wanted.parts]
        place = _place(workspace, wanted.key)
        try:
            blob = await self._blobs.put(place, self._joined(names, wanted), create=wanted.create)
        except Conflict as error:
            await self.abort(workspace, upload)
            raise Conflict(error.cause, object=f"blob {wanted.key}", next_step=error.next_step) from error
        with suppress(ClutchError):  # it is stored; what is left of the parts is swept
            await self.abort(workspace, upload)
        return _view(blob, wanted.key)

    async def _joined(self, names: list[str], wanted: CommitUpload) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        for name in names:
            try:
                content = await self._blobs.get(name)
            except NotFound as error:
                raise Stale(
                    f"the part {name.rpartition('/')[2]} is not there any more",
                    object=f"blob {wanted.key}",
                    next_step="Put the file again.",
                ) from error
            digest.update(content)
            yield content
        if digest.hexdigest() != wanted.sha256:  # raised before the end of the stream: nothing is stored
            raise BadRequest(
                "its parts together do not have that hash", object=f"blob {wanted.key}", next_step="Put the file again."
            )

    async def abort(self, workspace: str, upload: str) -> int:
        """Drop an upload; how many parts went."""
        found = await self._listed(_upload(workspace, upload))
        for one in found:
            await self._blobs.delete(one.key)
        return len(found)

    async def sweep(self, workspace: str, older_than_s: float) -> int:
        """Drop the uploads of a workspace that nobody has touched for so long; how many parts went."""
        home = f"{PARTS}/{_checked(workspace)}"
        newest: dict[str, float] = {}
        for listed in await self._listed(home):
            upload = listed.key.split("/")[2]
            newest[upload] = max(newest.get(upload, 0.0), listed.modified_at)
        before = self._now() - older_than_s
        return sum([await self.abort(workspace, upload) for upload in sorted(newest) if newest[upload] <= before])

    async def _listed(self, folder: str) -> list[Listed]:
        return [listed async for page in self._blobs.list(folder) for listed in page]


class _named:  # noqa: N801  a context manager that reads as a word
    """Errors about a place in the store, as errors about the key that was asked for."""

    def __init__(self, key: str, place: str) -> None:
        self._key, self._place = key, place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ClutchError):
            error.object = error.object.replace(self._place, self._key)


def _checked(workspace: str) -> str:
    if not WORKSPACE.fullmatch(workspace):
        raise NotFound("there is no such workspace", object=f"workspace {workspace[:80]!a}")
    return workspace


def _place(workspace: str, key: str | None = None) -> str:
    home = f"{WORKSPACES}/{_checked(workspace)}"
    if key is None:
        return home
    check_key(key)
    return f"{home}/{key}"


def _upload(workspace: str, upload: str) -> str:
    if not _UPLOAD.fullmatch(upload):
        raise BadRequest("this is no upload", object=f"upload {upload[:80]!a}", next_step="Give 32 hex digits.")
    return f"{PARTS}/{_checked(workspace)}/{upload}"


def _part(part: str) -> str:
    if not _PART.fullmatch(part):
        raise BadRequest("this is no part", object=f"part {part[:80]!a}", next_step="Name it 000000-SHA256.")
    return part


def _view(blob: Blob, key: str) -> BlobView:
    return BlobView(key=key, size_bytes=blob.size_bytes, sha256=blob.sha256, modified_at=blob.modified_at)
