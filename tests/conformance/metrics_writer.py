"""A process to be killed: writes counted batches through a lane on SQLite and prints each acknowledged sequence."""

import asyncio
import sys

from clutch.master.metrics_lane.sqlite import SqliteMetricsStore
from clutch.testing.metrics_suite import FENCE, MEMBER, counted, metrics_on


async def main(path: str) -> None:
    sequence = 0
    async with metrics_on(await SqliteMetricsStore.open(path)) as lane:
        while True:
            sequence = await lane.write(MEMBER, FENCE, [counted(sequence + 1)])
            print(sequence, flush=True)


asyncio.run(main(sys.argv[1]))
