"""Folders to and from every kind of store: killed, damaged, interrupted, full, forbidden, gone."""

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from clutch.runtime.checkpoint import Store
from clutch.runtime.checkpoint_landing import Landed
from clutch.testing.blobs_ground import MIB, all_keys, noise_file
from clutch.testing.seaweed import BUCKET, KEY_ID, SECRET, Server, temporary_server
from clutch.wire.errors import BadRequest, Conflict, Corrupt, DiskFull, NotAllowed, NotFound, Unavailable
from clutch.wire.experiments import Storage
from clutch.wire.push import CheckpointFile

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk or be somebody else")
EXAMPLES = Path(__file__).parents[3] / "examples"
PREFIX = "checkpoints/7-abc"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    with temporary_server() as server:
        yield server


def s3_storage(server: Server, name: str) -> Storage:
    return Storage(address=f"s3://{BUCKET}/{name}?endpoint={server.endpoint}&part_mib=1", secret="bucket")


@pytest.fixture(params=["folder", "s3", "own"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return Store.open(Storage(address=f"file://{tmp_path}/kept"))
    if request.param == "own":
        options = {"root": str(tmp_path / "kept")}
        return Store.open(Storage(address="class:own_store:CompressedFolder", options=options), here=EXAMPLES)
    server: Server = request.getfixturevalue("s3_server")
    return Store.open(s3_storage(server, tmp_path.name), secret=f"{KEY_ID}:{SECRET}")


def make(folder: Path, seed: int = 1) -> dict[str, bytes]:
    """A checkpoint: one large file, some small ones, odd names, an empty one, and a folder without any."""
    (folder / "deep" / "er").mkdir(parents=True)
    content = {
        "model.pt": noise_file(folder / "model.pt", seed, 5 * MIB + 17),
        "deep/er/shard 1.bin": noise_file(folder / "deep" / "er" / "shard 1.bin", seed + 1, 70_000),
        "Größe.json": noise_file(folder / "Größe.json", seed + 2, 300),
        "empty": noise_file(folder / "empty", seed, 0),
    }
    (folder / "no files" / "here").mkdir(parents=True)
    return {**content, "no files/here/": b""}


def content_of(folder: Path) -> dict[str, bytes]:
    """By path; that of a folder without anything in it ends with a slash."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    empty = [p for p in folder.rglob("*") if p.is_dir() and not any(p.iterdir())]
    return found | {f"{p.relative_to(folder)}/": b"" for p in empty}


def keys_of(store: Store, prefix: str) -> list[str]:
    return store._run(lambda blobs: all_keys(blobs, prefix))


def test_both_ways(store: Store, tmp_path: Path) -> None:
    content = make(tmp_path / "out")
    store.check()
    told: list[tuple[int, int]] = []
    files = store.upload(tmp_path / "out", PREFIX, lambda done, total: told.append((done, total)))
    assert [file.path for file in files] == sorted(content)
    for file in files:
        assert file.size_bytes == len(content[file.path])
        assert file.sha256 == hashlib.sha256(content[file.path]).hexdigest()
    total = sum(map(len, content.values()))
    assert told == sorted(told)
    assert told[-1] == (total, total)
    told.clear()
    assert store.download(PREFIX, files, tmp_path / "back", None, lambda *said: told.append(said)) == files
    assert content_of(tmp_path / "back") == content
    assert told[-1] == (total, total)
    assert store.upload(tmp_path / "out", PREFIX) == files, "the same again is the same manifest"


def test_selector_and_partial_delete(store: Store, tmp_path: Path) -> None:
    content = make(tmp_path / "out")
    files = store.upload(tmp_path / "out", PREFIX)
    store.download(PREFIX, files, tmp_path / "one", ["*.pt"])
    assert content_of(tmp_path / "one") == {"model.pt": content["model.pt"]}
    store.download(PREFIX, files, tmp_path / "two", lambda path: "shard" in path)
    assert list(content_of(tmp_path / "two")) == ["deep/er/shard 1.bin"]
    with pytest.raises(BadRequest):
        store.download(PREFIX, files, tmp_path / "three", ["nothing"])
    left = store.delete(PREFIX, files, ["*.pt", "deep/"])
    assert [file.path for file in left] == ["Größe.json", "empty", "no files/here/"]
    assert store.delete(PREFIX, files, ["*.pt", "deep/"]) == left
    store.download(PREFIX, left, tmp_path / "four")
    assert (tmp_path / "four" / "no files" / "here").is_dir()
    assert not any(file.is_folder for file in store.delete(PREFIX, left, ["no files/"]))
    with pytest.raises(NotFound, match=r"model\.pt|shard"):
        store.download(PREFIX, files, tmp_path / "five")
    assert store.delete(PREFIX, files) == ()
    assert store.delete(PREFIX, files) == ()
    with pytest.raises(NotFound):
        store.download(PREFIX, left, tmp_path / "six")


def test_what_is_there_is_not_sent_again(store: Store, tmp_path: Path) -> None:
    """A changed file is; the others are found by their hashes."""
    out = tmp_path / "out"
    content = make(out)
    store.upload(out, PREFIX)
    content["Größe.json"] = noise_file(out / "Größe.json", 50, 300)  # the same size
    (out / "more").write_bytes(b"more")
    content["more"] = b"more"
    files = store.upload(out, PREFIX)
    store.download(PREFIX, files, tmp_path / "back")
    assert content_of(tmp_path / "back") == content


def test_a_download_keeps_what_is_right_and_mends_what_is_not(store: Store, tmp_path: Path) -> None:
    content = make(tmp_path / "out")
    files = store.upload(tmp_path / "out", PREFIX)
    back = tmp_path / "back"
    store.download(PREFIX, files, back)
    kept = (back / "model.pt").stat()
    (back / "Größe.json").write_bytes(b"spoilt")
    store.download(PREFIX, files, back)
    assert content_of(back) == content
    assert (back / "model.pt").stat().st_ino == kept.st_ino


def test_other_bytes_than_the_manifest_says(store: Store, tmp_path: Path) -> None:
    make(tmp_path / "out")
    files = store.upload(tmp_path / "out", PREFIX)
    lying = tuple(
        CheckpointFile(f.path, f.size_bytes, "0" * 64) if f.path == "model.pt" else f for f in files
    )  # fmt: skip
    with pytest.raises(Corrupt, match=re.escape("model.pt")):
        store.download(PREFIX, lying, tmp_path / "back")
    assert not (tmp_path / "back" / "model.pt").exists()
    wrong = next(file for file in lying if file.path == "model.pt")
    assert not Landed(tmp_path / "back", wrong).aside.exists(), "others may be on their way, this one is thrown away"


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    store = Store.open(Storage(address=f"file://{tmp_path}/kept"))
    make(tmp_path / "out")
    files = store.upload(tmp_path / "out", PREFIX)
    with (tmp_path / "kept" / PREFIX / "model.pt").open("r+b") as file:
        file.seek(3 * MIB)
        byte = file.read(1)
        file.seek(3 * MIB)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(Corrupt, match=re.escape("model.pt")):
        store.download(PREFIX, files, tmp_path / "back")
    assert not (tmp_path / "back" / "model.pt").exists()
    store.download(PREFIX, files, tmp_path / "rest", lambda path: path != "model.pt")


CHILD = """
import sys
from pathlib import Path
from clutch.runtime.checkpoint import Store
from clutch.wire.experiments import Storage

def hold(done, total):
    if done >= total // 2:
        print("held", flush=True)
        sys.stdin.read()

address, secret, what, folder, prefix = sys.argv[1:]
store = Store.open(Storage(address=address), secret=secret)
if what == "up":
    store.upload(Path(folder), prefix, hold)
"""


def kill_in_the_middle(address: str, secret: str, folder: Path, prefix: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, address, secret, "up", str(folder), prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    said = child.stdout.readline()
    child.kill()
    child.communicate(timeout=30)
    assert said == b"held\n", "the fault did not fire"


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_killed_upload_goes_on(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    storage, secret = Storage(address=f"file://{tmp_path}/kept"), ""
    if kind == "s3":
        storage = s3_storage(request.getfixturevalue("s3_server"), tmp_path.name)
        secret = f"{KEY_ID}:{SECRET}"
    out = tmp_path / "out"
    out.mkdir()
    content = {f"{n}.bin": noise_file(out / f"{n}.bin", n, 20 * MIB) for n in range(2)}
    store = Store.open(storage, secret=secret)
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "f").write_bytes(b"before")
    before = store.upload(tmp_path / "before", "checkpoints/6-abc")
    kill_in_the_middle(storage.address, secret, out, PREFIX)
    files = store.upload(out, PREFIX)
    store.download(PREFIX, files, tmp_path / "back")
    assert content_of(tmp_path / "back") == content
    store.download("checkpoints/6-abc", before, tmp_path / "old")
    assert content_of(tmp_path / "old") == {"f": b"before"}


def test_orphans(store: Store, tmp_path: Path) -> None:
    """Only what nobody committed goes, and only when it is old."""
    make(tmp_path / "out")
    kept = store.upload(tmp_path / "out", "checkpoints/1-kept")
    store.upload(tmp_path / "out", "checkpoints/2-orphan")
    assert store.sweep_orphans(["checkpoints/1-kept"], 3600.0) == 0
    assert store.sweep_orphans(["checkpoints/1-kept", "checkpoints/2-orphan"], 0.0) == 0
    soon = -2.0  # S3 counts whole seconds
    assert store.sweep_orphans(["checkpoints/1-kept"], soon) >= sum(not file.is_folder for file in kept)
    assert store.sweep_orphans(["checkpoints/1-kept"], 0.0) == 0
    store.download("checkpoints/1-kept", kept, tmp_path / "back")
    with pytest.raises(NotFound):
        store.download("checkpoints/2-orphan", kept, tmp_path / "gone")


def test_chance_never_sweeps_what_was_committed(tmp_path: Path) -> None:
    chance = Random(11)
    store = Store.open(Storage(address=f"file://{tmp_path}/kept"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "f").write_bytes(b"x")
    committed: dict[str, tuple[CheckpointFile, ...]] = {}
    for number in range(40):
        prefix = f"checkpoints/{number}-{chance.randrange(99)}"
        files = store.upload(tmp_path / "out", prefix)
        if chance.random() < 0.5:
            committed[prefix] = files
        if chance.random() < 0.3:
            store.sweep_orphans(committed, 0.0)
    store.sweep_orphans(committed, 0.0)
    for prefix, files in committed.items():
        store.download(prefix, files, tmp_path / "back" / prefix)
    assert sorted(f"checkpoints/{p.name}" for p in (tmp_path / "kept" / "checkpoints").iterdir()) == sorted(committed)


def test_two_uploads_at_once(store: Store, tmp_path: Path) -> None:
    """Of different checkpoints, and of shards of one: each returns its own part of the manifest."""
    contents = [make(tmp_path / f"out{n}", 10 * n) for n in range(2)]
    shards = tmp_path / "shard"
    shards.mkdir()
    (shards / "rank-1.bin").write_bytes(b"of another rank")
    results: dict[str, tuple[CheckpointFile, ...]] = {}

    def upload(name: str, folder: Path, prefix: str) -> None:
        results[name] = store.upload(folder, prefix)

    threads = [
        threading.Thread(target=upload, args=("a", tmp_path / "out0", "checkpoints/1-a")),
        threading.Thread(target=upload, args=("b", tmp_path / "out1", "checkpoints/2-b")),
        threading.Thread(target=upload, args=("shard", shards, "checkpoints/1-a")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = (*results["a"], *results["shard"])
    store.download("checkpoints/1-a", whole, tmp_path / "back0")
    store.download("checkpoints/2-b", results["b"], tmp_path / "back1")
    assert content_of(tmp_path / "back0") == {**contents[0], "rank-1.bin": b"of another rank"}
    assert content_of(tmp_path / "back1") == contents[1]


def test_a_caller_with_a_loop_of_its_own(tmp_path: Path) -> None:
    """In a notebook, say."""
    store = Store.open(Storage(address=f"file://{tmp_path}/kept"))
    content = make(tmp_path / "out")

    async def main() -> None:
        files = store.upload(tmp_path / "out", PREFIX)
        store.download(PREFIX, files, tmp_path / "back")

    asyncio.run(main())
    assert content_of(tmp_path / "back") == content


def test_a_file_that_changes_or_vanishes(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    path = out / "growing.bin"
    noise_file(path, 1, 40 * MIB)
    stop = threading.Event()

    def grow() -> None:
        with path.open("ab") as file:
            while not stop.is_set():
                file.write(b"x")
                file.flush()
                stop.wait(0.001)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        with pytest.raises(Conflict, match=re.escape("growing.bin")):
            store.upload(out, PREFIX)
    finally:
        stop.set()
        writer.join()
    small = [noise_file(out / f"{n}.bin", n, 10) for n in range(200)]
    assert small

    def vanish(done: int, total: int) -> None:
        for number in range(200):
            (out / f"{number}.bin").unlink(missing_ok=True)

    with pytest.raises(NotFound, match=r"\d+\.bin"):
        store.upload(out, PREFIX, vanish)
    assert keys_of(store, PREFIX) == [], "what was stored of it is left"
    with pytest.raises(NotFound, match="there is no such folder"):
        store.upload(tmp_path / "nothing", PREFIX)


@only_root
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(out)
    (out / "model.pt").chmod(0)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept").chmod(0o777)
    script = (
        "import os, sys\nfrom clutch.runtime.checkpoint import Store\nfrom clutch.wire.experiments import Storage\n"
        "import clutch.backends.blobs.opening, clutch.backends.blobs.directory, clutch.runtime.checkpoint_apart\n"
        "import clutch.runtime.checkpoint_ways, asyncio\n"
        "os.setuid(65534)\n"
        "try:\n    Store.open(Storage(address=sys.argv[1])).upload(sys.argv[2], 'checkpoints/1')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", script, f"file://{tmp_path}/kept", str(out)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.startswith("NotAllowed")
    assert "model.pt" in said


@only_root
def test_a_full_disk(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", kept], check=True)
    try:
        store = Store.open(Storage(address=f"file://{kept}"))
        content = make(tmp_path / "out")
        files = store.upload(tmp_path / "out", "checkpoints/1-a")
        (tmp_path / "large").mkdir()
        for number, size in enumerate((20 * MIB, 18 * MIB, 400_000, 300_000)):
            noise_file(tmp_path / "large" / f"{number}.bin", number, size)
        with pytest.raises(DiskFull):
            store.upload(tmp_path / "large", "checkpoints/2-b")
        assert not (kept / "checkpoints" / "2-b").exists(), "files of the failed one are left"
        assert list((kept / ".clutch" / "parts").iterdir()) == [], "half-written files hold the room that is missing"
        (tmp_path / "fits").mkdir()
        noise_file(tmp_path / "fits" / "big.bin", 9, 6 * MIB)
        store.upload(tmp_path / "fits", "checkpoints/3-c")
        store.download("checkpoints/1-a", files, tmp_path / "back")
        assert content_of(tmp_path / "back") == content
        small = tmp_path / "small"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=True)
        try:
            with pytest.raises(DiskFull):
                store.download("checkpoints/1-a", files, small)
            assert not (small / "model.pt").exists()
        finally:
            subprocess.run(["umount", small], check=True)
    finally:
        subprocess.run(["umount", kept], check=True)


def test_wrong_credentials_before_a_training(s3_server: Server, tmp_path: Path) -> None:
    storage = s3_storage(s3_server, tmp_path.name)
    with pytest.raises(NotAllowed) as refused:
        Store.open(storage, secret=f"{KEY_ID}:wrong-secret-of-mine").check()
    assert "wrong-secret-of-mine" not in str(refused.value)
    with pytest.raises(BadRequest, match="no credentials"):
        Store.open(storage).check()
    with pytest.raises(BadRequest, match="KEY:SECRET"):
        Store.open(storage, secret="nothing-to-divide")
    with pytest.raises(NotFound, match="bucket"):
        Store.open(
            Storage(address=storage.address.replace(BUCKET, "nobucket")), secret=f"{KEY_ID}:{SECRET}"
        ).check()  # fmt: skip


def test_a_vanished_folder_is_not_made_again(tmp_path: Path) -> None:
    """A folder that was unmounted must not quietly become one on the disk below it."""
    kept = tmp_path / "kept"
    store = Store.open(Storage(address=f"file://{kept}"))
    make(tmp_path / "out")
    files = store.upload(tmp_path / "out", PREFIX)
    kept.rename(tmp_path / "away")
    for call in (
        lambda: store.upload(tmp_path / "out", PREFIX),
        lambda: store.download(PREFIX, files, tmp_path / "back"),
        lambda: store.delete(PREFIX, files),
        lambda: store.sweep_orphans([]),
        lambda: Store.open(Storage(address=f"file://{kept}")).download(PREFIX, files, tmp_path / "back"),
    ):
        with pytest.raises(Unavailable, match="mounted"):
            call()
    assert not kept.exists()
    (tmp_path / "away").rename(kept)
    store.download(PREFIX, files, tmp_path / "back")


def test_classes_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "odd_store.py").write_text("class Half:\n    def put(self, key, path): ...\n\nnumber = 3\n")
    for address, said in (
        ("class:", "names no class"),
        ("class:odd_store", "names no class"),
        ("class:no_such_module:Store", "no_such_module"),
        ("class:odd_store:Missing", "Missing"),
        ("class:odd_store:number", "not a class"),
        ("class:odd_store:Half", "no method get"),
    ):
        with pytest.raises(BadRequest, match=said):
            Store.open(Storage(address=address), here=tmp_path).check()


def test_paths_that_no_store_can_have(tmp_path: Path) -> None:
    store = Store.open(Storage(address=f"file://{tmp_path}/kept"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "back\\slash").write_bytes(b"x")
    with pytest.raises(BadRequest, match="slash"):
        store.upload(tmp_path / "out", PREFIX)
    evil = (CheckpointFile("../../evil", 1, "0" * 64),)
    for call in (lambda: store.download(PREFIX, evil, tmp_path / "back"), lambda: store.delete(PREFIX, evil)):
        with pytest.raises(BadRequest):
            call()
    with pytest.raises(BadRequest):
        store.delete("", ())
    with pytest.raises(BadRequest):
        store.delete("../x", ())


def test_nothing_heavy_is_imported_before_something_moves() -> None:
    script = (
        "import sys\nfrom clutch.runtime.checkpoint import Store\nfrom clutch.wire.experiments import Storage\n"
        "Store.open(Storage(address='s3://bucket'), secret='a:b')\n"
        "print([name for name in ('asyncio', 'obstore', 'httpx', 'hdfs_native') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "[]"
