"""What the doctor looks at: masters, the caller, promises, machines. Each gives findings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clutch import __version__
from clutch.cli.doctor import FAIL, OK, WARN, Finding
from clutch.sdk import access_calls, calls
from clutch.sdk.client import Client
from clutch.sdk.code import human_size
from clutch.wire.errors import ClutchError, NotAllowed
from clutch.wire.views import NodeView

if TYPE_CHECKING:
    from clutch.sdk.where import Where
    from clutch.wire.api import MasterInfo
    from clutch.wire.link import NodeUse

DISK_LOW_BYTES, DISK_OUT_BYTES = 5 * 2**30, 2**29
SKEW_MAX_S = 30.0
"""Between an agent's clock and ours; its measures are a few seconds old."""
NODES_LOOKED_AT = 100


def masters(where: Where) -> Iterator[Finding]:
    """Each address by itself: one must lead, the others wait to."""
    serving = 0
    for url in where.masters:
        with Client(url, ca_file=where.ca_file, patience_s=1.0) as client:
            try:
                health = client.perform(calls.get_health())
            except ClutchError as error:
                yield Finding(WARN, "master", f"{url}: {error.cause}", error.next_step)
                continue
        serving += health.status == "serving"
        words = f"{url} is {health.status}, release {health.version}"
        if health.version != __version__:
            step = f"Use the same release here ({__version__}) and there; neighbours work together."
            yield Finding(WARN, "master", words, step)
        else:
            yield Finding(OK, "master", words)
    if not serving:
        step = "Start one with 'clutch up' or 'clutch master'; its log says why it does not lead."
        yield Finding(FAIL, "master", f"no master leads (found by {where.source})", step)


def caller(client: Client) -> Iterator[Finding]:
    try:
        me = client.perform(access_calls.who_am_i())
    except ClutchError as error:
        yield Finding(FAIL, "login", error.cause, error.next_step or "Log in with 'clutch login'.")
        return
    roles = ", ".join(f"{role} of {scope}" for scope, role in sorted(me.roles.items())) or "no role at all"
    step = "" if me.roles else "Ask an administrator for a role: clutch role grant."
    yield Finding(OK if me.roles else WARN, "login", f"{me.kind} {me.name}, {roles}", step)


def promises(client: Client) -> Iterator[Finding]:
    info = client.perform(calls.get_master())
    yield store(info)
    for number, words in info.promises.items():
        yield Finding(OK, number, words)


def store(info: MasterInfo) -> Finding:
    words = f"{info.store}, term {info.term}, generation {info.generation}, row {info.index}"
    if info.store == "sqlite" and info.nodes > 1:
        step = "For more than one machine use PostgreSQL on another: clutch master --db postgresql://..."
        return Finding(WARN, "store", f"{words}: lost with the master's machine", step)
    return Finding(OK, "store", words)


def agents(client: Client) -> Iterator[Finding]:
    nodes = client.perform(calls.list_nodes(limit=1000)).items
    if not nodes:
        step = "Add this machine: clutch agent --master URL --token-file FILE."
        yield Finding(WARN, "agents", "there is no machine to run anything on", step)
        return
    release = client.perform(calls.get_health()).version
    for node in nodes[:NODES_LOOKED_AT]:
        yield standing(node)
        if node.state == "lost":
            continue
        try:
            use = client.perform(calls.get_node(node.key)).use
        except NotAllowed:
            yield Finding(WARN, "agents", "you may not look into machines", "Ask for the role viewer of the cluster.")
            return
        if use is not None:
            yield from measured(node.key, use, release, time.time())


def standing(node: NodeView) -> Finding:
    words = (
        f"{node.key} is {node.state}{': ' + node.reason if node.reason else ''}, {node.slots_held}/{node.slots} slots"
    )
    if node.state in ("lost", "suspect"):
        return Finding(WARN, "agent", words, f"Look at its agent's log, or 'clutch agent remove {node.key}'.")
    if node.state == "draining":
        return Finding(WARN, "agent", words, f"'clutch agent enable {node.key}' takes it back.")
    return Finding(OK, "agent", words)


def measured(node: str, use: NodeUse, release: str, now: float) -> Iterator[Finding]:
    """What an agent says of itself, where it falls short."""
    if use.version and use.version != release:
        words = f"{node} runs release {use.version}, its master {release}"
        yield Finding(WARN, "release", words, "Update it; neighbouring releases work together.")
    if abs(now - use.at) > SKEW_MAX_S:
        words = f"{node}'s clock and this one's are {abs(now - use.at):.0f} s apart, or it is silent"
        yield Finding(WARN, "clock", words, "Let both machines keep time with NTP.")
    if use.disk_free_bytes < DISK_LOW_BYTES:
        verdict = FAIL if use.disk_free_bytes < DISK_OUT_BYTES else WARN
        words = f"{node} has {human_size(use.disk_free_bytes)} of disk left"
        yield Finding(verdict, "disk", words, "Make room there: output and code are kept on it.")
