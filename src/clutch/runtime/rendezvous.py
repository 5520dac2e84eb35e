"""Meeting the other members of an allocation: announce, wait, repeat through a lost master, give up with a reason."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from clutch.runtime.client import PushClient
from clutch.runtime.info import Info
from clutch.wire.errors import TimedOut, Unavailable
from clutch.wire.push import POLL_MAX_S, Announce, Peer, Roster

LOOPBACK = "127.0.0.1"
_OUTWARD = ("192.0.2.1", 9)
"""An address of nobody's (RFC 5737): asking the kernel for the way there sends nothing."""


class ReservedPort:
    """A free port of this machine, held until this process is replaced by the command that will use it; or as long as
    the supervisor of several ranks lives, if ``keep`` hands it on.

    Bound and not listened on, with ``SO_REUSEADDR``: the kernel gives it to nobody who asks for any port, while a
    program that binds this number as servers do (with the same option) may have it.
    """

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", 0))
        except OSError as error:
            raise Unavailable(
                f"no port is free on this node: {error.strerror}", object="rendezvous", next_step="Try another node."
            ) from error
        self.number: int = self._socket.getsockname()[1]

    def keep(self) -> int:
        """A descriptor that outlives the replacement of this process, and holds the port."""
        self._socket.set_inheritable(True)
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


def own_addresses(info: Info, towards_master: str) -> tuple[str, ...]:
    """How peers reach this machine, the best first: as its agent was told, on the way out, on the way to the master."""
    if info.address:
        return (info.address,)
    outward = ""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_OUTWARD)
        outward = probe.getsockname()[0]
    found = (
        [towards_master, outward] if towards_master and not _is_loopback(towards_master) else [outward, towards_master]
    )
    return tuple(dict.fromkeys(address for address in found if address)) or (LOOPBACK,)


def meet(client: PushClient, announce: Announce) -> Roster:
    """Everybody's addresses, ports and keys, as soon as all members are there.

    ``TimedOut`` when some do not come within ``announce.within_s`` of our own coming, naming them.
    """
    until = time.monotonic() + announce.within_s
    missing: tuple[str, ...] = ()
    while True:
        left = until - time.monotonic()
        wait = max(0.0, min(left, POLL_MAX_S / 2))
        try:
            found = client.rendezvous(_waiting(announce, wait))
        except Unavailable:
            if time.monotonic() >= until:
                raise
            continue
        if found.ready:
            return found
        missing = found.missing
        if time.monotonic() >= until:
            raise TimedOut(
                f"{len(missing)} of {found.size} members did not come within {announce.within_s:.0f} s: "
                f"{', '.join(missing[:10])}",
                object="rendezvous",
                next_step="See why they did not start.",
            )


def alone(info: Info, announce: Announce) -> Roster:
    """The roster of a member that has no peers: it meets nobody and asks nobody."""
    own = Peer(
        rank=0,
        role=info.role,
        role_rank=info.role_rank,
        node=info.node,
        addresses=announce.addresses,
        ports=announce.ports,
        public_key=announce.public_key,
        slots=announce.slots,
    )
    return Roster(ready=True, rank=0, size=1, version=1, peers=(own,))


def chief_address(roster: Roster) -> str:
    """Where all members reach the chief. Members in one network namespace of one machine meet on its loopback."""
    chief = roster.chief
    if all(_same_place(peer, chief) for peer in roster.peers):
        return LOOPBACK
    return chief.addresses[0]


def _same_place(one: Peer, other: Peer) -> bool:
    return one is other or (bool(one.node) and one.node == other.node and one.addresses == other.addresses)


def _waiting(announce: Announce, timeout_s: float) -> Announce:
    return Announce(
        addresses=announce.addresses,
        ports=announce.ports,
        public_key=announce.public_key,
        slots=announce.slots,
        timeout_s=timeout_s,
        within_s=announce.within_s,
    )


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")
