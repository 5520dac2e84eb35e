"""A process to be killed while it uses blobs.

    python -m clutch.testing.blobs_child put-file ADDRESS KEY PATH HOLD_AT
    python -m clutch.testing.blobs_child get-file ADDRESS KEY PATH HOLD_AT
    python -m clutch.testing.blobs_child put-stream ADDRESS KEY CHUNK_BYTES HOLD_AT
    python -m clutch.testing.blobs_child put-versions ADDRESS KEY SIZE_BYTES FIRST
    python -m clutch.testing.blobs_child fill ADDRESS KEY SIZE_BYTES LIMIT_BYTES

The first three say ``held`` when so many bytes are done, and go no further. The fourth puts one version after another
and says each number when it is acknowledged. The last may write no file larger than the limit, and says what happens.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from clutch.backends.blobs.base import FullBlobs
from clutch.backends.blobs.opening import open_blobs
from clutch.testing.blobs_ground import version
from clutch.wire.errors import ClutchError


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class _Hold:
    """Stops everything once enough is done; standard input ends only with the parent."""

    def __init__(self, at_bytes: int) -> None:
        self._at_bytes = at_bytes

    def __call__(self, done_bytes: int, reused_bytes: int) -> None:
        if done_bytes >= self._at_bytes:
            _say("held")
            sys.stdin.read()


async def _endless(chunk_bytes: int, hold: _Hold) -> AsyncIterator[bytes]:
    done = 0
    while True:
        yield bytes(chunk_bytes)
        done += chunk_bytes
        hold(done, 0)


async def _put_versions(blobs: FullBlobs, key: str, size_bytes: int, first: int) -> None:
    number = first
    while True:
        await blobs.put(key, version(number, size_bytes))
        _say(str(number))
        number += 1


async def _fill(blobs: FullBlobs, key: str, size_bytes: int, limit_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    try:
        await blobs.put(key, bytes(size_bytes))
    except ClutchError as error:
        _say(type(error).__name__)
    else:
        _say("stored")


async def main(what: str, address: str, key: str, third: str, fourth: str) -> None:
    blobs = await open_blobs(address)
    if what == "put-file":
        await blobs.put_file(key, Path(third), progress=_Hold(int(fourth)))
    elif what == "get-file":
        await blobs.get_file(key, Path(third), progress=_Hold(int(fourth)))
    elif what == "put-stream":
        await blobs.put(key, _endless(int(third), _Hold(int(fourth))))
    elif what == "put-versions":
        await _put_versions(blobs, key, int(third), int(fourth))
    elif what == "fill":
        await _fill(blobs, key, int(third), int(fourth))
    else:
        raise SystemExit(f"unknown: {what}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
