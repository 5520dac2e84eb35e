"""The suite of blobs on HDFS: a NameNode and a DataNode that really run."""

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from clutch.backends.blobs import layout
from clutch.backends.blobs.hdfs import FOOT_BYTES, HdfsObjects
from clutch.backends.blobs.object_store import ObjectBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.testing import blobs_suite as suite
from clutch.testing.blobs_ground import all_keys, refused
from clutch.testing.blobs_suite_faults import check_killed_upload_goes_on
from clutch.testing.hdfs import ADDRESS_VARIABLE, Missing, Server, prepare, temporary_server
from clutch.wire.errors import BadRequest, Corrupt, DiskFull, NotFound

pytestmark = pytest.mark.slow  # its server takes seconds to start: `make stores`
own_server = pytest.mark.skipif(bool(os.environ.get(ADDRESS_VARIABLE)), reason="your own server is not ours to harm")


def name_of(check: object) -> str:
    return check.__name__.removeprefix("check_")  # type: ignore[attr-defined]


def objects(blobs: ObjectBlobs) -> HdfsObjects:
    assert isinstance(blobs._client, HdfsObjects)
    return blobs._client


class HdfsGround:
    def __init__(self, address: str, folder: Path) -> None:
        self.address = f"{address.rstrip('/')}/{uuid.uuid4().hex}?part_mib=1"
        self.folder = folder

    async def open(self) -> ObjectBlobs:
        blobs = await open_blobs(self.address)
        assert isinstance(blobs, ObjectBlobs)
        return blobs

    async def damage(self, key: str) -> None:
        store = objects(await self.open())
        found = await store.get(key)
        name, attributes = key, found.attributes
        if layout.UPLOAD in attributes:
            folder = layout.folder(attributes[layout.UPLOAD])
            name = sorted([one["path"] async for page in store.pages(folder) for one in page])[2]
            found = await store.get(name)
        content = bytearray(await store.body(found))
        content[len(content) // 2] ^= 1
        await store.put(name, bytes(content), attributes, create=False)

    async def leftovers(self) -> int:
        store = objects(await self.open())
        return sum([len(page) async for page in store.pages(layout.PARTS)])


class HarmedGround(HdfsGround):
    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server.address(), folder)
        self._server = server

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        self._server.start()  # in this thread, with which the server dies


@pytest.fixture(scope="session")
def hdfs_server() -> Iterator[Server]:
    try:
        prepare()
    except Missing as missing:
        pytest.skip(str(missing))
    with temporary_server() as server:
        yield server


@pytest.fixture(scope="session")
def hdfs_address(request: pytest.FixtureRequest) -> str:
    given = os.environ.get(ADDRESS_VARIABLE, "")
    return given or request.getfixturevalue("hdfs_server").address()


@pytest.fixture
def ground(hdfs_address: str, tmp_path: Path) -> HdfsGround:
    return HdfsGround(hdfs_address, tmp_path)


SHORT = (
    suite.check_gives_back_what_it_was_given,
    suite.check_missing_and_deleted,
    suite.check_bad_keys_are_refused,
    suite.check_tree_conflicts_are_refused,
    suite.check_small_file,
)
LONG = [check for check in (*suite.CHECKS, suite.check_large_file) if check not in SHORT]


@pytest.mark.parametrize("check", SHORT, ids=name_of)
async def test_hdfs(ground: suite.Ground, check: suite.Check) -> None:
    await check(ground)


async def test_hdfs_killed_upload_goes_on(ground: suite.SharedGround) -> None:
    await check_killed_upload_goes_on(ground)


@pytest.mark.slow
@pytest.mark.parametrize("check", LONG, ids=name_of)
async def test_hdfs_at_length(ground: suite.Ground, check: suite.Check) -> None:
    await check(ground)


@pytest.mark.slow
@pytest.mark.parametrize("check", suite.SHARED_CHECKS, ids=name_of)
async def test_hdfs_of_killed_processes(ground: suite.SharedGround, check: suite.SharedCheck) -> None:
    await check(ground)


@pytest.mark.slow
@own_server
async def test_hdfs_that_dies_comes_back(tmp_path: Path) -> None:
    with temporary_server() as server:
        await suite.check_store_that_dies_comes_back(HarmedGround(server, tmp_path))


async def test_a_file_that_is_not_ours_is_corrupt(ground: HdfsGround) -> None:
    from hdfs_native import WriteOptions

    blobs = await ground.open()
    await blobs.put("ours", b"1")
    store = objects(blobs)
    for name, content in (("short", b"x"), ("long", bytes(FOOT_BYTES * 2))):
        with store._client.create(f"{store._root}/{name}", WriteOptions()) as file:
            file.write(content)
        await refused(Corrupt, blobs.get(name))
        await refused(Corrupt, blobs.stat(name))
        await blobs.delete(name)
        await refused(NotFound, blobs.stat(name))
    assert await all_keys(blobs) == ["ours"]


async def test_a_name_that_hdfs_cannot_have(ground: HdfsGround) -> None:
    blobs = await ground.open()
    await refused(BadRequest, blobs.put(f"{'%' * 100}", b"x"))
    assert await all_keys(blobs) == []
    await blobs.put("a:b/%3A", b"colons")
    assert await all_keys(blobs) == ["a:b/%3A"]
    assert await blobs.get("a:b/%3A") == b"colons"


STRANGER = """
import asyncio, sys
from pathlib import Path
from clutch.backends.blobs.opening import open_blobs
from clutch.wire.errors import ClutchError

async def main():
    blobs = await open_blobs(sys.argv[1])
    print((await blobs.get("k")).decode())
    for call in (blobs.check(), blobs.put("k", b"x"), blobs.put_file("k", Path(__file__)), blobs.delete("k")):
        try:
            await call
        except ClutchError as error:
            print(type(error).__name__)

asyncio.run(main())
"""


@pytest.mark.slow
@own_server
async def test_rights_and_quotas(tmp_path: Path) -> None:
    """One server that looks at rights: what it refuses has a name, before a training begins."""
    with temporary_server(permissions=True) as server:
        ours = await open_blobs(server.address("shared"))
        await ours.check()
        await ours.put("k", b"ours")
        script = tmp_path / "stranger.py"
        script.write_text(STRANGER)
        said = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, script, server.address("shared")],
            env={**os.environ, "HADOOP_USER_NAME": "stranger"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert said.stdout.split() == ["ours", *["NotAllowed"] * 4]
        server.limit("/shared", 3 << 20)
        full = await open_blobs(server.address("shared?part_mib=1"))
        await refused(DiskFull, full.put("large", bytes(8 << 20)))
        assert await all_keys(full) == ["k"]
        assert await full.get("k") == b"ours"
