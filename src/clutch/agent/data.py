"""Whether what a program needs is on this machine, looked at before it starts.

A share that hangs would hold up whoever touches it, so a small process of its own looks, as the user the member will
run as, and is left behind if it does not come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from clutch.agent.as_user import becoming
from clutch.wire.containers import RunAs
from clutch.wire.errors import DataMissing
from clutch.wire.ids import NodeId
from clutch.wire.programs import Mount, Program

LOOK_S = 10.0
_LOOK = 'for path in "$@"; do [ -e "$path" ] || { echo "is not there: $path"; exit 1; }; ' \
        '[ -r "$path" ] || { echo "may not be read: $path"; exit 1; }; done'  # fmt: skip


def needed_paths(program: Program) -> tuple[str, ...]:
    """What must be readable here: the sources of its mounts, and what it says itself that it needs."""
    return tuple(dict.fromkeys((*(mount.source for mount in program.mounts), *program.needs)))


async def check_data(paths: Sequence[str], run_as: RunAs | None, node: NodeId) -> None:
    """``DataMissing`` names the first path that is not there, may not be read or does not answer."""
    looking = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", _LOOK, "look", *paths,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        preexec_fn=becoming(run_as),
    )  # fmt: skip
    try:
        async with asyncio.timeout(LOOK_S):
            said, _ = await looking.communicate()
    except TimeoutError:
        looking.kill()
        raise DataMissing(
            f"its data does not answer within {LOOK_S:g} s on node {node}: {', '.join(paths)}",
            object=f"node {node}",
            next_step="Is the share mounted there, and does its server answer?",
        ) from None
    if looking.returncode:
        what, _, path = said.decode(errors="replace").strip().partition(": ")
        raise DataMissing(
            f"{path} {what} on node {node}",
            object=f"node {node}",
            next_step="Mount it there, exclude the node, or correct the path.",
        )


def allowed_mounts(mounts: Sequence[Mount], folders: Sequence[str], node: NodeId) -> tuple[Mount, ...]:
    """The same mounts by their real paths. ``DataMissing`` names the first that is in none of these folders, links
    followed; no folders: everything is allowed. Touches the disk."""
    if not folders:
        return tuple(mounts)
    within = [Path(folder).resolve() for folder in folders]
    found = []
    for mount in mounts:
        real = Path(mount.source).resolve()
        if not any(real.is_relative_to(folder) for folder in within):
            where = f"{mount.source} (which is {real})" if str(real) != mount.source else mount.source
            raise DataMissing(
                f"{where} may not be mounted on node {node}, which allows {', '.join(folders)}",
                object=f"node {node}",
                next_step="Put the data there, or have the node's agent started with --allow-mount for it.",
            )
        found.append(replace(mount, source=str(real)))
    return tuple(found)
