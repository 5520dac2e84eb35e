"""How fast a checkpoint's folder is stored and fetched, beside `cp` and a bare obstore loop in the same run.

    python benchmarks/checkpoints.py [--gib 2] [--rounds 3] [--without-s3] [--stages]

One large file (three quarters), a few of 64 MiB, some small ones. Into a folder: `upload` ends with every file hashed,
synced and renamed, so it is compared with `cp -r` followed by `sync` of each file; bare `cp`, which leaves all in the
page cache, stands beside it. Out of a folder: `download` checks every hash, and like `cp` does not sync; beside it
stand `cp`, and `cp` with a check of every hash afterwards. The stored files are in the page cache first, and then only
on the disk, as after a restart on another day. S3 (a SeaweedFS on this machine) is compared with a loop over the same
files with the client library alone, as many parts at once, which hashes nothing.

Beside each median stand the best round and the CPU time. `bound` is what the hash alone allows: SHA-256 of the largest
file is one thread, and all hashes and copies share the cores. The ratios mean something only on an idle machine.
Before each step all free memory is touched and given back: in a virtual machine the first to use a page that the host
has taken back pays for it, several times what a copy costs.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import mmap
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import obstore

from clutch.backends.blobs.layout import PART_BYTES, WINDOW_MAX
from clutch.backends.blobs.opening import open_blobs
from clutch.runtime.checkpoint import LARGE_AT_ONCE, Store
from clutch.testing.seaweed import BUCKET, KEY_ID, SECRET, temporary_server
from clutch.wire.experiments import Storage

MIB = 1 << 20
AIM = 0.80
LEFT_FREE_BYTES = 512 << 20
ZEROS = bytes(MIB)
PREFIX = "checkpoints/1-bench"


def make_folder(folder: Path, size_mib: int) -> int:
    """A checkpoint of about this size; how many bytes it has."""
    folder.mkdir()
    sizes = {"model.safetensors": size_mib * 3 // 4, "small/tokenizer.json": 2}
    sizes |= {f"optimizer/shard-{number}.bin": 64 for number in range(max(1, size_mib // 4 // 64))}
    sizes |= {f"small/{number}.json": 0 for number in range(20)}
    total = 0
    for name, mib in sizes.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            for _ in range(mib):
                file.write(os.urandom(MIB))
            file.write(os.urandom(5_000))
            os.fsync(file.fileno())
        total += path.stat().st_size
    return total


def timed(call: Callable[[], object], clean: Path | None = None) -> tuple[float, float]:
    """Seconds by the clock, and of CPU in this process and its children; the disk is quiet when it begins."""
    if clean is not None:
        shutil.rmtree(clean, ignore_errors=True)
    os.sync()
    touch_free_memory()
    before, began = _cpu(), time.perf_counter()
    call()
    return time.perf_counter() - began, _cpu() - before


def touch_free_memory() -> None:
    """Use what is free and give it back, so that whoever takes it next finds it there."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free_kib = next(int(line.split()[1]) for line in lines if line.startswith("MemFree:"))
    size = max(MIB, (free_kib * 1024 - LEFT_FREE_BYTES) // MIB * MIB)
    with mmap.mmap(-1, size) as pages:
        for start in range(0, size, MIB):
            pages[start : start + MIB] = ZEROS


def _cpu() -> float:
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in found)


Times = dict[str, list[tuple[float, float]]]


def report(what: str, size: int, took: Times, ours: str, theirs: str) -> None:
    mine, other = (statistics.median(one[0] for one in took[name]) for name in (ours, theirs))
    best, best_other = (min(one[0] for one in took[name]) for name in (ours, theirs))
    busy, busy_other = (statistics.median(one[1] for one in took[name]) for name in (ours, theirs))
    ratio = other / mine
    verdict = "" if ratio >= AIM else f"   below the aim of {AIM:.0%}"
    rate = size / MIB
    print(
        f"  {what:20} {rate / mine:5.0f} MiB/s (best {rate / best:5.0f}, {busy:4.1f} s of CPU)   "
        f"{theirs:12} {rate / other:5.0f} MiB/s (best {rate / best_other:5.0f}, {busy_other:4.1f} s)   "
        f"ratio {ratio:5.0%}, of the best {best_other / best:5.0%}{verdict}"
    )


