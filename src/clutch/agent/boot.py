"""Booting on behalf of a member whose image has no Python of ours: fetch its code and meet its peers on the node, then
let the container begin where boot would have ended, with the same folder and the same variables.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from clutch.agent.launch import boot_command
from clutch.wire.containers import ContainerSpec, Mount, RunAs
from clutch.wire.errors import Unavailable

WITHIN_S = 900.0
_SHOW = ("env", "-0")
_NODES_OWN = ("PWD", "LC_CTYPE")
"""What a process on the node has without having been told."""


async def boot_on_node(spec: ContainerSpec, python: str, base: Mapping[str, str], tmp: str) -> ContainerSpec:
    """The same specification after boot: its folder filled, and what boot told the command in its environment.
    ``Unavailable`` with boot's own words when it fails."""
    environment = {**base, **spec.environment, "TMPDIR": tmp}
    shown = await _run((*boot_command(python), *_SHOW), environment, spec)
    told = {name: value for name, value in shown.items() if name not in _NODES_OWN and environment.get(name) != value}
    kept = {name: value for name, value in spec.environment.items() if name != "CLUTCH_CODE"}
    mounts = (*spec.mounts, Mount(tmp, tmp, read_only=False))  # boot left its roster there
    return replace(spec, environment={**kept, **told}, mounts=mounts)


async def _run(argv: tuple[str, ...], environment: Mapping[str, str], spec: ContainerSpec) -> dict[str, str]:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=spec.cwd,
        env=dict(environment),
        start_new_session=True,
        **_as_user(spec.run_as),
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            shown, said = await process.communicate()
    except TimeoutError:
        raise Unavailable(f"boot did not end within {WITHIN_S:g} s", object=str(spec.member)) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        words = said.decode(errors="replace").strip().splitlines() or [f"boot exited with code {process.returncode}"]
        raise Unavailable(words[-1].removeprefix("clutch boot: "), object=str(spec.member))
    return dict(os.fsdecode(word).split("=", 1) for word in shown.split(b"\0") if b"=" in word)


def _as_user(run_as: RunAs | None) -> dict[str, Any]:
    if run_as is None or run_as.uid == os.geteuid():
        return {}
    return {"user": run_as.uid, "group": run_as.gid, "extra_groups": list(run_as.groups)}
