"""What an agent has to do with boot: booting on behalf of a member whose image has no Python of ours, and reading the
last words of a boot, or of the process over a member's ranks, that say why the member ended.

For an image, code is fetched and peers are met on the node; then the container begins where boot would have ended, with
the same folders and the same variables. Only an image whose ranks are started by us boots inside, and must have clutch.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from clutch.agent.as_user import becoming
from clutch.agent.folders import is_anybodys
from clutch.agent.last_words import HEARD, as_told
from clutch.agent.launch import IMAGE_PYTHON, LAST_WORDS, boot_command
from clutch.wire.containers import REASON_MAX, ContainerSpec
from clutch.wire.errors import Unavailable
from clutch.wire.last_words import FAILED, understood
from clutch.wire.messages import Exit, ExitCause
from clutch.wire.push import BOOT_CLUSTER, BOOT_REFUSED

WITHIN_S = 900.0
ENTRIES_MAX = 10_000
"""Of a folder that is the user's, looked through for what its ranks have left."""
_BY_BOOT = "boot: "
_SHOW = ("/usr/bin/env", "-0")
_NODES_OWN = ("PWD", "LC_CTYPE")
"""What a process on the node has without having been told."""


async def boot_on_node(spec: ContainerSpec, python: str, base: Mapping[str, str], tmp: str) -> ContainerSpec:
    """The same specification after boot: its folder filled, and what boot told the command in its environment.
    ``Unavailable`` with boot's own words when it fails."""
    ours = {name: value for name, value in spec.environment.items() if name.startswith("CLUTCH_")}
    environment = {**base, **ours, "TMPDIR": tmp}  # the rest is meant for the image: its PATH, its libraries
    shown = await _run((*boot_command(python), *_SHOW), environment, spec)
    told = {name: value for name, value in shown.items() if name not in _NODES_OWN and environment.get(name) != value}
    kept = {name: value for name, value in spec.environment.items() if name != "CLUTCH_CODE"}
    return replace(spec, environment={**kept, **told})


def explained(exit: Exit, tmp: Path, *, inside: bool = False) -> Exit:
    """The exit of a member that was booted, with the reason it left behind. ``tmp``: its TMPDIR; ``inside``: boot was
    in its image."""
    if inside and exit.cause is ExitCause.REFUSED and IMAGE_PYTHON in exit.reason:
        return replace(
            exit, reason=f"its image has no {IMAGE_PYTHON}, which with clutch starts its ranks: {exit.reason}"
        )
    if exit.code == 0 or exit.cause not in HEARD:
        return exit
    words = _last_words(tmp)
    by_boot = words.startswith(_BY_BOOT)
    if exit.code == BOOT_CLUSTER:
        found = words.removeprefix(_BY_BOOT) or "its boot found no master"
        return replace(exit, cause=ExitCause.NEVER_STARTED, reason=found)
    if exit.code == BOOT_REFUSED and by_boot:
        return replace(exit, cause=ExitCause.REFUSED, reason=words.removeprefix(_BY_BOOT))
    return as_told(exit, words if understood(words).what == FAILED else _of_a_rank(tmp) or words)


def _of_a_rank(tmp: Path) -> str:
    """The words of a rank that has failed, and was ended with its member before the process over it knew."""
    try:
        with os.scandir(tmp) as entries:
            names = [entry.name for entry in islice(entries, ENTRIES_MAX) if entry.name.startswith(f"{LAST_WORDS}.")]
    except OSError:
        return ""
    return next((said for name in sorted(names) if understood(said := _last_words(tmp, name)).what == FAILED), "")


def _last_words(tmp: Path, name: str = LAST_WORDS) -> str:
    """The folder is the user's: what is not a plain file of the folder's owner, with one name, is not read."""
    try:
        folder = tmp.stat()
        descriptor = os.open(tmp / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        about = os.fstat(descriptor)
        theirs = is_anybodys(folder) or about.st_uid == folder.st_uid
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or not theirs:
            return ""
        said = os.read(descriptor, 4 * REASON_MAX)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    words = " ".join(said.decode(errors="replace").split())
    return "".join(sign for sign in words if sign.isprintable())[:REASON_MAX]


async def _run(argv: tuple[str, ...], environment: Mapping[str, str], spec: ContainerSpec) -> dict[str, str]:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=spec.cwd,
        env=dict(environment),
        start_new_session=True,
        preexec_fn=becoming(spec.run_as),
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