def copy(source: Path, target: Path, *, sync: bool) -> None:
    subprocess.run(["cp", "-r", source, target], check=True)
    if sync:
        files = [str(path) for path in target.rglob("*") if path.is_file()]
        subprocess.run(["sync", *files], check=True)


def copy_and_check(source: Path, target: Path) -> None:
    """`cp`, then the SHA-256 of every file: what a download gives, one after the other."""
    copy(source, target, sync=False)
    for path in files_of(target):
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")


def in_memory(folder: Path, *, wanted: bool) -> None:
    """The stored files are in the page cache, or are not."""
    os.sync()
    for path in files_of(folder):
        with path.open("rb") as file:
            if not wanted:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while wanted and file.read(4 * MIB):
                pass


def bound(origin: Path) -> None:
    """What the hashes allow, if nothing else took any time: the largest file by one core, all files by all cores."""
    sizes = [size_of(path) for path in files_of(origin)]
    rate = hash_rate()
    cores = os.cpu_count() or 1
    longest = max(max(sizes), sum(sizes) / cores) / MIB / rate
    print(f"sha256, one core: {rate:.0f} MiB/s; bound of this folder: {sum(sizes) / MIB / longest:.0f} MiB/s")


def folder(origin: Path, size: int, scratch: Path, rounds: int) -> None:
    store = Store.open(Storage(address=f"file://{scratch}/kept"))
    store.check()
    copied, back = scratch / "copy", scratch / "back"
    names = ("up", "cp", "cp + sync", "down", "cp back", "cp + check", "down from disk", "cp from disk")
    took: Times = {name: [] for name in names}
    for number in range(rounds):
        plain = [
            ("cp", lambda: timed(lambda: copy(origin, copied, sync=False), copied)),
            ("cp + sync", lambda: timed(lambda: copy(origin, copied, sync=True), copied)),
        ]
        store.delete(PREFIX)
        up = ("up", lambda: timed(lambda: store.upload(origin, PREFIX)))
        for name, run in [up, *plain] if number % 2 else [*plain, up]:  # neither is always first
            took[name].append(run())
        files = store.upload(origin, PREFIX)
        runs = [
            ("down", lambda: store.download(PREFIX, files, back)),  # noqa: B023
            ("cp back", lambda: copy(scratch / "kept" / PREFIX, back, sync=False)),
            ("cp + check", lambda: copy_and_check(scratch / "kept" / PREFIX, back)),
            ("down from disk", lambda: store.download(PREFIX, files, back)),  # noqa: B023
            ("cp from disk", lambda: copy(scratch / "kept" / PREFIX, back, sync=False)),
        ]
        for name, call in runs if number % 2 else reversed(runs):
            in_memory(scratch / "kept" / PREFIX, wanted="disk" not in name)
            took[name].append(timed(call, back))
    print(f"folder, {size / MIB:.0f} MiB, median of {rounds}:")
    report("upload", size, took, "up", "cp + sync")
    report("upload", size, took, "up", "cp")
    report("download", size, took, "down", "cp back")
    report("download", size, took, "down", "cp + check")
    report("download from disk", size, took, "down from disk", "cp from disk")
    store.delete(PREFIX)
    for path in (copied, back):
        shutil.rmtree(path)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_of(path: Path) -> int:
    return path.stat().st_size


async def bare_put(address: str, origin: Path) -> None:
    """The same files with the client library alone: as many files and parts at once, nothing hashed."""
    bucket = (await open_blobs(address))._client.store  # type: ignore[attr-defined]
    gate = asyncio.Semaphore(LARGE_AT_ONCE)

    async def one(path: Path) -> None:
        async with gate:
            name = f"bare/{path.relative_to(origin)}"
            await obstore.put_async(bucket, name, path, chunk_size=PART_BYTES, max_concurrency=WINDOW_MAX)

    await asyncio.gather(*(one(path) for path in files_of(origin)))


async def bare_get(address: str, origin: Path, back: Path) -> None:
    sizes = {path: size_of(path) for path in files_of(origin)}
    bucket = (await open_blobs(address))._client.store  # type: ignore[attr-defined]
    gate = asyncio.Semaphore(LARGE_AT_ONCE)

    async def one(path: Path) -> None:
        async with gate:
            inner = path.relative_to(origin)
            (back / inner).parent.mkdir(parents=True, exist_ok=True)
            with (back / inner).open("wb") as file:
                parts = asyncio.Semaphore(WINDOW_MAX)
                size = sizes[path]

                async def part(start: int) -> None:
                    async with parts:
                        stop = min(start + PART_BYTES, size)
                        content = await obstore.get_range_async(bucket, f"bare/{inner}", start=start, end=stop)
                        await asyncio.to_thread(os.pwrite, file.fileno(), memoryview(content), start)

                await asyncio.gather(*(part(start) for start in range(0, size, PART_BYTES)))

    await asyncio.gather(*(one(path) for path in files_of(origin)))


