"""The two connections between an agent and its master: every frame that may travel on each.

Both are WebSockets that the agent opens, with its token, to ``/agent/v1/control`` and ``/agent/v1/bulk``; frames are
msgpack, one message each. *Control* is small and never waits behind bytes. *Bulk* carries output and tunnels, both with
windows, so a slow receiver stops its sender and nothing grows.

Output: for each incarnation the agent says ``OutputOpen``; the master answers ``OutputCommitted`` with what it has, and
again whenever more is durable. The agent sends from there, at most ``OUTPUT_WINDOW_BYTES`` ahead of what is committed
over the whole connection. After a reconnect it begins with ``OutputOpen`` again: exactly once by offset.
``OutputDone`` follows the last byte of an exited incarnation.

Metrics: a living member sends its own (``wire.push``). What an exited one had spooled its agent sends: ``MetricsOpen``,
answered by ``MetricsCommitted`` with what the store has, then pieces, one at a time for each incarnation, each answered
when it is durable and everybody who decides upon it has heard it.

Tunnels: the master opens one to a member's port; each side may send as much as the other's ``TunnelCredit`` allows,
``TUNNEL_WINDOW_BYTES`` at first. An agent that has connected says so with a credit of nothing.

A connection that is refused ends with a close code of its own (``CloseCode``); on control a ``Refusal`` with the whole
error comes before it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest
from clutch.wire.ids import Fence, MemberId, NodeId
from clutch.wire.messages import Hello, Refusal, Report, Wanted
from clutch.wire.metrics import MetricsCommitted
from clutch.wire.programs import Kit, KitRequest

PROTOCOL = 1
"""Spoken in the ``Clutch-Protocol`` header of both requests. Releases N and N-1 work together: fields are only added,
with defaults, and unknown message types are ignored."""
NODE_HEADER, SESSION_HEADER, PROTOCOL_HEADER = "Clutch-Node", "Clutch-Session", "Clutch-Protocol"
CONTROL_PATH, BULK_PATH, ENROL_PATH = "/agent/v1/control", "/agent/v1/bulk", "/agent/v1/enrol"
AUTHORITY_PATH = "/agent/v1/authority"
FRAME_MAX_BYTES = 4 * 2**20
"""Of one message on bulk."""
CONTROL_MAX_BYTES = 64 * 2**20
"""Of one message on control: what is wanted on a node that starts a thousand members at once is a few megabytes."""
OUTPUT_WINDOW_BYTES = 8 * 2**20
TUNNEL_WINDOW_BYTES = 256 * 2**10
TUNNEL_PIECE_BYTES = 64 * 2**10
SHELF_PORT = -1
"""Of nobody: a tunnel to it leads to the agent's own shelf of blobs (``wire.shelf``)."""


class CloseCode(IntEnum):
    """Why a master ends a connection."""

    GOING = 1001  # it ends; come again
    BAD_REQUEST = 4400  # what came is no message of this protocol
    NOT_ALLOWED = 4403  # the token is another node's
    SILENT = 4408  # nothing was heard or taken for too long
    CONFLICT = 4409  # another agent of this name is alive
    REPLACED = 4410  # a newer connection of the same agent, or a newer agent, took its place
    NOT_LEADER = 4421  # ask another address


# -- control: small, first ----------------------------------------------------------------------------------------


class SlotUse(msgspec.Struct, frozen=True, array_like=True):
    """One device now; ``percent`` -1 where it cannot be told."""

    slot: int
    percent: int = -1
    memory_bytes: int = 0
    memory_total_bytes: int = 0


class MemberUse(msgspec.Struct, frozen=True, array_like=True):
    """One member now. ``doing`` says what its start is at (``pulling IMAGE``, ``fetching code``); ``notices`` what was
    asked for and is not enforced."""

    member: MemberId
    fence: Fence
    backend: str = "process"
    doing: str = ""
    cpu_s: float = 0.0
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    processes: int = 0
    notices: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    """Real ports, in the order of ``Program.ports``."""


