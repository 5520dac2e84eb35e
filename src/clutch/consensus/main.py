"""The process of one member: ``python -m clutch.consensus.main settings.json``.

Composition root: reads its settings from one file, builds the driver, runs it until SIGTERM or until it must stop. What
stops it is written to standard error as one line of JSON with the error's code, and told by the exit code.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from pathlib import Path

import msgspec

from clutch.consensus.driver import Driver, DriverSettings, founding_of
from clutch.wire.errors import BadRequest, ClutchError, NotAllowed

EXIT_CODES = {"user": 2, "cluster": 3, "bug": 4}


def read_settings(path: Path) -> DriverSettings:
    """The settings in this file. Raises BadRequest, or NotAllowed where others may read the secret key in it."""
    try:
        if path.stat().st_mode & 0o077:
            raise NotAllowed("others may read the secret key in it", object=str(path), next_step=f"chmod 600 {path}")
        return msgspec.json.decode(path.read_bytes(), type=DriverSettings)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadRequest(f"the settings cannot be read: {error}", object=str(path)) from error


def keep_memory() -> None:
    """Let the allocator keep what it has: by default each large buffer is mapped, zeroed and unmapped by the kernel."""
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of mallopt(3)
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 256 << 20)
    except (OSError, AttributeError):
        return  # another C library: slower, not wrong


async def run(settings: DriverSettings) -> None:
    """One member until it is told to stop."""
    driver = Driver(settings, founding_of(settings, os.urandom(16).hex()))
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, driver.stop)
    # Nothing here makes cycles worth finding often, and a full collection of a large log would stall heartbeats.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)
    await driver.run()


def main(arguments: list[str]) -> int:
    try:
        if len(arguments) != 1:
            raise BadRequest("one argument is needed: the settings file", object="clutch.consensus.main")
        keep_memory()
        asyncio.run(run(read_settings(Path(arguments[0]))))
    except ClutchError as error:
        sys.stderr.write(msgspec.json.encode(error.view()).decode() + "\n")
        return EXIT_CODES[error.blame]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
