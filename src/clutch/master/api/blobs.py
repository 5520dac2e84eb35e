"""Routes of served blobs: a workspace's files, from the master's own store, for those without shared storage.

A user needs a role in the workspace (viewer to read, editor to change); a member reaches its own task's workspace.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Request, Response, delete, get, head, post, put
from litestar.exceptions import InternalServerException
from litestar.params import Parameter
from litestar.response import Stream

from clutch.master.access.caller import Caller
from clutch.master.push.served import PIECE_BYTES
from clutch.master.push.standing import require_member
from clutch.master.services import Services
from clutch.wire.access import CallerKind, Needs, Role
from clutch.wire.api import PAGE_MAX, Page
from clutch.wire.errors import BadRequest, Conflict, NotFound, Unavailable
from clutch.wire.push import (
    BLOBS,
    UPLOADS,
    Acknowledged,
    BlobKey,
    BlobView,
    CommitUpload,
    PartView,
    SweepUploads,
    Swept,
)

EITHER: dict[str, Any] = {"needs": Needs.MEMBER_OR_USER, "audit": False}
SHA256_HEADER, MODIFIED_HEADER = "Clutch-Sha256", "Clutch-Modified-At"
TRIES = 10
SWEEP_MAX_S = 10 * 365 * 86400.0
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
KEY = f"{BLOBS}/{{workspace:str}}/{{key:path}}"


def _admit(services: Services, caller: Caller, workspace: str, role: Role) -> None:
    """Nothing, if the caller may do this there. Where it may not look, there is no such workspace."""
    if caller.kind is not CallerKind.TASK:
        caller.require(workspace, f"workspace {workspace[:128]}", role)
        return
    standing = services.push.stand(require_member(caller.member, caller.fence))
    if standing.task.spec.workspace != workspace:
        raise NotFound("there is no such thing, or you may not see it", object=f"workspace {workspace[:128]}")


def _key(path: str) -> str:
    """Litestar gives a path with its first slash."""
    return path.removeprefix("/")


async def _body(request: Request[Any, Any, Any]) -> AsyncIterator[bytes]:
    """What is sent, as it comes. A caller that goes away in the middle ends it with an error, so nothing is stored."""
    try:
        async for chunk in request.stream():
            yield chunk
    except InternalServerException as error:
        raise Unavailable("the caller went away before the end", object="body") from error


def _range(header: str, view: BlobView) -> tuple[int, int] | None:
    """The bytes a request asks for, within the blob; None for all of it."""
    if not header:
        return None
    found = _RANGE.fullmatch(header)
    if found is None:
        raise BadRequest(f"the range {header[:80]!a}", object=f"blob {view.key}", next_step="Say bytes=FIRST-LAST.")
    first = int(found[1])
    last = int(found[2]) if found[2] else view.size_bytes - 1
    if first > view.size_bytes or last < first - 1:
        raise BadRequest(
            f"it has {view.size_bytes} bytes, none from {first}",
            object=f"blob {view.key}",
            next_step="Ask HEAD for its size.",
        )
    return first, min(last + 1, view.size_bytes)


def _headers(view: BlobView) -> dict[str, str]:
    return {
        "ETag": f'"{view.sha256}"',
        SHA256_HEADER: view.sha256,
        MODIFIED_HEADER: repr(view.modified_at),
        "Accept-Ranges": "bytes",
        "Content-Disposition": "attachment",
    }


@put(
    KEY,
    operation_id="put_blob",
    tags=["blobs"],
    opt=EITHER,
    status_code=200,
    request_max_body_size=None,
)
async def put_blob(
    services: Services, caller: Caller, request: Request[Any, Any, Any], workspace: str, key: str
) -> BlobView:
    """Store the body under a key. With 'If-None-Match: *' only if there is nothing yet."""
    _admit(services, caller, workspace, Role.EDITOR)
    condition = request.headers.get("if-none-match", "")
    if condition not in ("", "*"):
        raise BadRequest("If-None-Match can only be *", object=f"blob {_key(key)[:200]!a}")
    return await services.push.shelves.put(workspace, _key(key), _body(request), condition == "*")


@get(KEY, operation_id="get_blob", tags=["blobs"], opt=EITHER, media_type="application/octet-stream")
async def get_blob(
    services: Services, caller: Caller, request: Request[Any, Any, Any], workspace: str, key: str
) -> Response[Any]:
    """Get a blob, or one range of it. With 'If-Match' only that very version."""
    _admit(services, caller, workspace, Role.VIEWER)
    wanted = request.headers.get("if-match", "").strip('"')
    for _ in range(TRIES):
        try:
            return await _answer(services, request, workspace, _key(key), wanted)
        except Conflict:
            if wanted:
                raise  # that version is gone; else the next one is as good
    raise Unavailable("it is replaced faster than it can be read", object=f"blob {_key(key)}", next_step="Try again.")


async def _answer(
    services: Services, request: Request[Any, Any, Any], workspace: str, key: str, wanted: str
) -> Response[Any]:  # fmt: skip
    shelves = services.push.shelves
    view = await shelves.stat(workspace, key)
    if wanted and wanted != view.sha256:
        raise Conflict("it was replaced", object=f"blob {view.key}", next_step="Read it again from its beginning.")
    span = _range(request.headers.get("range", ""), view)
    first, stop = span or (0, view.size_bytes)
    status = 200 if span is None else 206
    headers = _headers(view)
    if span is not None:
        headers["Content-Range"] = f"bytes {first}-{max(first, stop - 1)}/{view.size_bytes}"
    if stop - first <= PIECE_BYTES:
        content = await shelves.piece(workspace, view, first, stop) if stop > first else b""
        return Response(content, status_code=status, headers=headers, media_type="application/octet-stream")
    headers["Content-Length"] = str(stop - first)
    return Stream(
        shelves.pieces(workspace, view, first, stop),
        status_code=status,
        headers=headers,
        media_type="application/octet-stream",
    )


@head(KEY, operation_id="stat_blob", tags=["blobs"], opt=EITHER)
async def stat_blob(services: Services, caller: Caller, workspace: str, key: str) -> Response[None]:
    """Get size, hash and age of a blob."""
    _admit(services, caller, workspace, Role.VIEWER)
    view = await services.push.shelves.stat(workspace, _key(key))
    return Response(None, headers={**_headers(view), "Content-Length": str(view.size_bytes)})


@delete(KEY, operation_id="delete_blob", tags=["blobs"], opt=EITHER, status_code=200)
async def delete_blob(services: Services, caller: Caller, workspace: str, key: str) -> Acknowledged:
    """Remove a blob; nothing happens if it is not there."""
    _admit(services, caller, workspace, Role.EDITOR)
    await services.push.shelves.delete(workspace, _key(key))
    return Acknowledged()


@get(f"{BLOBS}/{{workspace:str}}", operation_id="list_blobs", tags=["blobs"], opt=EITHER)
async def list_blobs(
    services: Services,
    caller: Caller,
    workspace: str,
    prefix: Annotated[str, Parameter(max_length=2_000)] = "",
    after: Annotated[str, Parameter(max_length=2_000)] = "",
    limit: Annotated[int, Parameter(ge=1, le=PAGE_MAX)] = 100,
) -> Page[BlobKey]:
    """List the keys in a folder and the folders in it, by name."""
    _admit(services, caller, workspace, Role.VIEWER)
    items = await services.push.shelves.page(workspace, prefix, after, limit)
    return Page(items, items[-1].key if len(items) == limit else "")


UPLOAD = f"{UPLOADS}/{{workspace:str}}/{{upload:str}}"


@get(UPLOAD, operation_id="list_parts", tags=["blobs"], opt=EITHER)
async def list_parts(services: Services, caller: Caller, workspace: str, upload: str) -> tuple[PartView, ...]:
    """List what is there of an upload, so that it can go on."""
    _admit(services, caller, workspace, Role.EDITOR)
    return await services.push.shelves.parts(workspace, upload)


@put(
    f"{UPLOAD}/{{part:str}}",
    operation_id="put_part",
    tags=["blobs"],
    opt=EITHER,
    status_code=200,
    request_max_body_size=None,
)
async def put_part(
    services: Services, caller: Caller, request: Request[Any, Any, Any], workspace: str, upload: str, part: str
) -> PartView:
    """Store one part of a large file, named by its place and its hash."""
    _admit(services, caller, workspace, Role.EDITOR)
    return await services.push.shelves.put_part(workspace, upload, part, _body(request))


@post(f"{UPLOAD}/commit", operation_id="commit_upload", tags=["blobs"], opt=EITHER, status_code=200)
async def commit_upload(
    services: Services, caller: Caller, workspace: str, upload: str, data: CommitUpload
) -> BlobView:
    """Join the parts of an upload into a blob."""
    _admit(services, caller, workspace, Role.EDITOR)
    return await services.push.shelves.commit(workspace, upload, data)


@delete(UPLOAD, operation_id="abort_upload", tags=["blobs"], opt=EITHER, status_code=200)
async def abort_upload(services: Services, caller: Caller, workspace: str, upload: str) -> Swept:
    """Drop an upload."""
    _admit(services, caller, workspace, Role.EDITOR)
    return Swept(await services.push.shelves.abort(workspace, upload))


@post(f"{UPLOADS}/{{workspace:str}}/sweep", operation_id="sweep_uploads", tags=["blobs"], opt=EITHER, status_code=200)
async def sweep_uploads(services: Services, caller: Caller, workspace: str, data: SweepUploads) -> Swept:
    """Drop the uploads of a workspace that nobody has touched for so long."""
    _admit(services, caller, workspace, Role.EDITOR)
    if not 0 <= data.older_than_s <= SWEEP_MAX_S:
        raise BadRequest(f"{data.older_than_s} seconds", object="sweep", path="older_than_s")
    return Swept(await services.push.shelves.sweep(workspace, data.older_than_s))


ROUTES: list[Any] = [
    put_blob,
    get_blob,
    stat_blob,
    delete_blob,
    list_blobs,
    list_parts,
    put_part,
    commit_upload,
    abort_upload,
    sweep_uploads,
]