def s3(endpoint: str, origin: Path, size: int, scratch: Path, rounds: int) -> None:
    place = f"{BUCKET}/bench?endpoint={endpoint}"
    store = Store.open(Storage(address=f"s3://{place}"), secret=f"{KEY_ID}:{SECRET}")
    address = f"s3://{KEY_ID}:{SECRET}@{place}"
    back = scratch / "back"
    took: Times = {name: [] for name in ("up", "obstore put", "down", "obstore get")}
    for number in range(rounds):
        runs = [
            ("obstore put", lambda: timed(lambda: asyncio.run(bare_put(address, origin)))),
            ("up", lambda: timed(lambda: store.upload(origin, PREFIX))),
        ]
        for name, run in runs if number % 2 else reversed(runs):
            took[name].append(run())
        files = store.upload(origin, PREFIX)
        runs = [
            ("obstore get", lambda: timed(lambda: asyncio.run(bare_get(address, origin, back)), back)),
            ("down", lambda: timed(lambda: store.download(PREFIX, files, back), back)),  # noqa: B023
        ]
        for name, run in runs if number % 2 else reversed(runs):
            took[name].append(run())
        store.delete(PREFIX)
    print(f"S3 on this machine, {size / MIB:.0f} MiB, median of {rounds}:")
    report("upload", size, took, "up", "obstore put")
    report("download", size, took, "down", "obstore get")


def stages(origin: Path, size: int, scratch: Path) -> None:
    """Copy, sync and hash one after another in one thread: what an upload does at the same time in several."""
    target = scratch / "stages"
    took = {"copy": (0.0, 0.0), "sync": (0.0, 0.0), "hash": (0.0, 0.0)}
    buffer = memoryview(bytearray(MIB))

    def hashed(file: int) -> None:
        digest, done = hashlib.sha256(), 0
        while count := os.preadv(file, [buffer], done):
            digest.update(buffer[:count])
            done += count

    def copied(source: int, file: int) -> None:
        while os.copy_file_range(source, file, 64 * MIB):
            pass

    os.sync()
    for path in files_of(origin):
        with path.open("rb") as source, target.open("w+b") as sink:
            ends = (source.fileno(), sink.fileno())
            for name, call in (
                ("copy", lambda: copied(*ends)),  # noqa: B023
                ("sync", lambda: os.fsync(ends[1])),  # noqa: B023
                ("hash", lambda: hashed(ends[1])),  # noqa: B023
            ):
                wall, cpu = time.perf_counter(), time.thread_time()
                call()
                before = took[name]
                took[name] = (before[0] + time.perf_counter() - wall, before[1] + time.thread_time() - cpu)
    target.unlink()
    print(f"stages of an upload, {size / MIB:.0f} MiB, one after another:")
    for name, (wall, cpu) in took.items():
        print(f"  {name:6} {wall:6.2f} s by the clock, {cpu:5.2f} s of CPU")


def hash_rate() -> float:
    """MiB a second, the best of a few."""
    content = os.urandom(64 * MIB)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        hashlib.sha256(content).digest()
        took.append(time.perf_counter() - began)
    return 64 / min(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-s3", action="store_true")
    parser.add_argument("--without-folder", action="store_true")
    parser.add_argument("--stages", action="store_true", help="what each stage of an upload costs by itself")
    chosen = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    scratch = Path(tempfile.mkdtemp(prefix="clutch-checkpoints-"))
    try:
        origin = scratch / "origin"
        size = make_folder(origin, int(chosen.gib * 1024))
        bound(origin)
        if chosen.stages:
            stages(origin, size, scratch)
        if not chosen.without_folder:
            folder(origin, size, scratch, chosen.rounds)
        if not chosen.without_s3:
            with temporary_server(volume_mb=1024) as server:
                s3(server.endpoint, origin, size, scratch, chosen.rounds)
        print(f"load after: {os.getloadavg()[0]:.1f}")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
