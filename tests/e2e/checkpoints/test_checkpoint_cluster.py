"""Checkpoints in the workspace's blobs: through a real master, or straight into its folder; and their clean-up."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from clutch.backends.blobs.opening import open_blobs
from clutch.runtime.checkpoint import Served, Store
from clutch.runtime.client import PushClient
from clutch.runtime.http import MasterConnection
from clutch.testing.blobs_ground import MIB, all_keys, noise_file
from clutch.testing.push_master import PushMaster, push_master
from clutch.wire.errors import NotAllowed, NotFound
from clutch.wire.experiment_api import StorageWay
from clutch.wire.experiments import CleanupItem, CleanupOrder, Storage
from clutch.wire.push import CheckpointView, CommitManifest


class Cluster:
    """A master and one member of a task in it."""

    def __init__(self, master: PushMaster, token: str, folder: Path) -> None:
        self.master, self.token, self.folder = master, token, folder
        self.served = Served(masters=(master.url,), token=token, workspace="default")
        self.blobs = folder / "master" / "blobs"
        (self.blobs / "proof").write_text("it is this one")
        self.way = StorageWay(folder=str(self.blobs), proof="proof", content="it is this one")
        self.out = folder / "out"
        (self.out / "deep").mkdir(parents=True)
        self.content = {
            "model.pt": noise_file(self.out / "model.pt", 1, 9 * MIB),
            "deep/a.json": noise_file(self.out / "deep" / "a.json", 2, 999),
        }

    def client(self) -> PushClient:
        return PushClient(MasterConnection((self.master.url,), self.token))

    def save(self, store: Store, step: int) -> CheckpointView:
        client = self.client()
        begun = client.begin_checkpoint(step)
        files = store.upload(self.out, begun.prefix)
        view = client.commit_checkpoint(begun.id, CommitManifest(step=step, storage=store.address, files=files))
        client.close()
        return view

    def load(self, store: Store, view: CheckpointView, name: str) -> dict[str, bytes]:
        target = self.folder / name
        store.download(view.prefix, view.files, target)
        return {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}

    async def clean(self, order: CleanupOrder | str, **environment: str) -> tuple[int, str]:
        """What ``clutch.runtime.cleanup`` says and how it ends."""
        said = order if isinstance(order, str) else msgspec.json.encode(order).decode()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "clutch.runtime.cleanup",
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ, "CLUTCH_MASTERS": self.master.url, "CLUTCH_TOKEN": self.token, "CLUTCH_TASK": "t",
                "CLUTCH_CLEANUP": said, **environment,
            },
        )  # fmt: skip
        _, text = await asyncio.wait_for(child.communicate(), 60.0)
        assert child.returncode is not None
        return child.returncode, text.decode()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with push_master(tmp_path / "master") as master:
        yield Cluster(master, (await master.submit("t"))[0], tmp_path)


async def test_through_the_master_and_straight(cluster: Cluster) -> None:
    """Two ways to the same files: what one stores the other reads."""
    served = Store.open(Storage(), served=cluster.served)
    direct = Store.open(Storage(), served=cluster.served, way=cluster.way)
    await asyncio.to_thread(served.check)
    await asyncio.to_thread(direct.check)
    one = await asyncio.to_thread(cluster.save, served, 1)
    two = await asyncio.to_thread(cluster.save, direct, 2)
    assert one.storage == two.storage == ""
    assert (cluster.blobs / "workspaces" / "default" / two.prefix / "model.pt").is_file()
    for number, (store, view) in enumerate([(served, one), (served, two), (direct, one), (direct, two)]):
        assert await asyncio.to_thread(cluster.load, store, view, f"back{number}") == cluster.content
    assert await asyncio.to_thread(direct.sweep_orphans, [one.prefix, two.prefix], -1.0) == 0
    assert await asyncio.to_thread(direct.sweep_orphans, [one.prefix], -1.0) == 2
    assert await asyncio.to_thread(cluster.load, served, one, "still") == cluster.content


async def test_a_folder_that_is_not_the_same_goes_through_the_master(cluster: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / ".clutch" / "parts").mkdir(parents=True)
    (other / "proof").write_text("another one")
    for way in (
        StorageWay(),
        StorageWay(folder=str(other), proof="proof", content="it is this one"),
        StorageWay(folder=str(other), proof="../out/model.pt", content=""),
        StorageWay(folder=str(tmp_path / "nothing"), proof="proof", content="it is this one"),
        StorageWay(folder=str(other), proof="../master/blobs/proof", content="it is this one"),
    ):
        store = Store.open(Storage(), served=cluster.served, way=way)
        await asyncio.to_thread(store.upload, cluster.out, "checkpoints/1-x")
        assert sorted(path.name for path in other.iterdir()) == [".clutch", "proof"]
    assert (cluster.blobs / "workspaces" / "default" / "checkpoints" / "1-x" / "model.pt").is_file()


async def test_a_token_that_is_wrong(cluster: Cluster) -> None:
    wrong = Served(masters=(cluster.master.url,), token="wrong", workspace="default")
    with pytest.raises(NotAllowed):
        await asyncio.to_thread(Store.open(Storage(), served=wrong).check)
    assert "wrong" not in repr(wrong)


async def test_clean_up(cluster: Cluster, tmp_path: Path) -> None:
    served = Store.open(Storage(), served=cluster.served)
    folder = Storage(address=f"file://{tmp_path}/kept")
    elsewhere = Store.open(folder)
    views = [await asyncio.to_thread(cluster.save, served if n < 3 else elsewhere, n) for n in range(1, 5)]
    kept, partly, gone, outside = views[0], views[1], views[2], views[3]
    order = CleanupOrder(
        experiment="e",
        checkpoints=(
            CleanupItem(checkpoint=partly.id, task="t", globs=("*.pt",)),
            CleanupItem(checkpoint=gone.id, task="t"),
            CleanupItem(checkpoint=outside.id, task="t"),
            CleanupItem(checkpoint="9-never", task="t"),
        ),
    )
    for _ in range(2):  # carried out twice, it is the same
        assert await cluster.clean(order) == (0, "")
    left = [key async for page in cluster.master.services.blobs.list("workspaces/default") for key in page]
    assert sorted(one.key.removeprefix("workspaces/default/") for one in left) == sorted(
        [f"{kept.prefix}/deep/a.json", f"{kept.prefix}/model.pt", f"{partly.prefix}/deep/a.json"]
    )
    assert await all_keys(await open_blobs(f"{tmp_path}/kept")) == []
    assert await asyncio.to_thread(cluster.load, served, kept, "back") == cluster.content
    with pytest.raises(NotFound):
        await asyncio.to_thread(cluster.load, served, partly, "half")


async def test_clean_up_that_cannot(cluster: Cluster, tmp_path: Path) -> None:
    """Reasons, and the rest is done all the same."""
    folder = tmp_path / "kept"
    elsewhere = Store.open(Storage(address=f"file://{folder}"))
    served = Store.open(Storage(), served=cluster.served)
    there = await asyncio.to_thread(cluster.save, elsewhere, 1)
    ours = await asyncio.to_thread(cluster.save, served, 2)
    folder.rename(tmp_path / "away")
    items = tuple(CleanupItem(checkpoint=view.id, task="t") for view in (there, ours))
    order = CleanupOrder(experiment="e", checkpoints=items)
    code, said = await cluster.clean(order)
    assert code == 1
    assert there.id in said and "mounted" in said and ours.id not in said
    assert not (cluster.blobs / "workspaces" / "default" / ours.prefix).exists()
    (tmp_path / "away").rename(folder)
    assert await cluster.clean(order) == (0, "")
    code, said = await cluster.clean("{no json")
    assert code == 1 and "CLUTCH_CLEANUP" in said
    code, said = await cluster.clean(CleanupOrder(experiment="e"), CLUTCH_MASTERS="")
    assert code == 1 and "CLUTCH_MASTERS" in said
    code, said = await cluster.clean(order, CLUTCH_TOKEN="wrong")
    assert code == 1 and there.id in said
