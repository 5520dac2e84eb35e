"""A member in a process of its own that reports whatever happens to its master.

    python metrics_sender.py URL TOKEN BATCHES

Each batch is sent until it is acknowledged, now and then together with ones that were, and then once more. What was
sent is on standard output: a line for each acknowledged sequence.
"""

from __future__ import annotations

import sys
import time
from random import Random

from clutch.runtime.client import PushClient
from clutch.runtime.http import MasterConnection
from clutch.wire.errors import TimedOut, Unavailable
from clutch.wire.metrics import MetricBatch, MetricPoint

DEADLINE_S = 120.0


def batch(sequence: int) -> MetricBatch:
    """What is sent under this number: ``number`` in each point says which it is."""
    count = Random(sequence).choice((1, 3, 40, 400))
    points = [
        MetricPoint("training", sequence * 1_000 + n, {"number": sequence, "loss": n / 7}, 1.7e9 + sequence)
        for n in range(count)
    ]
    return MetricBatch(sequence, tuple(points))


def main(url: str, token: str, count: int) -> None:
    client = PushClient(MasterConnection((url,), token), try_s=5.0)
    chance, reached = Random(1), 0
    until = time.monotonic() + DEADLINE_S
    while reached < count:
        first = max(1, reached + 1 - chance.choice((0, 0, 1, 5)))
        last = min(count, reached + chance.choice((1, 1, 4)))
        try:
            reached = client.metrics(tuple(map(batch, range(first, last + 1))))
        except (Unavailable, TimedOut):
            assert time.monotonic() < until, "no master came back"
            continue
        print(reached, flush=True)
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
