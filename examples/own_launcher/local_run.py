"""The ranks of one node: ``local_run.py FIRST COUNT SIZE COMMAND...`` starts COUNT of them and waits. The first that
fails ends the others."""

from __future__ import annotations

import os
import subprocess
import sys
import time

first, count, size = map(int, sys.argv[1:4])
ranks = []
for local in range(count):
    told = {
        "OMPI_COMM_WORLD_RANK": first + local,
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_LOCAL_RANK": local,
        "OMPI_COMM_WORLD_LOCAL_SIZE": count,
    }
    environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
    ranks.append(subprocess.Popen(sys.argv[4:], env=environment))
while any(rank.poll() is None for rank in ranks) and not any(rank.returncode for rank in ranks):
    time.sleep(0.05)
for rank in ranks:
    if rank.poll() is None:
        rank.terminate()
sys.exit(max(abs(rank.wait()) for rank in ranks))
