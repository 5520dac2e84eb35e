"""A folder for checkpoints, as the user sees it whom the trials run as.

A pool may run members as their submitters. Then what the master may do in a folder says nothing, and whatever it made
there as root would be in their way: it looks as that user does, and makes nothing but what a shared folder needs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from clutch.backends.blobs.keys import RESERVED
from clutch.backends.blobs.shared_folder import CHECKPOINTS, is_shared, share
from clutch.master.access.people import mapping
from clutch.master.services import Services
from clutch.wire.containers import RunAs
from clutch.wire.errors import BadRequest, ClutchError, NotFound
from clutch.wire.experiments import ExperimentSpec
from clutch.wire.ids import PoolName

LOOK_S = 10.0
_LOOK = (
    'root=$1; shift; for inner in "$@"; do place=$root/$inner; '
    'while [ ! -e "$place" ] && [ "$place" != / ]; do place=$(dirname "$place"); done; '
    '[ -d "$place" ] && [ -w "$place" ] && [ -x "$place" ] || { printf %s "$place"; exit 1; }; done'
)
"""Says the first folder that would be written to and may not be."""


async def mapped_user(services: Services, spec: ExperimentSpec) -> RunAs | None:
    """Whom the experiment's trials run as, where that is not their agent's own user.

    A user who is not mapped yet is refused by the pool, when a trial starts.
    """
    pool = (await services.loop.settled()).pools.get(PoolName(spec.resources.pool))
    if pool is None or not pool.run_as_users:
        return None
    try:
        found = mapping(await services.access.store.users.get(spec.owner))
    except NotFound:
        return None
    return RunAs(*found) if found is not None else None


async def check_folder_of(user: RunAs, folder: Path) -> None:
    """``BadRequest`` if the folder can be seen from here and this user cannot keep checkpoints in it."""
    refusing = await asyncio.to_thread(_refusing, user, folder)
    if refusing:
        raise BadRequest(
            f"checkpoints cannot be kept there: trials run as uid {user.uid}, which may not write in {refusing}",
            object=f"storage {folder}",
            path="checkpoint_storage",
            next_step="Have its owner give this user the right to, or run 'clutch checkpoint share FOLDER' there.",
        )


def _refusing(user: RunAs, folder: Path) -> str:
    """The folder that the user may not write to; empty: there is none, or it is not for us to know."""
    try:
        about = folder.stat()
    except OSError:
        return ""  # only the nodes see it: a trial looks before it trains
    if is_shared(about) and os.geteuid() in (0, about.st_uid):
        with suppress(ClutchError):  # a file system that trusts no root: what the user may do there decides
            share(folder)
    if os.geteuid() != 0:
        return ""
    try:
        looked = subprocess.run(
            ["/bin/sh", "-c", _LOOK, "look", str(folder), f"{RESERVED}/parts", CHECKPOINTS],
            user=user.uid,
            group=user.gid,
            extra_groups=list(user.groups),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOOK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{folder}, which does not answer within {LOOK_S:g} s"
    return looked.stdout.decode(errors="replace") if looked.returncode else ""
