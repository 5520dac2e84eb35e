"""The one suite, on all three ways of keeping blobs; the object store is a SeaweedFS that really runs."""

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
import pytest

from clutch.backends.blobs import layout
from clutch.backends.blobs.base import FullBlobs
from clutch.backends.blobs.directory import DirectoryBlobs
from clutch.backends.blobs.memory import MemoryBlobs, MemoryShelf
from clutch.backends.blobs.object_store import ObjectBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.testing.blobs_ground import MIB, Child, all_keys, refused
from clutch.testing.blobs_suite import (
    CHECKS,
    SHARED_CHECKS,
    Check,
    Ground,
    SharedCheck,
    SharedGround,
    check_forgotten_upload_is_gone,
    check_full_store_changes_nothing,
    check_large_file,
    check_store_that_dies_comes_back,
    check_tree_conflicts_are_refused,
)
from clutch.testing.push_master import PushMaster, push_master
from clutch.testing.seaweed import ADDRESS_VARIABLE, Server, temporary_server
from clutch.wire.errors import NotAllowed, NotFound

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
own_server = pytest.mark.skipif(bool(os.environ.get(ADDRESS_VARIABLE)), reason="your own server is not ours to harm")


def name_of(check: object) -> str:
    return check.__name__.removeprefix("check_")  # type: ignore[attr-defined]


class MemoryGround:
    def __init__(self, folder: Path, capacity_bytes: int = 1 << 30) -> None:
        self.folder = folder
        self.shelf = MemoryShelf(capacity_bytes=capacity_bytes)

    async def open(self) -> FullBlobs:
        return MemoryBlobs(self.shelf)

    async def damage(self, key: str) -> None:
        self.shelf.damage(key)

    async def leftovers(self) -> int:
        return 0

    async def free_space(self) -> None:
        self.shelf.capacity_bytes = 1 << 30


