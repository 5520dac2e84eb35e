"""A process to be stopped and woken: leads a journal, prints each acknowledged index, and at last that it is stale."""

import asyncio
import sys

from clutch.backends.journal.postgres import PostgresJournal
from clutch.testing.journal_suite import numbered_batch
from clutch.wire.errors import Stale


async def main(address: str) -> None:
    journal = await PostgresJournal.open(address)
    lead = await journal.lead("old", 0.0)
    last = lead.last_index
    try:
        while True:
            last = await journal.append(numbered_batch(lead, last + 1, 10))
            print(last, flush=True)
    except Stale:
        print("stale", flush=True)
    await journal.close()


asyncio.run(main(sys.argv[1]))
