"""The ways to where checkpoints are kept: an address, the workspace's blobs through a master, their very folder, or a
class of the user's.

Each gives a function that opens blobs for one call. A folder is made at most once: one that was there and is not any
more has been unmounted or removed, and what is written into an empty one in its place would be lost.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from clutch.wire.errors import BadRequest, NotAllowed, Unavailable
from clutch.wire.experiment_api import StorageWay
from clutch.wire.experiments import Storage

if TYPE_CHECKING:
    from clutch.backends.blobs.base import FullBlobs
    from clutch.runtime.checkpoint import Served

Opening = Callable[[bool], Awaitable["FullBlobs"]]


def by_address(address: str, secret: str) -> Opening:
    """Any address of blobs; ``secret`` is ``KEY:SECRET``, for ``gs:`` the JSON of a service account."""
    keys: tuple[str, str] | None = None
    if secret:
        key, colon, rest = ("", ":", secret) if address.startswith("gs:") else secret.partition(":")
        if not colon:
            raise BadRequest(
                "the secret of this storage is not KEY:SECRET", object="storage", next_step="Store it as KEY:SECRET."
            )
        keys = (key, rest.strip())
    marks = Path(unquote(address.removeprefix("file://"))) / ".clutch" if address.startswith("file:///") else None
    seen = False

    async def opening(may_create: bool) -> FullBlobs:
        nonlocal seen
        from clutch.backends.blobs.files import typed
        from clutch.backends.blobs.opening import open_blobs

        if marks is not None and (seen or not may_create):
            with typed(f"folder {marks.parent}"):
                is_there = marks.is_dir()
            if not is_there:
                raise Unavailable(
                    "the folder is gone" if seen else "no blobs are kept in this folder",
                    object=f"folder {marks.parent}",
                    next_step="See whether it is mounted on this machine.",
                )
        blobs = await open_blobs(address, keys=keys)
        seen = True
        return blobs

    return opening


def check_folder(address: str) -> None:
    """``NotAllowed`` if this user cannot keep checkpoints in the folder of a ``file:`` address. Makes nothing."""
    root = Path(unquote(address.removeprefix("file://")))
    for inner in (root / ".clutch" / "parts", root / "checkpoints"):
        there = next((place for place in (inner, *inner.parents) if os.access(place, os.F_OK)), root)
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            continue
        about = there.stat()
        raise NotAllowed(
            f"checkpoints cannot be kept there: {there} belongs to uid {about.st_uid} with mode "
            f"{stat.S_IMODE(about.st_mode):o}, and this is uid {os.geteuid()}",
            object=f"storage {address}",
            next_step="Have its owner give this user the right to, or run 'clutch checkpoint share FOLDER' there.",
        )


def through_master(served: Served) -> Opening:
    async def opening(may_create: bool) -> FullBlobs:
        from clutch.backends.blobs.opening import open_blobs

        masters = ",".join(one if "://" in one else f"http://{one}" for one in served.masters)
        trusted = f"?ca_file={quote(served.ca_file)}" if served.ca_file else ""
        return await open_blobs(
            f"served:{masters}/{quote(served.workspace, safe='')}{trusted}", keys=("token", served.token)
        )

    return opening


def direct_folder(way: StorageWay | None) -> Path | None:
    """The folder of the cluster's blobs, if it is on this machine and belongs to this user; None: ask the master.

    A folder of the same name on another machine does not hold the proof. One of another user may be read but is left
    alone: what we would write there its owner could not remove.
    """
    if way is None or not way.folder or not way.proof or not way.content:
        return None
    folder = Path(way.folder)
    try:
        proof = (folder / way.proof).resolve()
        if folder.resolve() not in proof.parents or proof.read_text() != way.content:
            return None
        if folder.stat().st_uid != os.geteuid() or not os.access(folder / ".clutch" / "parts", os.W_OK | os.X_OK):
            return None
    except (OSError, ValueError):
        return None
    return folder


def own_class(storage: Storage, secret: str, here: Path) -> Opening:
    """A user's own class, ``class:MODULE:NAME``, made once, when it is first needed."""
    _, _, name = storage.address.partition(":")
    made: list[FullBlobs] = []

    async def opening(may_create: bool) -> FullBlobs:
        from clutch.backends.blobs.own import OwnBlobs

        if not made:
            options = {**storage.options, **({"secret": secret} if secret else {})}
            made.append(OwnBlobs(_imported(name, here)(**options), name))
        return made[0]

    return opening


def _imported(name: str, here: Path) -> type:
    module, _, inner = name.partition(":")
    subject = f"storage class:{name}"
    if not module or not inner.isidentifier():
        raise BadRequest("this names no class", object=subject, next_step="Write class:MODULE:NAME.")
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    try:
        found = getattr(importlib.import_module(module), inner)
    except ModuleNotFoundError as missing:
        raise BadRequest(
            f"there is no module {missing.name!r}",
            object=subject,
            next_step=f"Put it into the working directory ({here}) or install it.",
        ) from missing
    except AttributeError as missing:
        raise BadRequest(f"{module} has no {inner}", object=subject, next_step="Correct the name.") from missing
    if not isinstance(found, type):
        raise BadRequest(f"{inner} is not a class", object=subject, next_step="Name a class.")
    return found
