"""A process to be killed: appends numbered batches to a SQLite journal and prints each acknowledged index."""

import asyncio
import sys

from clutch.backends.journal.sqlite import SqliteJournal
from clutch.testing.journal_suite import numbered_batch


async def main(path: str, batch_rows: int) -> None:
    journal = await SqliteJournal.open(path)
    lead = await journal.lead("writer", 0.0)
    last = lead.last_index
    while True:
        last = await journal.append(numbered_batch(lead, last + 1, batch_rows))
        print(last, flush=True)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
