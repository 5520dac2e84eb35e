"""A process to be killed: writes numbered pieces through a lane on SQLite and prints each acknowledged offset."""

import asyncio
import sys

from clutch.master.output.sqlite import SqliteOutputStore
from clutch.testing.output_suite import lane_on, numbered, piece


async def main(path: str) -> None:
    offset = 0
    async with lane_on(await SqliteOutputStore.open(path)) as lane:
        while True:
            (reached,) = await lane.write([piece(offset, numbered(offset))])
            offset = reached.stdout
            print(offset, flush=True)


asyncio.run(main(sys.argv[1]))
