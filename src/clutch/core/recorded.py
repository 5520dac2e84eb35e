"""A fact at its place in history: when it was decided, in which term, and what brought it about."""

from __future__ import annotations

import msgspec

from clutch.wire.facts import Fact, decode_fact, encode_fact
from clutch.wire.ids import Term
from clutch.wire.journal import Row


class Recorded(msgspec.Struct, frozen=True):
    index: int
    term: Term
    at: float
    cause: str
    fact: Fact


def to_row(recorded: Recorded) -> Row:
    kind, version, payload = encode_fact(recorded.fact)
    return Row(recorded.index, recorded.term, recorded.at, recorded.cause, kind, version, payload)


def from_row(row: Row) -> Recorded:
    return Recorded(row.index, row.term, row.at, row.cause, decode_fact(row.kind, row.version, row.payload))
