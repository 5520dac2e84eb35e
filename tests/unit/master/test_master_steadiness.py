"""A process that serves looks at what it began with no more."""

import subprocess
import sys

PROGRAM = """
import gc, sys
from clutch.master.steadiness import steady
kept = [[n] for n in range(10_000)]
steady()
assert gc.get_freeze_count() > 10_000 and not any(one is kept for one in gc.get_objects())
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
batches = [[{"loss": float(n)} for n in range(10_000)] for _ in range(50)]
assert not full, "half a million points cause no full collection"
loop = []
loop.append(loop)
del loop
assert gc.collect() > 0, "and what goes in circles is still found"
assert sys.getswitchinterval() < 0.005
"""


def test_points_cause_no_full_collection() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
