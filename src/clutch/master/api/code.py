"""Working directories over HTTP: uploaded once under the digest of their bytes, fetched by the members that run them.

The bytes are one blob, whoever uploads them. Beside it lie marks that say who may have it: the user who uploaded it,
and every workspace in which a task was submitted with it. A digest alone opens nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Request, get, head, put
from litestar.params import Parameter
from litestar.response import Stream

from clutch.backends.blobs.base import Blob
from clutch.core.checks import NAME
from clutch.master.access.caller import Caller
from clutch.master.services import Services
from clutch.master.submission import DIGEST
from clutch.wire.access import CallerKind, Needs, Role
from clutch.wire.api import API, CodeView
from clutch.wire.errors import BadRequest, Conflict, NotAllowed, NotFound, TooLarge
from clutch.wire.programs import program_in

CODE = f"{API}/code"
PIECE_BYTES = 1 << 20
MEDIA_TYPE = "application/octet-stream"

Digest = Annotated[str, Parameter(max_length=80, description="`sha256:` and 64 hexadecimal digits.")]
Workspace = Annotated[str, Parameter(max_length=128, description="Share it with this workspace at once.")]


def blob_key(digest: str) -> str:
    return f"code/{digest.removeprefix('sha256:')}"


def _mark_key(digest: str, scope: str) -> str:
    return f"code-of/{digest.removeprefix('sha256:')}/{scope}"


def _no_code(digest: str) -> NotFound:
    return NotFound(
        "nothing with this digest was uploaded, or you may not see it",
        object=f"code {digest[:80]}",
        next_step="Upload it with PUT /api/v1/code/DIGEST.",
    )


def _check_digest(digest: str) -> None:
    if not DIGEST.fullmatch(digest):
        raise BadRequest("it is not a digest", object="code", path="digest", next_step="Give 'sha256:' and 64 digits.")


async def _marked(services: Services, digest: str, scope: str) -> bool:
    try:
        await services.blobs.stat(_mark_key(digest, scope))
    except NotFound:
        return False
    return True


async def may_have(services: Services, caller: Caller, digest: str) -> bool:
    """Whether a user may see code: their own upload, that of a workspace they see, or any with a role over all."""
    visible = caller.filters()
    if visible is None or await _marked(services, digest, f"user:{caller.name}"):
        return True
    for workspace in visible:
        if await _marked(services, digest, f"workspace:{workspace}"):
            return True
    return False


async def _check_reader(services: Services, caller: Caller, digest: str) -> None:
    """Raises ``NotFound`` unless a member runs this very code, or a user may have it."""
    if caller.kind is CallerKind.TASK:
        assert caller.member is not None
        task = (await services.loop.settled()).tasks.get(caller.member.task)
        program = program_in(task.spec.payload) if task is not None else None
        if program is None or program.code != digest:
            raise _no_code(digest)
    elif not await may_have(services, caller, digest):
        raise _no_code(digest)


async def share_code(services: Services, caller: Caller, digest: str, workspace: str) -> None:
    """A task of this workspace will run it: its members and readers may have it. ``BadRequest`` when there is none."""
    if not digest:
        return
    try:
        await services.blobs.stat(blob_key(digest))
        seen = await may_have(services, caller, digest)
    except NotFound:
        seen = False
    if not seen:
        raise BadRequest(
            "the working directory was not uploaded",
            object=f"code {digest}",
            path="program.code",
            next_step=f"Upload it with PUT {CODE}/{digest}.",
        )
    await _mark(services, digest, f"workspace:{workspace}")


async def _mark(services: Services, digest: str, scope: str) -> None:
    if not await _marked(services, digest, scope):
        await services.blobs.put(_mark_key(digest, scope), b"")


# -- uploading ----------------------------------------------------------------------------------------------------


@put(
    f"{CODE}/{{digest:str}}",
    operation_id="put_code",
    tags=["code"],
    opt={"needs": Needs.USER},
    request_max_body_size=None,
    status_code=200,
)
async def put_code(
    request: Request[Any, Any, Any], services: Services, caller: Caller, digest: Digest, workspace: Workspace = ""
) -> CodeView:
    """Upload a working directory under the digest of its bytes. Again is the same."""
    _check_digest(digest)
    _check_uploader(caller, workspace)
    limit = services.settings.upload_max_bytes
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > limit:
        raise _too_large(digest, limit)
    try:
        stored = await services.blobs.stat(blob_key(digest))
    except NotFound:
        stored = await _store(services, request, digest, limit)
    else:
        await _same_bytes(request, digest, limit)
    await _mark(services, digest, f"user:{caller.name}")
    if workspace:
        await _mark(services, digest, f"workspace:{workspace}")
    return CodeView(digest=digest, size_bytes=stored.size_bytes)


def _check_uploader(caller: Caller, workspace: str) -> None:
    if workspace:
        if not NAME.fullmatch(workspace):
            raise BadRequest("it is not a workspace's name", object="code", path="workspace")
        caller.require(workspace, f"workspace {workspace}", Role.EDITOR)
        return
    visible = caller.filters()
    places = ("default",) if visible is None else visible
    if not any(caller.role_in(place) in (Role.EDITOR, Role.ADMIN) for place in places):
        raise NotAllowed(
            f"{caller} may submit nowhere, so there is nothing to upload for",
            object=str(caller),
            next_step="Ask for the role editor in a workspace.",
        )


def _too_large(digest: str, limit: int) -> TooLarge:
    return TooLarge(
        f"a working directory may have {limit} bytes when packed ({limit / 2**20:g} MiB)",
        object=f"code {digest}",
        next_step="Name what need not go along in .clutchignore, or put data into a blob store or a mount.",
    )


async def _checked(request: Request[Any, Any, Any], digest: str, limit: int) -> AsyncIterator[bytes]:
    """The body, which raises at its end unless it is what its digest says: nothing is then stored."""
    found, size = hashlib.sha256(), 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise _too_large(digest, limit)
        found.update(piece)
        yield piece
    if f"sha256:{found.hexdigest()}" != digest:
        raise BadRequest(
            f"the bytes that came have the digest sha256:{found.hexdigest()}",
            object=f"code {digest}",
            path="digest",
            next_step="Send it again.",
        )


async def _store(services: Services, request: Request[Any, Any, Any], digest: str, limit: int) -> Blob:
    try:
        return await services.blobs.put(blob_key(digest), _checked(request, digest, limit), create=True)
    except Conflict:  # somebody else was as far
        return await services.blobs.stat(blob_key(digest))


async def _same_bytes(request: Request[Any, Any, Any], digest: str, limit: int) -> None:
    """Whoever has not sent the bytes may not have them: knowing a digest is no right to what it stands for."""
    async for _ in _checked(request, digest, limit):
        pass


# -- fetching -----------------------------------------------------------------------------------------------------


@head(f"{CODE}/{{digest:str}}", operation_id="has_code", tags=["code"], opt={"needs": Needs.MEMBER_OR_USER})
async def has_code(services: Services, caller: Caller, digest: Digest) -> None:
    """Whether it was uploaded and you may have it."""
    _check_digest(digest)
    await _check_reader(services, caller, digest)
    await services.blobs.stat(blob_key(digest))


@get(
    f"{CODE}/{{digest:str}}",
    operation_id="get_code",
    tags=["code"],
    opt={"needs": Needs.MEMBER_OR_USER},
    media_type=MEDIA_TYPE,
)
async def get_code(services: Services, caller: Caller, digest: Digest) -> Stream:
    """The packed working directory."""
    _check_digest(digest)
    await _check_reader(services, caller, digest)
    blob = await services.blobs.stat(blob_key(digest))
    headers = {"Content-Length": str(blob.size_bytes), "ETag": f'"{digest}"'}
    return Stream(_pieces(services, blob), media_type=MEDIA_TYPE, headers=headers)


async def _pieces(services: Services, blob: Blob) -> AsyncIterator[bytes]:
    for start in range(0, blob.size_bytes, PIECE_BYTES):
        yield await services.blobs.get(blob.key, start, min(start + PIECE_BYTES, blob.size_bytes))


ROUTES: list[Any] = [put_code, has_code, get_code]
