"""Ports for servers of tests: free now, and not handed to anybody else while they are being used.

They lie below the range from which the kernel takes the ports of outgoing connections, so no connection can take one
between the choice and the server's ``bind``; and each is claimed by name, so no other process that asks here gets it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque

_FIRST, _END = 10_000, 32_700
_CLAIMS = 256
"""Claims kept by a process; the oldest go first, long after their servers have bound."""
_claims: deque[int] = deque()


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now."""
    return free_ports(1, host=host)[0]


def free_ports(count: int, *, twin_at: int = 0, host: str = "127.0.0.1") -> list[int]:
    """Ports nobody listens on now, nor on the ones ``twin_at`` above them. ``RuntimeError`` if there are too few."""
    span = _END - twin_at - _FIRST
    start = os.getpid() * 131 + time.monotonic_ns() // 1_000_000
    found: list[int] = []
    for step in range(span):
        port = _FIRST + (start + step * 7) % span
        wanted = {port, port + twin_at}
        if all(_is_free(one, host) for one in wanted) and all(_claim(one) for one in wanted):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} free ports on {host} from {_FIRST} to {_END}")


def _is_free(port: int, host: str) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Take the port's name, which the kernel gives back when this process dies. (Elsewhere than Linux: no claim.)"""
    if sys.platform != "linux":
        return True
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0clutch-test-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim.detach())
    if len(_claims) > _CLAIMS:
        os.close(_claims.popleft())
    return True
