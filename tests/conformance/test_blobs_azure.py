"""The suite of blobs on Azure's API: an Azurite that really runs."""

import asyncio
import base64
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from clutch.backends.blobs import layout
from clutch.backends.blobs.client import Client
from clutch.backends.blobs.object_store import ObjectBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.testing import blobs_suite as suite
from clutch.testing.azurite import ADDRESS_VARIABLE, Missing, Server, prepare, temporary_server
from clutch.testing.blobs_ground import all_keys, refused
from clutch.wire.errors import NotAllowed, NotFound

pytestmark = pytest.mark.slow  # its server takes seconds to start: `make stores`
own_server = pytest.mark.skipif(bool(os.environ.get(ADDRESS_VARIABLE)), reason="your own server is not ours to harm")


def name_of(check: object) -> str:
    return check.__name__.removeprefix("check_")  # type: ignore[attr-defined]


def client(blobs: ObjectBlobs) -> Client:
    assert isinstance(blobs._client, Client)
    return blobs._client


class AzureGround:
    def __init__(self, address: str, folder: Path) -> None:
        base, mark, query = address.partition("?")
        self.address = f"{base.rstrip('/')}/{uuid.uuid4().hex}?{query}{mark and '&'}part_mib=1"
        self.folder = folder

    async def open(self) -> ObjectBlobs:
        blobs = await open_blobs(self.address)
        assert isinstance(blobs, ObjectBlobs)
        return blobs

    async def damage(self, key: str) -> None:
        store = client(await self.open()).store
        found = await obstore.get_async(store, key)
        name, attributes = key, found.attributes
        if layout.UPLOAD in attributes:
            folder = layout.folder(str(attributes[layout.UPLOAD]))
            name = sorted([one["path"] async for page in obstore.list(store, folder) for one in page])[2]
            attributes = {}
            found = await obstore.get_async(store, name)
        content = bytearray((await found.bytes_async()).to_bytes())
        content[len(content) // 2] ^= 1
        await obstore.put_async(store, name, bytes(content), attributes=attributes)

    async def leftovers(self) -> int:
        store = client(await self.open()).store
        return sum([len(page) async for page in obstore.list(store, layout.PARTS)])


class HarmedGround(AzureGround):
    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server.address(), folder)
        self._server = server

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)

    async def start(self) -> None:
        self._server.start()  # in this thread, with which the server dies


@pytest.fixture(scope="session")
def azure_server() -> Iterator[Server]:
    try:
        prepare()
    except Missing as missing:
        pytest.skip(str(missing))
    with temporary_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure_address(request: pytest.FixtureRequest) -> str:
    given = os.environ.get(ADDRESS_VARIABLE, "")
    return given or request.getfixturevalue("azure_server").address()


@pytest.fixture
def ground(azure_address: str, tmp_path: Path) -> AzureGround:
    return AzureGround(azure_address, tmp_path)


LONG = (suite.check_lists_by_pages,)


@pytest.mark.parametrize("check", [check for check in suite.CHECKS if check not in LONG], ids=name_of)
async def test_azure(ground: suite.Ground, check: suite.Check) -> None:
    await check(ground)


@pytest.mark.slow
@pytest.mark.parametrize("check", [*LONG, suite.check_large_file], ids=name_of)
async def test_azure_at_length(ground: suite.Ground, check: suite.Check) -> None:
    await check(ground)


@pytest.mark.parametrize("check", suite.SHARED_CHECKS, ids=name_of)
async def test_azure_of_killed_processes(ground: suite.SharedGround, check: suite.SharedCheck) -> None:
    await check(ground)


@own_server
async def test_azure_that_dies_comes_back(azure_server: Server, tmp_path: Path) -> None:
    await suite.check_store_that_dies_comes_back(HarmedGround(azure_server, tmp_path))


async def test_wrong_key_and_wrong_container(azure_server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    wrong = base64.b64encode(b"another key of the same length....").decode()
    blobs = await open_blobs(azure_server.address(key=wrong))
    for call in (blobs.check(), blobs.put("k", b"x"), blobs.get("k"), blobs.put_file("k", path), all_keys(blobs)):
        error = await refused(NotAllowed, call)
        assert wrong not in f"{error} {error.__cause__}"
    elsewhere = await open_blobs(azure_server.address(container="nosuch"))
    error = await refused(NotFound, elsewhere.check())
    assert "bucket" in error.cause
