"""Members that meet before they start: each knows its rank, how many they are, and where the chief is.

    clutch up
    clutch run --count 3 -- python gang.py        (in this folder)

Here every member sends a number to the chief over a plain socket, and the chief prints their sum.
"""

from __future__ import annotations

import os
import socket
import sys

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CHIEF = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def chief() -> None:
    total = RANK
    with socket.create_server(CHIEF, reuse_port=True) as server:
        server.settimeout(60)
        for _ in range(SIZE - 1):
            connection, _ = server.accept()
            with connection:
                total += int(connection.makefile().readline())
    print(f"{SIZE} members, sum of ranks {total}", flush=True)


def worker() -> None:
    while True:
        try:
            with socket.create_connection(CHIEF, timeout=60) as connection:
                connection.sendall(f"{RANK}\n".encode())
                return
        except ConnectionRefusedError:
            continue  # the chief is about to listen


if __name__ == "__main__":
    print(f"rank {RANK} of {SIZE}", file=sys.stderr, flush=True)
    chief() if RANK == 0 else worker()
