"""A checkpoint's files on this machine: straight from where they are kept when that can be reached, else by the master.

The one place where the SDK stands on more than the wire: the store that trials write to is read by the same code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clutch.sdk import experiment_calls as calls
from clutch.sdk.where import surroundings
from clutch.wire.errors import BadRequest, ClutchError, Conflict, Corrupt
from clutch.wire.experiment_api import CheckpointDetail, StorageWay
from clutch.wire.experiments import CheckpointState, Storage
from clutch.wire.push import CheckpointFile

if TYPE_CHECKING:
    from clutch.runtime.checkpoint import Store
    from clutch.sdk.client import Client

Selector = Callable[[str], bool]
PIECE_BYTES = 1 << 20
SECRET = "CLUTCH_STORAGE_SECRET"
"""Where a user may put the ``KEY:SECRET`` of a store; without it, what needs one is read through the master."""


def download(
    client: Client, detail: CheckpointDetail, folder: Path, selector: Selector | None, *, through_master: bool
) -> Path:  # fmt: skip
    """The folder, with every file that is meant in it, each as the manifest says."""
    row = detail.row
    if row.state not in (CheckpointState.COMMITTED, CheckpointState.PARTIAL):
        raise Conflict(f"it is {row.state}", object=f"checkpoint {row.key}", next_step="Use another checkpoint.")
    files = [file for file in detail.files if selector is None or selector(file.path)]
    folder.mkdir(parents=True, exist_ok=True)
    store = None if through_master else _straight(client, detail)
    if store is not None:
        try:
            store.download(detail.prefix, files, folder)
            return folder
        except Corrupt:
            raise
        except ClutchError:
            pass  # it can be seen from elsewhere, but not from here: the master is asked
    for file in files:
        _fetch(client, row.key, file, folder)
    return folder


def _straight(client: Client, detail: CheckpointDetail) -> Store | None:
    """The store itself, if this machine may reach it."""
    from clutch.runtime.checkpoint import Served, Store
    from clutch.runtime.checkpoint_ways import direct_folder

    address, secret = detail.row.storage, surroundings().get(SECRET, "")
    if not address:
        way = _way(client, detail.row.workspace)
        if direct_folder(way) is None:
            return None
        served = Served(masters=(str(client.address),), token="", workspace=detail.row.workspace)
        return Store.open(Storage(), served=served, way=way)
    if address.startswith("class:") or (detail.secret and not secret):
        return None
    if address.startswith("file://") and not Path(address.removeprefix("file://")).is_dir():
        return None
    try:
        return Store.open(Storage(address=address), secret=secret)
    except BadRequest:  # a client library that is not installed here
        return None


def _way(client: Client, workspace: str) -> StorageWay | None:
    try:
        return client.perform(calls.get_storage(workspace))
    except ClutchError:
        return None


def _fetch(client: Client, checkpoint: str, file: CheckpointFile, folder: Path) -> None:
    """One file through the master. It gets its name when it is whole and checked; one that is there is kept."""
    place = folder / file.path
    if not place.resolve().is_relative_to(folder.resolve()):
        raise Corrupt("its path leads out of the folder", object=f"file {file.path!a}")
    place.parent.mkdir(parents=True, exist_ok=True)
    if file.is_folder:
        place.mkdir(exist_ok=True)
        return
    if place.is_file() and place.stat().st_size == file.size_bytes and _digest(place) == file.sha256:
        return
    aside = place.with_name(f".{place.name}.part")
    found = hashlib.sha256()
    with aside.open("wb") as sink:
        for piece in client.pieces(calls.get_checkpoint_file(checkpoint, file.path)):
            found.update(piece)
            sink.write(piece)
    if found.hexdigest() != file.sha256:
        aside.unlink()
        raise Corrupt(
            "what came is not what the manifest says",
            object=f"file {file.path} of checkpoint {checkpoint}",
            next_step="Try again; if it stays so, use another checkpoint.",
        )
    aside.replace(place)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as source:
        while piece := source.read(PIECE_BYTES):
            found.update(piece)
    return found.hexdigest()
