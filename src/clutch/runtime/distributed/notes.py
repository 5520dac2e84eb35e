"""What ranks and their chief say to each other beside the data: who is there, who is gone, what failed, where to stop.

Every rank has one connection for this, to the chief. The chief is the one authority on what failed, so every rank
hears the same story.
"""

from __future__ import annotations

import msgspec

from clutch.runtime.distributed.calls import Call
from clutch.runtime.distributed.shape import Seat
from clutch.wire.errors import ErrorView

PROTOCOL = 1


class Note(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One message."""


class Hello(Note, frozen=True):
    """A rank comes."""

    seat: Seat
    public_key: str
    protocol: int = PROTOCOL


class Welcome(Note, frozen=True):
    """All have come."""

    seats: tuple[Seat, ...]
    keys: tuple[str, ...]
    secret: bytes


class Failed(Note, frozen=True):
    """The group is over, for this reason. A rank tells the chief, the chief tells all."""

    error: ErrorView
    ranks: tuple[int, ...] = ()


class Left(Note, frozen=True):
    """A rank closed its group after so many calls in each scope."""

    rank: int
    made: dict[str, int]


class Waits(Note, frozen=True):
    """This rank has been in this call for a while; ``late``: its deadline has passed."""

    call: Call
    ranks: tuple[int, ...]
    late: bool = False
    timeout_s: float = 0.0


class WhereAreYou(Note, frozen=True):
    """The chief asks everybody."""

    number: int


class IAmAt(Note, frozen=True):
    number: int
    made: dict[str, int]
    current: Call | None


class Reached(Note, frozen=True):
    """For an agreement: this rank has come so far, wants to stop, or waits to go on."""

    agreement: int
    count: int
    asks: bool
    waits: bool


class Granted(Note, frozen=True):
    """For an agreement: everybody may go so far; ``stop``: at this count everybody stops."""

    agreement: int
    limit: int
    stop: int = 0


class Refused(Note, frozen=True):
    """A stranger was turned away at this rank's door."""

    who: str


AnyNote = Hello | Welcome | Failed | Left | Waits | WhereAreYou | IAmAt | Reached | Granted | Refused
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AnyNote).decode
