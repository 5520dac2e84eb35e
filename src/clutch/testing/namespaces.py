"""Network namespaces with one cable each, for tests that cut it. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import msgspec

CAN = os.geteuid() == 0 and shutil.which("ip") is not None
WHY_NOT = "network namespaces are made by root with iproute2"


class Namespace(msgspec.Struct, frozen=True):
    """A machine of its own as far as the network goes. ``prefix`` starts a command in it."""

    name: str
    inside: str
    """Its own address."""
    outside: str
    """Ours, at the other end of the cable."""
    cable: str

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """From now on no packet passes, in neither direction, and nobody is told."""
        _ip("link", "set", self.cable, "down")

    def mend(self) -> None:
        _ip("link", "set", self.cable, "up")


@contextmanager
def namespace(number: int) -> Iterator[Namespace]:
    """A namespace with addresses of its own; ``number`` (0 to 99) tells those of one test apart."""
    net = f"10.{100 + number}.{os.getpid() % 250}"
    made = Namespace(f"clutch-{uuid4().hex[:8]}", f"{net}.2", f"{net}.1", f"cl{uuid4().hex[:10]}")
    _ip("netns", "add", made.name)
    try:
        _ip("link", "add", made.cable, "type", "veth", "peer", "name", "eth0", "netns", made.name)
        _ip("addr", "add", f"{made.outside}/24", "dev", made.cable)
        made.mend()
        _ip("-n", made.name, "addr", "add", f"{made.inside}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", made.name, "link", "set", device, "up")
        yield made
    finally:
        _ip("netns", "del", made.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
