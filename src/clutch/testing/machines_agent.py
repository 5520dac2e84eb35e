"""A stand-in for an agent, for the suite of machines: it takes an agent's arguments, has a member that outlives it, and
writes down what it was told. ``--stubborn`` makes it deaf to SIGTERM; ``--fails`` makes it end at once.

Run as a file of its own; standard library only, so that a hundred starts cost little.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def main() -> int:
    told = _arguments()
    if told.fails:
        sys.stderr.write("this agent cannot start: it was told to fail\n")
        return 3
    data = Path(told.data)
    data.mkdir(parents=True, exist_ok=True)
    lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write("another agent has this folder\n")
        return 4
    if told.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    members = _start_member(data)
    written = {**vars(told), "token": Path(told.token_file).read_text(), "pid": os.getpid(), "members": members}
    aside = data / "told.new"
    aside.write_text(json.dumps(written))
    aside.rename(data / "told.json")
    while True:
        signal.pause()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", action="append", default=[])
    for name in ("--name", "--pool", "--token-file", "--data", "--ca", "--note"):
        parser.add_argument(name, default="")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--fails", action="store_true")
    return parser.parse_args()


MEMBER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os.chdir("/")
    os.closerange(0, 256)
else:
    os.write(1, f"{os.getpid()} {child}".encode())
    os.closerange(0, 256)
while True:
    time.sleep(60.0)
"""


def _start_member(data: Path) -> list[int]:
    """A member as a shim would run one: in a session of its own, working in the folder; and a child of it that has
    nothing to do with the folder any more. Neither hears SIGTERM."""
    (data / "work").mkdir(exist_ok=True)
    reads, writes = os.pipe()
    member = [sys.executable, "-S", "-c", MEMBER]
    subprocess.Popen(member, stdout=writes, cwd=data / "work", start_new_session=True)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        return [int(word) for word in pipe.read().split()]


if __name__ == "__main__":
    sys.exit(main())
