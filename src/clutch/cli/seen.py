"""What ``clutch up`` and ``clutch down`` see of the cluster on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from clutch.sdk import access_calls, calls
from clutch.sdk.client import Client
from clutch.wire.access import NewToken, TokenKind

LOOK_S = 0.1


class Up(msgspec.Struct, frozen=True, kw_only=True):
    """What ``clutch up`` tells its user once everything runs."""

    url: str
    one_time_token: str
    nodes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ("process",)
    join: str = ""
    """The line that adds a second machine."""


def look(client: Client) -> Up:
    """A cluster that is up already, with a fresh one-time token."""
    made = client.perform(access_calls.make_token(NewToken(description="clutch up", kind=TokenKind.ONE_TIME)))
    nodes = client.perform(calls.list_nodes())
    details = [client.perform(calls.get_node(node.key)) for node in nodes.items]
    ways = {way: None for detail in details if detail.use is not None for way in detail.use.backends}
    return Up(
        url=str(client.addresses[0]),
        one_time_token=made.token,
        nodes=tuple(node.key for node in nodes.items),
        backends=tuple(ways) or ("process",),
    )


def drain_local(client: Client, names: tuple[str, ...], grace_s: float, say: Callable[[str], None]) -> bool:
    """Ask everything on these nodes to leave; whether all of it had left in time."""
    held: list[str] = []
    for name in names:
        client.perform(calls.move_node(name, "drain"))
    until = time.monotonic() + grace_s
    while True:
        details = [client.perform(calls.get_node(name)) for name in names]
        held = [member.member for detail in details for member in detail.members]
        if not held:
            return True
        if time.monotonic() >= until:
            say(f"{len(held)} did not leave within {grace_s:g} s and are stopped: {', '.join(held[:5])}")
            return False
        time.sleep(LOOK_S)
