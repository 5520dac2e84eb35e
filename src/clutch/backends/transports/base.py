"""The contract of transports: calls that are answered, and streams that are pushed.

Every implementation passes ``clutch.testing.transports_suite``. The rules the suite tries to break:

- A message is a **header** of a declared type (msgspec) and **buffers**: anything with the buffer protocol, contiguous.
  Headers are decoded into that type and nothing else is ever evaluated; buffers arrive as memory that was not copied on
  the way where the transport can avoid it. Who sends a buffer gives it away: it is not to be changed afterwards.
- From one peer, messages arrive in the order they were sent, at most once. What was under way when a connection broke
  may be lost: a call says so (``Unavailable``, naming the peer), and whoever pushes samples accepts it.
- Every wait has a deadline and ends in ``TimedOut``. ``within_s=0`` looks once.
- Every queue is bounded. At the bound a sender waits until its deadline, or drops the oldest and counts it.
- The death of a peer is an error that names it within ``dead_after_s``, also if it is stopped or its machine gone. It
  is told apart from leaving: who closes is not dead.
- Who speaks is known. Over a network both sides prove their keys and only allowed keys are heard; the key decides the
  name. A higher **incarnation** of a name takes over from a lower one, which is ``Stale`` from then on; two with equal
  incarnation are not both heard: the one that came first is, the other gets ``Conflict``.
- Bytes that are not ours are counted and do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from clutch.backends.transports.keys import AllowList
from clutch.wire.errors import BadRequest, TooLarge

H = TypeVar("H")
H_in = TypeVar("H_in", contravariant=True)
Buffer: TypeAlias = Any  # the buffer protocol has no name in the typing of Python 3.11: bytes, memoryview, numpy arrays

NAME_BYTES_MAX = 200
BUFFERS_MAX = 4096

_encoder = msgspec.msgpack.Encoder()


class Identity(msgspec.Struct, frozen=True):
    """Who speaks: a name, and the number of its start."""

    name: str
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"


class Address(msgspec.Struct, frozen=True):
    """Whom to reach, where, and the key by which to know it (not needed inside one machine)."""

    name: str
    endpoint: str
    public_key: str = ""


class AtBound(StrEnum):
    """What a sender does when its queue is full."""

    WAIT = "wait"  # until there is room or its deadline passes
    DROP_OLDEST = "drop_oldest"  # never wait; the oldest unsent message goes and is counted. Closing drops the rest


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one endpoint."""

    queue: int = 1000
    at_bound: AtBound = AtBound.WAIT
    max_message_bytes: int = 256 << 20
    heartbeat_s: float = 0.5
    dead_after_s: float = 3.0
    linger_s: float = 1.0
    report_deaths: bool = True

    def __post_init__(self) -> None:
        sound = (
            0 < self.queue <= 1_000_000
            and 0 < self.max_message_bytes <= 4 << 30
            and 0.01 <= self.heartbeat_s < self.dead_after_s <= 600
            and 0 <= self.linger_s <= 60
        )
        if not sound:
            raise BadRequest("these limits cannot work", object="transport", next_step="See Options for their ranges.")


class Counts(msgspec.Struct):
    """What an endpoint did not take."""

    refused: int = 0  # connections with a foreign key, or in a name that is not theirs
    garbage: int = 0  # bytes that are not our protocol, headers that do not decode
    dropped: int = 0  # messages given up at a bound
    stale: int = 0  # messages of an incarnation that has a successor
    too_large: int = 0


class Parcel(msgspec.Struct, Generic[H], frozen=True):
    """What arrived, and from whom."""

    peer: Identity
    header: H
    buffers: tuple[Buffer, ...] = ()


class Request(msgspec.Struct, Generic[H], frozen=True):
    """A call that waits for its answer."""

    peer: Identity
    header: H
    buffers: tuple[Buffer, ...]
    route: Any  # the connection it came by; only the endpoint that made it knows what this is
    number: int


