"""What happened to a thing, in order, with causes: the answer to *why is it like this?*"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from clutch.core.recorded import Recorded
from clutch.wire.facts import AllocationGranted, Fact, LeaseGranted, MemberGranted, NodeReported, Placed
from clutch.wire.ids import Fence, MemberId
from clutch.wire.messages import Exit
from clutch.wire.specs import Quota


def subjects(fact: Fact) -> list[str]:
    """The names of everything a fact is about."""
    found: list[str] = []
    for name in ("task", "node", "machine", "lease", "controller"):
        value = getattr(fact, name, None)
        if isinstance(value, str) and value:
            found.append(value)
    member = getattr(fact, "member", None)
    if isinstance(member, MemberId):
        found += [str(member), member.task]
    if isinstance(fact, AllocationGranted):
        found += list(dict.fromkeys(p.placement.node for p in fact.members))
    if isinstance(fact, MemberGranted | LeaseGranted):
        found.append(fact.placed.placement.node)
    lease = getattr(fact, "lease", "")
    if "/" in lease:  # leases are named after the task whose cells they serve
        found.append(lease.partition("/")[0])
    return list(dict.fromkeys(found))


def story(history: Iterable[Recorded], subject: str) -> list[str]:
    """One line for each fact about the subject, oldest first."""
    return [line(recorded) for recorded in history if subject in subjects(recorded.fact)]


def line(recorded: Recorded) -> str:
    """``time  index  what happened  <- cause``."""
    told = tell(recorded.fact)
    cause = f"  <- {recorded.cause}" if recorded.cause else ""
    return f"{recorded.at:14.3f}  #{recorded.index:<6d} {told}{cause}"


def tell(fact: Fact) -> str:
    """A fact in words: its kind and the fields that say something."""
    kind = str(fact.__struct_config__.tag).replace("_", " ")
    if isinstance(fact, AllocationGranted):
        places = ", ".join(f"{p.placement.role}.{p.placement.rank} {_place(p)}" for p in fact.members)
        return f"{kind}: {fact.task} epoch {fact.epoch}: {places}"
    if isinstance(fact, NodeReported):
        strays = f", strays: {', '.join(fact.strays)}" if fact.strays else ""
        return f"{kind}: {fact.node} in {fact.pool}, {len(fact.capacity.slots)} slots{strays}"
    said = " ".join(f"{name}={_plain(value)}" for name, value in _telling(fact))
    return f"{kind}: {said}"


def _telling(fact: Fact) -> list[tuple[str, object]]:
    """The fields that say something: not empty, and not what would be understood without them."""
    names = fact.__struct_fields__
    usual = dict(zip(names[len(names) - len(fact.__struct_defaults__) :], fact.__struct_defaults__, strict=True))
    values = ((name, getattr(fact, name)) for name in names)
    return [(n, v) for n, v in values if v not in (None, "", ()) and not (n in usual and usual[n] == v)]


def _place(placed: Placed) -> str:
    slots = placed.placement.slots
    fenced = f" slots {','.join(map(str, slots))} #{placed.lease_number}" if slots else ""
    return f"on {placed.placement.node}{fenced}"


def _plain(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, MemberId | Fence):
        return str(value)
    if isinstance(value, Placed):
        return _place(value)
    if isinstance(value, Exit):
        return f"{value.code} ({value.cause}{f': {value.reason}' if value.reason else ''})"
    if isinstance(value, Quota):
        return f"{value.slots} slots for {value.scope}"
    if isinstance(value, tuple):
        return ",".join(_plain(each) for each in value)
    if isinstance(value, msgspec.Struct):
        named = getattr(value, "name", None)
        return str(named) if named else type(value).__name__
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return str(value)
