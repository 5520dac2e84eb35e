"""Output of real commands: complete below the cap, with an exact gap beyond it, on a full disk too."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from shim_ground import ShimGround, key_of

from clutch.agent import spool
from clutch.backends.containers.base import Key
from clutch.wire.messages import ExitCause

BLOCKS, BLOCK_BYTES = 100, 1_000_000
FAST = f"""
import os
for number in range({BLOCKS}):
    block = (b"%08d " % number * ({BLOCK_BYTES} // 9 + 1))[:{BLOCK_BYTES}]
    while block:
        block = block[os.write(1 + number % 2, block):]
"""


async def test_a_hundred_megabytes_at_full_speed(ground: ShimGround) -> None:
    containers = ground.open()
    spec = ground.spec("fast", sys.executable, "-S", "-c", FAST)
    await containers.start(spec)
    record = await containers.wait(key_of(spec), 60.0)
    assert record.code == 0
    wanted = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
    for number in range(BLOCKS):
        stream = ("stdout", "stderr")[number % 2]
        wanted[stream].update((b"%08d " % number * (BLOCK_BYTES // 9 + 1))[:BLOCK_BYTES])
    got = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
    cursor, turns = spool.Cursor(), 0
    while True:
        pieces, cursor = spool.read(ground.path(key_of(spec)) / "output", cursor, 4 * 2**20)
        if not pieces:
            break
        turns += 1
        for piece in pieces:
            assert isinstance(piece, spool.Piece)
            got[piece.stream].update(piece.data)
    half = BLOCKS * BLOCK_BYTES // 2
    assert (cursor.stdout, cursor.stderr) == (record.stdout_bytes, record.stderr_bytes) == (half, half)
    assert {name: digest.hexdigest() for name, digest in got.items()} == {
        name: digest.hexdigest() for name, digest in wanted.items()
    }
    assert turns > 10  # in portions, not all at once


def numbered(count: int) -> bytes:
    return b"".join(b"line %07d\n" % number for number in range(count))


async def test_beyond_the_cap_the_oldest_bytes_become_a_gap(ground: ShimGround) -> None:
    containers = ground.open()
    cap_bytes = 2**20
    script = "import sys\nfor n in range(400_000): sys.stdout.write('line %07d\\n' % n)\nsys.stderr.write('end')"
    spec = replace(ground.spec("loud", sys.executable, "-S", "-c", script), output_cap_bytes=cap_bytes)
    key = key_of(spec)
    await containers.start(spec)
    record = await containers.wait(key, 60.0)
    written = numbered(400_000)
    assert (record.code, record.stdout_bytes, record.stderr_bytes) == (0, len(written), 3)
    held = sum(path.stat().st_size for path in (ground.path(key) / "output").iterdir())
    assert cap_bytes // 2 < held <= cap_bytes
    gap, *pieces = ground.pieces(key)
    assert isinstance(gap, spool.Gap) and (gap.stream, gap.start) == ("stdout", 0) and gap.end > 0
    assert b"".join(p.data for p in pieces if isinstance(p, spool.Piece) and p.stream == "stdout") == written[gap.end :]
    assert not [p for p in pieces if isinstance(p, spool.Gap)]
    assert len(written) - gap.end > cap_bytes // 2
    # One who had shipped some of it misses only what was dropped unshipped.
    later = ground.pieces(key, stdout=gap.end - 10)
    assert later[0] == spool.Gap("stdout", gap.end - 10, gap.end)
    beyond = ground.pieces(key, stdout=gap.end + 5)
    assert isinstance(beyond[0], spool.Piece) and beyond[0].offset == gap.end + 5


async def test_what_is_shipped_in_time_never_meets_the_cap(ground: ShimGround) -> None:
    """Twenty times the cap passes through, as long as the reader releases what it has."""
    containers = ground.open()
    chunk, rounds, cap_bytes = 200_000, 20, 2**20
    os.mkfifo(ground.folder / "go")
    script = f"""
for number in range({rounds}):
    print(chr(97 + number) * {chunk}, end="", flush=True)
    open("go").read()
"""
    spec = replace(ground.spec("paced", sys.executable, "-S", "-c", script), output_cap_bytes=cap_bytes)
    key = key_of(spec)
    await containers.start(spec)
    cursor, got, released = spool.Cursor(), b"", 0
    for number in range(rounds):
        while len(got) < chunk * (number + 1):
            assert await containers.changed(key, 30.0)
            pieces, cursor = spool.read(ground.path(key) / "output", cursor, 2**20)
            for piece in pieces:
                assert isinstance(piece, spool.Piece), piece
                got += piece.data
        released += spool.release(ground.path(key) / "output", cursor)
        (ground.folder / "go").write_text("go")
    assert (await containers.wait(key, 30.0)).code == 0
    assert got == b"".join(bytes([97 + number]) * chunk for number in range(rounds))
    assert released >= rounds


async def test_many_small_lines_are_kept_in_their_order(ground: ShimGround) -> None:
    """What one stream says before the other is read before it, when the writer waits a moment in between."""
    containers = ground.open()
    script = "import os,time\nfor n in range(60):\n os.write(1 + n % 2, b'%d\\n' % n); time.sleep(0.004)"
    spec = ground.spec("order", sys.executable, "-S", "-c", script)
    await containers.start(spec)
    await containers.wait(key_of(spec), 30.0)
    pieces = [piece for piece in ground.pieces(key_of(spec)) if isinstance(piece, spool.Piece)]
    times = [piece.at for piece in pieces]
    assert times == sorted(times)
    streams = {name: b"".join(p.data for p in pieces if p.stream == name) for name in ("stdout", "stderr")}
    assert streams["stdout"] == b"".join(b"%d\n" % n for n in range(0, 60, 2))
    assert streams["stderr"] == b"".join(b"%d\n" % n for n in range(1, 60, 2))
    assert len(pieces) > 20  # a shim that reads only at the end would have two


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
async def small_ground(small_disk: Path) -> AsyncIterator[ShimGround]:
    ground = ShimGround(small_disk)
    yield ground
    (small_disk / "filler").unlink(missing_ok=True)
    await ground.close()


async def test_a_full_disk_costs_old_output_and_never_the_record(small_ground: ShimGround) -> None:
    ground = small_ground
    containers = ground.open()
    script = f"head -c 5000000 /dev/zero | tr '\\000' x; head -c {300_000} /dev/zero | tr '\\000' y; exit 8"
    spec = ground.sh("filling", script)
    key = key_of(spec)
    await containers.start(spec)
    record = await containers.wait(key, 60.0)
    assert (record.code, record.stdout_bytes) == (8, 5_300_000)
    pieces = ground.pieces(key)
    ends = check_tiling(pieces, key)
    gaps, _ = spool.rest(spool.Cursor(stdout=ends), record.stdout_bytes, record.stderr_bytes)
    assert [piece for piece in pieces if isinstance(piece, spool.Gap)]
    assert ground.stdout(key).endswith(b"y" * 1000) and gaps == []  # room was made, so the end is there


async def test_the_record_has_its_place_on_a_disk_that_others_filled(
    small_disk: Path, small_ground: ShimGround
) -> None:
    ground = small_ground
    containers = ground.open()
    spec = ground.sh("silent", "trap 'exit 6' TERM; sleep 600 & wait")
    key = key_of(spec)
    await containers.start(spec)
    while (seen := await containers.observe(key)) is None or seen.pid == 0:
        await containers.changed(key, 30.0)
    assert fill(small_disk)
    await containers.signal(key, signal.SIGTERM)
    record = await containers.wait(key, 20.0)
    assert record.code in (6, -signal.SIGTERM) and record.cause is ExitCause.OWN, record


def fill(disk: Path) -> bool:
    """Write until there is no room for another byte."""
    with (disk / "filler").open("ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as full:
                assert full.errno == errno.ENOSPC
    return True


def check_tiling(pieces: list[spool.Piece | spool.Gap], key: Key) -> int:
    """Pieces and gaps of stdout follow each other without hole or overlap; gives where they end."""
    at = 0
    for piece in pieces:
        start = piece.offset if isinstance(piece, spool.Piece) else piece.start
        assert start == at, (piece, at, key)
        if isinstance(piece, spool.Gap):
            at = piece.end
        else:
            expected = b"x" * max(0, min(5_000_000 - at, len(piece.data)))
            assert piece.data == expected + b"y" * (len(piece.data) - len(expected))
            at += len(piece.data)
    return at


@pytest.mark.slow
async def test_how_fast(ground: ShimGround) -> None:
    """A gigabyte, and the figures a person may want to see: ``pytest -m slow -s``."""
    containers = ground.open()
    spec = ground.spec("gigabyte", "head", "-c", "1000000000", "/dev/zero")
    began = time.perf_counter()
    await containers.start(spec)
    record = await containers.wait(key_of(spec), 100.0)
    assert record.stdout_bytes == 10**9
    speed = 1000 / (time.perf_counter() - began)
    print(f"output: {speed:.0f} MB/s")
    assert speed > 50
