"""Pools that are written down: what is taken, what is refused and where."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clutch.backends.machines.local import LocalMachines
from clutch.backends.machines.ssh import SshMachines
from clutch.master.pools import Surroundings, open_pools, read_pools
from clutch.wire.access import MadeToken, TokenKind, TokenView
from clutch.wire.errors import BadRequest, NotAuthenticated
from clutch.wire.ids import PoolName
from clutch.wire.machines import LocalTemplate, SshHost, SshTemplate
from clutch.wire.specs import Autoscale, FairSharePolicy, Fit, PoolSpec

TEXT = """
[pools.plain]
fit = "spread"
policy = { type = "fair_share" }

[pools.gpu.autoscale]
nodes_max = 4
slots_per_node = 8

[pools.gpu.machines]
way = "local"
arguments = ["--artificial-slots", "8"]

[pools.rack.autoscale]
nodes_max = 2

[pools.rack.machines]
way = "ssh"
hosts = [{ name = "rack-1" }, { name = "rack-2", address = "10.0.0.2", port = 2222, user = "ops" }]
"""


def write(path: Path, text: str, name: str = "pools.toml") -> Path:
    (path / name).write_text(text)
    return path / name


def test_pools_and_their_machines(tmp_path: Path) -> None:
    found = read_pools(write(tmp_path, TEXT))
    assert found[PoolName("plain")].pool == PoolSpec(PoolName("plain"), policy=FairSharePolicy(), fit=Fit.SPREAD)
    assert found[PoolName("plain")].machines is None
    assert found[PoolName("gpu")].pool.autoscale == Autoscale(nodes_max=4)
    assert found[PoolName("gpu")].machines == LocalTemplate(arguments=("--artificial-slots", "8"))
    rack = SshTemplate(hosts=(SshHost("rack-1"), SshHost("rack-2", "10.0.0.2", 2222, "ops")))
    assert found[PoolName("rack")].machines == rack


def test_json_of_the_same_shape(tmp_path: Path) -> None:
    import tomllib

    same = msgspec.json.encode(tomllib.loads(TEXT)).decode()
    assert read_pools(write(tmp_path, same, "pools.json")) == read_pools(write(tmp_path, TEXT))


@pytest.mark.parametrize(
    ("text", "path", "cause"),
    [
        ("[pools.a", "", "Expected"),
        ("[pool.a]", "pool", "more than pools"),
        ("pools = 3", "pools", "more than pools"),
        ("[pools]\na = 3", "pools.a", "not a table"),
        ("[pools.a]\ncolour = 'red'", "pools.a", "colour"),
        ("[pools.a.autoscale]\nnodes_max = 1", "pools.a", "no machines"),
        ("[pools.a.machines]\nway = 'local'", "pools.a", "no autoscale"),
        ("[pools.a.autoscale]\nnodes_max = 1\n[pools.a.machines]\nway = 'moon'", "pools.a.machines", "moon"),
        ("[pools.a.autoscale]\nnodes_max = 1\n[pools.a.machines]\nway = 'local'\nx = 1", "pools.a.machines", "x"),
        ("[pools.a.autoscale]\nnodes_max = 0\n[pools.a.machines]\nway = 'local'", "autoscale.nodes_max", "0"),
        (
            "[pools.a.autoscale]\nkind = 'wood'\nnodes_max = 1\n[pools.a.machines]\nway = 'local'",
            "autoscale.kind",
            "wood",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, path: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as caught:
        read_pools(write(tmp_path, text))
    assert cause in caught.value.cause and caught.value.path == path, caught.value


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be read"):
        read_pools(tmp_path / "nothing")


class Door:
    def __init__(self) -> None:
        self.good: dict[str, TokenView] = {}

    async def identify(self, token: str) -> Any:
        if token not in self.good:
            raise NotAuthenticated("unknown token")
        return self.good[token]

    async def make_token(self, view: TokenView, lifetime_s: float) -> MadeToken:
        token = f"clutch_e_{len(self.good)}"
        self.good[token] = view
        return MadeToken(token=token, view=view)


def around(tmp_path: Path, cluster: str = "lab") -> Surroundings:
    return Surroundings(cluster=cluster, data=tmp_path, url="http://127.0.0.1:1")


async def test_each_pool_has_its_provider_and_one_enrolment_token_that_is_kept(tmp_path: Path) -> None:
    door, written = Door(), read_pools(write(tmp_path, TEXT))
    opened = await open_pools(written, around(tmp_path), door)
    assert {name: type(machines) for name, machines in opened.items()} == {"gpu": LocalMachines, "rack": SshMachines}
    local = opened[PoolName("gpu")]
    assert isinstance(local, LocalMachines)
    token = local.site.token_file
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert (door.good[token.read_text()].kind, door.good[token.read_text()].pool) == (TokenKind.ENROL, "gpu")
    await open_pools(written, around(tmp_path), door)
    assert len(door.good) == 2, "the next start uses the same ones"
    del door.good[token.read_text()]
    await open_pools(written, around(tmp_path), door)
    assert token.read_text() in door.good, "a revoked one is replaced"


async def test_hosts_are_only_for_clusters_with_a_name(tmp_path: Path) -> None:
    written = read_pools(write(tmp_path, TEXT))
    with pytest.raises(BadRequest, match="name of its own"):
        await open_pools(written, around(tmp_path, "clutch"), Door())