class Server(Protocol[H]):
    """Answers calls (ROUTER). Requests of one peer come in order; answers may be given in any order."""

    endpoint: str
    counts: Counts

    async def receive(self, *, within_s: float) -> Request[H]:
        """The next request. ``Unavailable`` once for each peer that died, behind the last request it sent."""
        ...

    async def reply(
        self, request: Request[H], header: H, buffers: Sequence[Buffer] = (), *, within_s: float = 5.0
    ) -> None:
        """Answer. ``Unavailable`` when the caller is gone."""
        ...

    async def fail(self, request: Request[H], error: Exception) -> None:
        """Answer with an error, which the caller's ``call`` raises. Nothing happens when the caller is gone."""
        ...

    async def close(self) -> None: ...


class Caller(Protocol[H]):
    """Calls one server (DEALER). Any number of calls may be under way."""

    async def call(self, header: H, buffers: Sequence[Buffer] = (), *, within_s: float) -> Parcel[H]:
        """The answer.

        ``Unavailable`` when the server cannot be reached or dies meanwhile; then it may or may not have acted.
        Connects again by itself: a later call reaches a server that came back.
        """
        ...

    async def close(self) -> None: ...


class Puller(Protocol[H]):
    """The receiving end of a stream (PULL), of any number of pushers."""

    endpoint: str
    counts: Counts

    async def pull(self, *, within_s: float) -> Parcel[H]:
        """The next message. With ``report_deaths``, ``Unavailable`` once for each pusher that died."""
        ...

    async def close(self) -> None: ...


class Pusher(Protocol[H_in]):
    """The sending end of a stream (PUSH), to one puller."""

    counts: Counts

    async def push(self, header: H_in, buffers: Sequence[Buffer] = (), *, within_s: float) -> None:
        """Put a message on its way; returning does not mean it arrived.

        ``TimedOut`` when the puller takes nothing, ``Unavailable`` when it cannot be reached.
        """
        ...

    async def close(self) -> None: ...


class Transport(Protocol):
    """One party's way to open endpoints. Closing it closes them all."""

    async def serve(
        self, endpoint: str, header: type[H], *, allow: AllowList | None = None, options: Options = ...
    ) -> Server[H]: ...

    async def connect(self, address: Address, header: type[H], *, options: Options = ...) -> Caller[H]: ...

    async def pull(
        self, endpoint: str, header: type[H], *, allow: AllowList | None = None, options: Options = ...
    ) -> Puller[H]: ...

    async def push(self, address: Address, header: type[H], *, options: Options = ...) -> Pusher[H]: ...

    async def close(self) -> None: ...


def check_identity(identity: Identity) -> None:
    if not identity.name or len(identity.name.encode(errors="replace")) > NAME_BYTES_MAX or identity.incarnation < 0:
        raise BadRequest(
            "this is no identity",
            object=f"peer {identity.name[:80]!a}",
            next_step=f"Give a name of at most {NAME_BYTES_MAX} bytes and an incarnation from 0.",
        )


def check_deadline(within_s: float) -> None:
    if not 0 <= within_s < math.inf:
        raise BadRequest(f"a deadline of {within_s} s", object="transport", next_step="Give seconds from 0.")


def flatten(buffers: Sequence[Buffer]) -> list[memoryview]:
    """The buffers as plain bytes, without a copy."""
    if len(buffers) > BUFFERS_MAX:
        raise TooLarge(f"{len(buffers)} buffers, at most {BUFFERS_MAX}", object="message", next_step="Join some.")
    views = []
    for buffer in buffers:
        try:
            view = memoryview(buffer)
            if not view.c_contiguous:
                raise ValueError("it is not contiguous")
            views.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
        except (TypeError, ValueError) as error:
            raise BadRequest(
                f"a buffer that cannot be sent: {error}", object="message", next_step="Give contiguous memory."
            ) from error
    return views


def encode_header(header: object) -> bytes:
    try:
        return _encoder.encode(header)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequest(
            f"a header that cannot be sent: {error}", object="message", next_step="Give a value of the declared type."
        ) from error


def check_size(size: int, limit: int, peer: str) -> None:
    if size > limit:
        raise TooLarge(
            f"the message has {size} bytes, at most {limit} are taken",
            object=f"message to {peer}",
            next_step="Send it in parts, or through blobs.",
        )
