"""Where experiments keep their checkpoints, as the master sees it: tried before a training begins, and read from.

No credentials stand in a configuration. A ``Storage`` names a secret of its workspace, which holds ``KEY:SECRET``.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from clutch.backends.blobs.base import FullBlobs
from clutch.backends.blobs.directory import DirectoryBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.master.services import Services
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotFound
from clutch.wire.experiment_api import StorageWay
from clutch.wire.experiments import ExperimentSpec, Storage
from clutch.workloads.experiment.service.storage_users import check_folder_of, mapped_user

CHECK_S = 30.0
PIECE_BYTES = 8 << 20
FILE, CLASS = "file://", "class:"
PROOF = "storage-proof"


async def check_storage(services: Services, spec: ExperimentSpec) -> None:
    """Nothing, if checkpoints can be kept there as far as a master can tell. ``BadRequest`` says what is wrong.

    A folder that only the nodes see, and a class of the user's own, are not for a master to judge.
    """
    storage = spec.storage
    folder = folder_of(storage.address)
    user = None if folder is None else await mapped_user(services, spec)
    if folder is not None and user is not None:
        await check_folder_of(user, folder)
        return
    if not can_be_opened(storage.address):
        return
    try:
        async with asyncio.timeout(CHECK_S), opened(services, storage, spec.workspace, may_create=True) as blobs:
            await blobs.check()
    except TimeoutError:
        raise BadRequest(
            f"it does not answer within {CHECK_S:g} s",
            object=f"storage {storage.address}",
            path="checkpoint_storage",
            next_step="Check the address and whether it can be reached from the master.",
        ) from None
    except ClutchError as error:
        raise BadRequest(
            f"checkpoints cannot be kept there: {error.cause}",
            object=f"storage {storage.address}",
            path="checkpoint_storage",
            next_step=error.next_step or "Check the address, the bucket and the secret that opens it.",
        ) from error


def can_be_opened(address: str) -> bool:
    """Whether a master can open it: not a class, and a folder only where it is there and may be written."""
    if not address or address.startswith(CLASS):
        return False
    folder = folder_of(address)
    return folder is None or (folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK))


def folder_of(address: str) -> Path | None:
    """The folder that an address names, if it names one."""
    return Path(unquote(address.removeprefix(FILE))) if address.startswith((FILE, "/")) else None


@asynccontextmanager
async def opened(
    services: Services, storage: Storage, workspace: str, *, may_create: bool = False
) -> AsyncIterator[FullBlobs]:
    """The blobs of a storage, with the credentials of its secret. Who only reads makes nothing in a folder."""
    keys = await _keys(services, storage, workspace)
    folder = None if may_create else folder_of(storage.address)
    blobs: FullBlobs = await open_blobs(storage.address, keys=keys) if folder is None else DirectoryBlobs(folder)
    try:
        yield blobs
    finally:
        with suppress(ClutchError):
            await blobs.close()


async def _keys(services: Services, storage: Storage, workspace: str) -> tuple[str, str] | None:
    if not storage.secret:
        return None
    values = await services.access.store.secrets.values(workspace, (storage.secret,))
    if storage.secret not in values:
        raise NotFound(
            f"workspace {workspace} has no secret {storage.secret!r}",
            object=f"storage {storage.address}",
            next_step="Put it with 'clutch secret put', as KEY:SECRET.",
        )
    key, colon, secret = values[storage.secret].partition(":")
    if not colon:
        raise BadRequest(
            "it does not hold KEY:SECRET", object=f"secret {workspace}/{storage.secret}", next_step="Put it again."
        )
    return key, secret


async def file_pieces(
    services: Services, storage: Storage, workspace: str, key: str, size_bytes: int
) -> AsyncIterator[bytes]:
    """A file of a checkpoint from the storage that holds it, in pieces that fit into memory."""
    if not can_be_opened(storage.address):
        raise Conflict(
            "the master cannot reach the storage that holds it",
            object=f"storage {storage.address}",
            next_step="Read it in a trial: fork its experiment with --set searcher.source_checkpoint_uuid=CHECKPOINT.",
        )
    async with opened(services, storage, workspace) as blobs:
        for start in range(0, size_bytes, PIECE_BYTES):
            yield await blobs.get(key, start, min(size_bytes, start + PIECE_BYTES))


async def storage_way(services: Services) -> StorageWay:
    """How somebody on the same machine, or with the same folder mounted, reaches the blobs without us."""
    folder = blobs_folder(services)
    if folder is None:
        return StorageWay()
    try:
        content = await asyncio.to_thread(_proof, folder)
    except OSError:
        return StorageWay()
    return StorageWay(folder=str(folder), proof=PROOF, content=content)


def blobs_folder(services: Services) -> Path | None:
    """The blobs' own folder, where they are one."""
    settings = services.settings
    address = settings.blobs or str(settings.data / "blobs")
    if address.startswith(FILE):
        return Path(unquote(address.removeprefix(FILE)))
    return None if ":" in address else Path(address).absolute()


def _proof(folder: Path) -> str:
    """What the proof file holds: made once for a folder, so that masters which share it agree."""
    path = folder / PROOF
    with suppress(FileNotFoundError):
        return path.read_text()
    draft = folder / f"{PROOF}.{secrets.token_hex(8)}"
    draft.write_text(secrets.token_hex(16))
    try:
        os.link(draft, path)  # fails if another was as far: then that one counts
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text()
