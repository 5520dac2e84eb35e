"""Where a webhook may point: at any server but those that hand out a machine's own credentials (decision 1673).

A cluster's chat server or its users' own programs are often in a private network or on the same machine, so such
addresses are allowed. Link-local ones never are: there cloud providers answer whoever asks with keys.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec

from clutch.wire.errors import BadRequest, NotAllowed, Unavailable

URL_MAX = 2000
METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254")
)
"""Where clouds tell machines about themselves, inside ranges that are otherwise ordinary."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Resolve = Callable[[str, int], Awaitable[list[str]]]


class Target(msgspec.Struct, frozen=True):
    """A checked address of a receiver."""

    scheme: str
    host: str
    port: int
    path: str
    """With its query."""

    @property
    def origin(self) -> str:
        """Scheme, host and port: what may be shown to everybody."""
        return f"{self.scheme}://{self.host_and_port}"

    @property
    def host_and_port(self) -> str:
        named = f"[{self.host}]" if ":" in self.host else self.host
        return named if self.port == (443 if self.scheme == "https" else 80) else f"{named}:{self.port}"


def parse_target(url: str) -> Target:
    """The parts of a webhook's address, or ``BadRequest``."""
    if len(url) > URL_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise _not_one("it is too long, or has characters that no address has")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _not_one(str(error)) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _not_one("it does not begin with http://HOST or https://HOST")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _not_one("it holds a user, a password or a fragment")
    if port == 0:
        raise _not_one("its port is 0")
    path = parts.path or "/"
    target = Target(
        parts.scheme,
        parts.hostname,
        port or (443 if parts.scheme == "https" else 80),
        f"{path}?{parts.query}" if parts.query else path,
    )
    try:
        literal = ipaddress.ip_address(target.host)
    except ValueError:
        return target
    if is_refused(literal):
        raise refused(target.host)
    return target


def _not_one(cause: str) -> BadRequest:
    return BadRequest(
        cause,
        object="webhook",
        path="url",
        next_step="Give the address that your receiver shows, as https://HOST/PATH.",
    )


def refused(host: str) -> NotAllowed:
    return NotAllowed(
        "it is a link-local, metadata, multicast or unspecified address, which no webhook may reach",
        object=f"address {host}",
        next_step="Give the address of a server of yours.",
    )


def is_refused(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether no webhook may be sent there, in whatever way the address is wrapped."""
    inner: ipaddress.IPv4Address | None = None
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        address = ipaddress.IPv6Address(int(address))  # without its zone
    if inner is not None and is_refused(inner):
        return True
    return address in METADATA or address.is_link_local or address.is_multicast or address.is_unspecified


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host by the machine's own resolver."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"its name cannot be resolved: {error}", object=f"host {host}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def allowed_addresses(target: Target, resolver: Resolve) -> list[str]:
    """Where to connect. All of a host's addresses must be allowed: what was checked is what is connected to."""
    found = await resolver(target.host, target.port)
    for text in found:
        if is_refused(ipaddress.ip_address(text)):
            raise refused(target.host)
    return found
