"""How fast large files go into blobs and come back, beside `cp` and a bare obstore loop in the same run.

    python benchmarks/blobs.py [--gib 2] [--rounds 3] [--without-s3]

Into a folder: `put_file` ends with the file hashed, synced and renamed, so it is compared with `cp` followed by
`sync FILE`; bare `cp`, which leaves the file in the page cache, is shown beside it. Out of a folder: `get_file` checks
the hash, and like `cp` does not sync. Into S3 (a SeaweedFS on this machine): compared with one obstore `put`
(multipart, same part size and concurrency) and with a streamed `get` written to a file, neither of which hashes.
The ratios mean something only on a machine with an idle core: the hash runs beside the copy, `cp` has none.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import obstore

from clutch.backends.blobs.layout import PART_BYTES, WINDOW_MAX
from clutch.backends.blobs.object_store import ObjectBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.testing.seaweed import temporary_server

MIB = 1 << 20
AIM = 0.80


def make_file(path: Path, size_bytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(size_bytes // (16 * MIB)):
            file.write(os.urandom(16 * MIB))
        os.fsync(file.fileno())


def hash_rates() -> None:
    content = os.urandom(64 * MIB)
    print("hash of 64 MiB, one core:")
    for name in ("sha256", "blake2b", "blake2s", "sha3_256"):
        began = time.perf_counter()
        hashlib.new(name, content).digest()
        print(f"  {name:10} {64 / (time.perf_counter() - began):7.0f} MiB/s")


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def quiet(clean: Path | None) -> None:
    if clean is not None:
        clean.unlink(missing_ok=True)
    os.sync()


async def timed(call: Callable[[], Awaitable[object]], clean: Path | None = None) -> float:
    """Seconds of a call; what it leaves is removed, and the disk is quiet when it begins."""
    await asyncio.to_thread(quiet, clean)
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


def report(what: str, size_bytes: int, ours: list[float], theirs: list[float], peer: str) -> None:
    """The ratio is of the medians: above 1 we are faster."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    ratio = other / mine
    verdict = "" if ratio >= AIM else f"   below the aim of {AIM:.0%}"
    rate = size_bytes / MIB
    print(f"  {what:22} {rate / mine:7.0f} MiB/s   {peer:26} {rate / other:7.0f} MiB/s   ratio {ratio:5.0%}{verdict}")


async def folder(origin: Path, size: int, scratch: Path, rounds: int) -> None:
    blobs = await open_blobs(str(scratch / "blobs"))
    copy, back = scratch / "copy", scratch / "back"
    took: dict[str, list[float]] = {name: [] for name in ("put", "get", "cp", "cp+sync", "cp back")}

    async def cp(source: Path, target: Path, sync: bool) -> None:
        await asyncio.to_thread(run, "cp", source, target)
        if sync:
            await asyncio.to_thread(run, "sync", target)

    for _ in range(rounds):
        took["cp"].append(await timed(lambda: cp(origin, copy, False), copy))
        took["cp+sync"].append(await timed(lambda: cp(origin, copy, True), copy))
        await blobs.delete("k")
        took["put"].append(await timed(lambda: blobs.put_file("k", origin)))
        took["get"].append(await timed(lambda: blobs.get_file("k", back), back))
        took["cp back"].append(await timed(lambda: cp(scratch / "blobs" / "k", back, False), back))
    print(f"folder, {size / MIB:.0f} MiB, median of {rounds}:")
    report("put_file", size, took["put"], took["cp+sync"], "cp + sync")
    report("put_file", size, took["put"], took["cp"], "cp (not durable)")
    report("get_file", size, took["get"], took["cp back"], "cp")
    await blobs.delete("k")
    for path in (copy, back):
        path.unlink()


async def s3(address: str, origin: Path, size: int, scratch: Path, rounds: int) -> None:
    blobs = await open_blobs(address)
    assert isinstance(blobs, ObjectBlobs)
    store, back = blobs._client.store, scratch / "back"
    took: dict[str, list[float]] = {name: [] for name in ("put", "get", "bare put", "bare get")}

    async def bare_get() -> None:
        result = await obstore.get_async(store, "bare")
        with back.open("wb") as file:
            async for chunk in result.stream(PART_BYTES):
                await asyncio.to_thread(file.write, memoryview(chunk))

    async def bare_put() -> None:
        await obstore.put_async(store, "bare", origin, chunk_size=PART_BYTES, max_concurrency=WINDOW_MAX)

    async def ours_there() -> None:
        await blobs.put_file("k", origin)

    for number in range(rounds):
        there = [("bare put", bare_put), ("put", ours_there)]
        for name, call in there if number % 2 else reversed(there):  # neither is always first
            took[name].append(await timed(call))
        took["bare get"].append(await timed(bare_get, back))
        took["get"].append(await timed(lambda: blobs.get_file("k", back), back))
        await obstore.delete_async(store, "bare")
        await blobs.delete("k")
    print(f"S3 on this machine, {size / MIB:.0f} MiB, median of {rounds}:")
    report("put_file", size, took["put"], took["bare put"], "obstore put, no hash")
    report("get_file", size, took["get"], took["bare get"], "obstore get, no hash")


async def small(blobs_at: str, where: str) -> None:
    blobs = await open_blobs(blobs_at)
    content = os.urandom(64 * 1024)
    began = time.perf_counter()
    for number in range(200):
        await blobs.put(f"small/{number}", content, create=True)
    put = time.perf_counter() - began
    began = time.perf_counter()
    for number in range(200):
        await blobs.get(f"small/{number}")
    got = time.perf_counter() - began
    print(f"{where}, 64 KiB one after another: put {put / 200 * 1e3:.2f} ms (durable), get {got / 200 * 1e3:.2f} ms")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-s3", action="store_true")
    chosen = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    hash_rates()
    scratch = Path(tempfile.mkdtemp(prefix="clutch-blobs-"))
    try:
        origin = scratch / "origin"
        size = int(chosen.gib * 64) * 16 * MIB
        make_file(origin, size)
        await folder(origin, size, scratch, chosen.rounds)
        await small(str(scratch / "small"), "folder")
        if not chosen.without_s3:
            with temporary_server(volume_mb=1024) as server:
                await s3(server.address("bench"), origin, size, scratch, chosen.rounds)
                await small(server.address("small"), "S3")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    asyncio.run(main())