class NodeUse(msgspec.Struct, frozen=True, tag="node_use"):
    """What an agent measures, said every few seconds. Soft: shown, never decided upon."""

    node: NodeId
    at: float
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    disk_free_bytes: int = 0
    backends: tuple[str, ...] = ()
    """``process``, and ``docker VERSION`` where an engine answers."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    address: str = ""
    version: str = ""
    slots: tuple[SlotUse, ...] = ()
    members: tuple[MemberUse, ...] = ()
    exits: tuple[ExitNote, ...] = ()


class ExitNote(msgspec.Struct, frozen=True, array_like=True):
    """Why an incarnation ended, in words (``killed by signal 9``, ``out of memory: 512 MiB limit``)."""

    member: MemberId
    fence: Fence
    reason: str


ControlUp = Report | KitRequest | NodeUse
ControlDown = Hello | Wanted | Refusal | Kit


# -- bulk: output -------------------------------------------------------------------------------------------------


class OutputOpen(msgspec.Struct, frozen=True, tag="output_open"):
    member: MemberId
    fence: Fence


class OutputPiece(msgspec.Struct, frozen=True, tag="output_piece"):
    """Bytes of one stream (``stdout``, ``stderr``) from an offset on; ``at`` is when they were written."""

    member: MemberId
    fence: Fence
    stream: str
    offset: int
    at: float
    data: bytes


class OutputGap(msgspec.Struct, frozen=True, tag="output_gap"):
    """Bytes ``start`` to ``end`` of a stream are gone; they count as delivered."""

    member: MemberId
    fence: Fence
    stream: str
    start: int
    end: int


class OutputDone(msgspec.Struct, frozen=True, tag="output_done"):
    """It has exited and everything it wrote was sent."""

    member: MemberId
    fence: Fence
    stdout: int
    stderr: int


class OutputCommitted(msgspec.Struct, frozen=True, tag="output_committed"):
    """The store holds both streams of this incarnation up to here. ``done``: including its end."""

    member: MemberId
    fence: Fence
    stdout: int
    stderr: int
    done: bool = False


# -- bulk: metrics of members that have exited ---------------------------------------------------------------------

METRICS_PIECE_BYTES = 512 * 2**10
METRICS_BATCH_MAX_BYTES = 17 * 2**20
"""Of one batch, which may come in several pieces."""


class MetricsOpen(msgspec.Struct, frozen=True, tag="metrics_open"):
    member: MemberId
    fence: Fence


class MetricsPiece(msgspec.Struct, frozen=True, tag="metrics_piece"):
    """Batches as lines of JSON (``wire.metrics.MetricBatch``); a batch that is too large for one piece goes on in the
    next (``more``). A piece without a line asks what is stored by now."""

    member: MemberId
    fence: Fence
    lines: bytes
    more: bool = False


# -- bulk: tunnels ------------------------------------------------------------------------------------------------


class TunnelOpen(msgspec.Struct, frozen=True, tag="tunnel_open"):
    """Connect to this port of a member, on its own machine (or in its container's network)."""

    tunnel: int
    member: MemberId
    fence: Fence
    port: int


class TunnelData(msgspec.Struct, frozen=True, tag="tunnel_data"):
    tunnel: int
    data: bytes


class TunnelCredit(msgspec.Struct, frozen=True, tag="tunnel_credit"):
    """The receiver has consumed so many bytes more."""

    tunnel: int
    size_bytes: int


class TunnelClose(msgspec.Struct, frozen=True, tag="tunnel_close"):
    """No more bytes from this side (``half``), or the tunnel is over. ``error`` says why it never opened or broke."""

    tunnel: int
    half: bool = False
    error: str = ""


BulkUp = (
    OutputOpen | OutputPiece | OutputGap | OutputDone | MetricsOpen | MetricsPiece
    | TunnelData | TunnelCredit | TunnelClose
)  # fmt: skip
BulkDown = OutputCommitted | MetricsCommitted | TunnelOpen | TunnelData | TunnelCredit | TunnelClose


# -- reading ------------------------------------------------------------------------------------------------------


class _Tag(msgspec.Struct):
    type: str = ""


class Frames:
    """Reads one direction of one connection. ``Frames(BulkUp).read(data)`` gives the message, or None for one of a
    type this release does not know; ``BadRequest`` for bytes that are no message at all."""

    def __init__(self, messages: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(messages)
        self._tag = msgspec.msgpack.Decoder(_Tag)
        self._known = {kind.__struct_config__.tag for kind in messages.__args__}

    def read(self, data: bytes) -> Any:
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as wrong:
            try:
                tag = self._tag.decode(data).type
            except msgspec.MsgspecError:
                tag = ""
            if tag and tag not in self._known:
                return None
            raise BadRequest(f"a frame cannot be read: {wrong}", object="agent link") from wrong