class DirectoryGround:
    def __init__(self, root: Path, folder: Path, use_attributes: bool = True) -> None:
        self.root = root
        self.folder = folder
        self.address = f"file://{root}"
        self._use_attributes = use_attributes

    async def open(self) -> FullBlobs:
        return await DirectoryBlobs.open(self.root, use_attributes=self._use_attributes)

    async def damage(self, key: str) -> None:
        path = self.root / key
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(len(content) // 2)
            file.write(bytes([content[len(content) // 2] ^ 1]))

    async def leftovers(self) -> int:
        return len(list((self.root / ".clutch" / "parts").iterdir()))

    async def free_space(self) -> None:
        await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,size=512m", self.root], check=True)


class ObjectGround:
    def __init__(self, address: str, folder: Path) -> None:
        base, _, query = address.partition("?")
        self.address = f"{base.rstrip('/')}/{uuid.uuid4().hex}?{query}&part_mib=1"
        self.folder = folder

    async def open(self) -> ObjectBlobs:
        blobs = await open_blobs(self.address)
        assert isinstance(blobs, ObjectBlobs)
        return blobs

    async def damage(self, key: str) -> None:
        store = (await self.open())._client.store
        found = await obstore.get_async(store, key)
        attributes = found.attributes
        name = key
        if layout.UPLOAD in attributes:
            (chunk,) = [c async for c in obstore.list(store, layout.folder(attributes[layout.UPLOAD]), chunk_size=999)]
            name = sorted(one["path"] for one in chunk)[2]
            attributes = {}
            found = await obstore.get_async(store, name)
        content = bytearray((await found.bytes_async()).to_bytes())
        content[len(content) // 2] ^= 1
        await obstore.put_async(store, name, bytes(content), attributes=attributes)

    async def leftovers(self) -> int:
        store = (await self.open())._client.store
        return sum([len(chunk) async for chunk in obstore.list(store, layout.PARTS)])


class ServerGround(ObjectGround):
    """On a server of its own, which can be killed."""

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server.address(), folder)
        self._server = server

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        self._server.start()  # in this thread, with which the server dies


class ServedGround:
    """A real master that serves a folder over HTTP. What is damaged and counted is what lies in that folder."""

    def __init__(self, master: PushMaster, token: str, root: Path, folder: Path) -> None:
        self.folder = folder
        self.address = f"served:{master.url}/default?token={token}&part_mib=1"
        self._root = root
        self._opened: list[FullBlobs] = []

    async def open(self) -> FullBlobs:
        self._opened.append(await open_blobs(self.address))
        return self._opened[-1]

    async def damage(self, key: str) -> None:
        await DirectoryGround(self._root, self.folder).damage(f"workspaces/default/{key}")

    async def leftovers(self) -> int:
        parts = [path for path in (self._root / "served").rglob("*") if path.is_file()]
        return len(parts) + len(list((self._root / ".clutch" / "parts").iterdir()))

    async def close(self) -> None:
        for blobs in self._opened:
            await blobs.close()


@pytest.fixture
async def served_ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServedGround]:
    local = tmp_path / "local"
    local.mkdir()
    # Three thousand keys are quicker in memory; what the check is about is the same
    many = "lists_by_pages" in request.node.name
    async with push_master(tmp_path / "master", blobs=MemoryBlobs(MemoryShelf()) if many else None) as master:
        token = (await master.submit("t"))[0]
        ground = ServedGround(master, token, tmp_path / "master" / "blobs", local)
        yield ground
        await ground.close()


@pytest.fixture(scope="session")
def object_server() -> Iterator[Server]:
    """One real server for the whole run; each test has its own prefix on it."""
    with temporary_server() as server:
        yield server


@pytest.fixture(scope="session")
def object_address(request: pytest.FixtureRequest) -> str:
    given = os.environ.get(ADDRESS_VARIABLE, "")
    return given or request.getfixturevalue("object_server").address()


def make_ground(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    local = tmp_path / "local"
    local.mkdir()
    if kind == "memory":
        return MemoryGround(local)
    if kind == "object_store":
        return ObjectGround(request.getfixturevalue("object_address"), local)
    return DirectoryGround(tmp_path / "blobs", local, use_attributes=kind == "directory")


@pytest.fixture(params=["memory", "directory", "object_store"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    yield make_ground(request.param, request, tmp_path)


@pytest.fixture(params=["directory", "object_store"])
async def shared_ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    yield make_ground(request.param, request, tmp_path)


@pytest.fixture(params=["memory", "directory", "directory_without_attributes"])
async def tree_ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    yield make_ground(request.param, request, tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
async def test_blobs(ground: Ground, check: Check) -> None:
    await check(ground)


@pytest.mark.parametrize("check", [*CHECKS, check_tree_conflicts_are_refused, check_large_file], ids=name_of)
async def test_served_blobs(served_ground: Ground, check: Check) -> None:
    await check(served_ground)


@pytest.mark.parametrize("check", [*SHARED_CHECKS, check_forgotten_upload_is_gone], ids=name_of)
async def test_served_blobs_of_killed_processes(served_ground: SharedGround, check: SharedCheck) -> None:
    await check(served_ground)


SEALED_BEHIND = [check for check in CHECKS if "pages" not in check.__name__]


@pytest.mark.parametrize("check", SEALED_BEHIND, ids=name_of)
async def test_folder_without_attributes(check: Check, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    await check(make_ground("directory_without_attributes", request, tmp_path))


@pytest.mark.parametrize("check", [*SHARED_CHECKS, check_forgotten_upload_is_gone], ids=name_of)
async def test_blobs_of_killed_processes(shared_ground: SharedGround, check: SharedCheck) -> None:
    await check(shared_ground)


async def test_large_file(shared_ground: Ground) -> None:
    await check_large_file(shared_ground)


async def test_tree_conflicts_are_refused(tree_ground: Ground) -> None:
    await check_tree_conflicts_are_refused(tree_ground)


async def test_full_memory(tmp_path: Path) -> None:
    await check_full_store_changes_nothing(MemoryGround(tmp_path, 8 * MIB))


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@only_root
@pytest.mark.parametrize("use_attributes", [True, False])
async def test_full_disk(use_attributes: bool, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    with small_disk(tmp_path / "small", "16m") as folder:
        await check_full_store_changes_nothing(DirectoryGround(folder, local, use_attributes))


async def test_file_size_limit(tmp_path: Path) -> None:
    """A limit that needs no root: the process may write no file larger than this."""
    ground = DirectoryGround(tmp_path / "blobs", tmp_path)
    blobs = await ground.open()
    await blobs.put("k", b"before")
    child = Child("fill", ground.address, "k", str(9 * MIB), str(8 * MIB))
    assert child.line() == "DiskFull"
    child.kill()
    assert await blobs.get("k") == b"before"
    assert await ground.leftovers() == 0


@own_server
async def test_server_that_dies_comes_back(object_server: Server, tmp_path: Path) -> None:
    await check_store_that_dies_comes_back(ServerGround(object_server, tmp_path))


async def test_wrong_credentials_are_found_before_use(object_address: str, tmp_path: Path) -> None:
    right = await open_blobs(object_address)
    await right.check()
    start, _, rest = object_address.partition("://")
    user, _, place = rest.partition("@")
    key_id = user.partition(":")[0]
    path = tmp_path / "file"
    path.write_bytes(b"x")
    for credentials in (f"{key_id}:wrong-secret-of-mine", "NOSUCHKEY:wrong-secret-of-mine"):
        blobs = await open_blobs(f"{start}://{credentials}@{place}")
        for call in (
            blobs.check(),
            blobs.put("k", b"x"),
            blobs.put("k", b"x", create=True),
            blobs.get("k"),
            blobs.stat("k"),
            blobs.delete("k"),
            blobs.put_file("k", path),
            blobs.get_file("k", tmp_path / "other"),
            blobs.sweep(),
            all_keys(blobs),
        ):
            error = await refused(NotAllowed, call)
            assert "wrong-secret-of-mine" not in f"{error} {error.__cause__}"


async def test_keys_beside_the_address(object_address: str) -> None:
    start, _, rest = object_address.partition("://")
    user, _, place = rest.partition("@")
    key_id, _, secret = user.partition(":")
    blobs = await open_blobs(f"{start}://{place}", keys=(key_id, secret))
    await blobs.check()


async def test_missing_bucket(object_address: str) -> None:
    start, _, rest = object_address.partition("://")
    user, _, place = rest.partition("@")
    blobs = await open_blobs(f"{start}://{user}@no-such-bucket/x?{place.partition('?')[2]}")
    error = await refused(NotFound, blobs.check())
    assert "bucket" in error.cause
    assert "no-such-bucket" in error.object


def test_given_keys_are_the_only_ones(object_address: str) -> None:
    """With keys in the address neither the environment nor a metadata service has a say, or this would fail or hang."""
    script = (
        "import asyncio, sys\n"
        "from clutch.backends.blobs.opening import open_blobs\n"
        "async def main():\n"
        "    await (await open_blobs(sys.argv[1])).check()\n"
        "asyncio.run(main())\n"
    )
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "OTHER",
        "AWS_SECRET_ACCESS_KEY": "other",
        "AWS_SESSION_TOKEN": "other",
        "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    subprocess.run([sys.executable, "-c", script, object_address], env=environment, check=True, timeout=60)
