"""A command that counts: it prints numbered lines slowly, and leaves marks by which a test sees how often it ran.

``python counting.py MARKS NAME LINES PAUSE_S``. It holds a lock while it runs: a second copy at the same time says so.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path


def expected(name: str, lines: int) -> bytes:
    """What a whole run prints on standard output."""
    return b"".join(f"{name} line {n} {'x' * (n % 200)}\n".encode() for n in range(lines))


def main() -> None:
    marks, name, lines, pause_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    with (marks / f"{name}.runs").open("a") as runs:
        runs.write(f"{os.getpid()}\n")
    with (marks / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (marks / f"{name}.overlap").touch()
        for n in range(lines):
            sys.stdout.write(f"{name} line {n} {'x' * (n % 200)}\n")
            sys.stdout.flush()
            time.sleep(pause_s)
    with (marks / f"{name}.ends").open("a") as ends:
        ends.write(f"{os.getpid()}\n")


if __name__ == "__main__":
    main()
