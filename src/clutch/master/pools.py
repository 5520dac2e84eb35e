"""The pools that an operator wrote down, and where their machines come from::

    [pools.gpu]
    fit = "best"

    [pools.gpu.autoscale]
    nodes_max = 4
    slots_per_node = 8

    [pools.gpu.machines]
    way = "local"

TOML, or JSON of the same shape. What is written there is put each time a master begins to lead; pools that are not
named stay as they are. A pool with ``autoscale`` says where its machines come from, and the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tomllib
from pathlib import Path
from typing import Any, Protocol

import msgspec

from clutch.backends.machines.base import Machines
from clutch.backends.machines.opening import open_machines
from clutch.backends.machines.site import Site
from clutch.core.checks import check_pool
from clutch.wire.access import MadeToken, TokenKind, TokenView
from clutch.wire.errors import BadRequest, ClutchError
from clutch.wire.ids import PoolName
from clutch.wire.machines import MachineTemplate, SshTemplate
from clutch.wire.specs import PoolSpec

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMMON_NAME = "clutch"
"""What a cluster is called that nobody named."""


class WrittenPool(msgspec.Struct, frozen=True):
    pool: PoolSpec
    machines: MachineTemplate | None = None


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the machines of every pool share."""

    cluster: str
    data: Path
    """The master's folder; what must be remembered of machines is in ``machines/POOL`` below it."""
    url: str
    """How machines reach this master."""
    ca_file: Path | None = None


class Doorkeeper(Protocol):
    """What is needed of access: a token with which machines of a pool enrol."""

    async def identify(self, token: str) -> Any: ...

    async def make_token(self, view: TokenView, lifetime_s: float) -> MadeToken: ...


def read_pools(path: Path) -> dict[PoolName, WrittenPool]:
    """The pools of a file. ``BadRequest`` says what is wrong and where."""
    subject = f"pools file {path}"
    try:
        text = path.read_text()
        found: Any = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise BadRequest(f"it cannot be read: {error.strerror}", object=subject, next_step="Check --pools.") from error
    except (tomllib.TOMLDecodeError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(str(error), object=subject, next_step="Correct it and start again.") from error
    unknown = [key for key in found if key != "pools"] if isinstance(found, dict) else ["/"]
    if unknown or not isinstance(found.get("pools", {}), dict):
        raise BadRequest("it holds more than pools", object=subject, path=unknown[0] if unknown else "pools")
    return {PoolName(name): _pool(PoolName(name), given, subject) for name, given in found.get("pools", {}).items()}


def _pool(name: PoolName, given: Any, subject: str) -> WrittenPool:
    path = f"pools.{name}"
    if not isinstance(given, dict):
        raise BadRequest("it is not a table", object=subject, path=path)
    fields = {key: value for key, value in given.items() if key != "machines"}
    try:
        pool = msgspec.convert({**fields, "name": name}, PoolSpec)
        path = f"pools.{name}.machines"
        machines = msgspec.convert(given["machines"], MachineTemplate) if "machines" in given else None
    except msgspec.ValidationError as error:
        raise BadRequest(str(error), object=subject, path=path, next_step="Correct it and start again.") from error
    check_pool(pool)
    if (pool.autoscale is None) != (machines is None):
        missing = "autoscale" if pool.autoscale is None else "machines"
        raise BadRequest(
            f"it has no {missing}, and machines come and go only with both",
            object=subject,
            path=f"pools.{name}",
            next_step=f"Add a [pools.{name}.{missing}], or remove the other.",
        )
    return WrittenPool(pool, machines)


async def open_pools(
    written: dict[PoolName, WrittenPool], around: Surroundings, access: Doorkeeper
) -> dict[PoolName, Machines]:
    """The provider of each pool that has one."""
    opened: dict[PoolName, Machines] = {}
    for name, pool in written.items():
        if pool.machines is None:
            continue
        if isinstance(pool.machines, SshTemplate) and around.cluster == COMMON_NAME:
            raise BadRequest(
                "hosts may be shared by several clusters, and each must know its own machines",
                object=f"pool {name}",
                path=f"pools.{name}.machines",
                next_step="Give this cluster a name of its own with --cluster.",
            )
        folder = around.data / "machines" / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened[name] = open_machines(
            pool.machines,
            Site(
                cluster=around.cluster,
                pool=name,
                masters=(around.url,),
                token_file=await _token(folder / "enrolment", name, access),
                folder=folder / "own",
                agent=(sys.executable, "-m", "clutch.cli.main", "agent"),
                ca_file=around.ca_file,
                environment={"PATH": f"{Path(sys.executable).parent}:{PATH}", "LANG": "C.UTF-8"},
            ),
        )
    return opened


async def _token(path: Path, pool: PoolName, access: Doorkeeper) -> Path:
    """The file with the pool's enrolment token: the one that is there while it is good, or else a new one."""
    with contextlib.suppress(ClutchError, OSError):
        await access.identify((await asyncio.to_thread(path.read_text)).strip())
        return path
    view = TokenView(id="", kind=TokenKind.ENROL, user="admin", description=f"machines of pool {pool}", pool=pool)
    made = await access.make_token(view, 0.0)
    await asyncio.to_thread(_write_private, path, made.token)
    return path


def _write_private(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.rename(path)
