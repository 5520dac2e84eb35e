"""Addresses: what each opens, and how a wrong one is refused without showing a secret."""

from pathlib import Path

import pytest

from clutch.backends.blobs.directory import DirectoryBlobs
from clutch.backends.blobs.memory import MemoryBlobs
from clutch.backends.blobs.object_store import ObjectBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.wire.errors import BadRequest, NotAllowed


async def test_each_address_opens_its_way(tmp_path: Path) -> None:
    assert isinstance(await open_blobs("memory:"), MemoryBlobs)
    for address in (f"file://{tmp_path}/a%20b", str(tmp_path / "c"), f"file://{tmp_path}/d/e/f"):
        blobs = await open_blobs(address)
        assert isinstance(blobs, DirectoryBlobs)
        await blobs.check()
        await blobs.close()
    assert (tmp_path / "a b").is_dir()
    for address in (
        "s3://KEY:SECRET@bucket",
        "s3://KEY:SECRET@bucket/pre/fix?endpoint=http://127.0.0.1:1&region=eu-central-1&part_mib=64",
        "az://account:c2VjcmV0@container/prefix?endpoint=http://127.0.0.1:1",
    ):
        blobs = await open_blobs(address)
        assert isinstance(blobs, ObjectBlobs)
        await blobs.close()


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("", "empty"),
        ("file:x", "no folder"),
        ("file:///", "no folder"),
        ("ftp://host/x", "no way to keep blobs"),
        ("s3://KEY:SECRET@", "no bucket"),
        ("s3://bucket", "no credentials"),
        ("gs://bucket/x", "no credentials"),
        ("az://container", "no credentials"),
        ("s3://KEY:SECRET@bucket?colour=red", "unknown option 'colour'"),
        ("s3://KEY:SECRET@bucket?endpoint=nowhere", "no address"),
        ("s3://KEY:SECRET@bucket?part_mib=0", "part_mib"),
        ("s3://KEY:SECRET@bucket?part_mib=x", "part_mib"),
        ("s3://KEY:SECRET@bucket?credentials=mine", "ambient"),
        ("s3://KEY:SECRET@bucket/../other", "segment"),
        ("gs://bucket?key_file=/no/such/file", "not accepted"),
        ("az://account:not-base64!@container", "not accepted"),
    ],
)
async def test_a_wrong_address_says_what_is_wrong(address: str, cause: str) -> None:
    with pytest.raises(BadRequest) as caught:
        await open_blobs(address)
    assert cause in caught.value.cause
    assert caught.value.object
    assert caught.value.next_step
    assert "SECRET@" not in str(caught.value).replace("KEY:SECRET@BUCKET", "")


async def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Exception) as caught:
        await open_blobs(str(tmp_path / "file"))
    assert type(caught.value).__name__ in ("Conflict", NotAllowed.__name__)
