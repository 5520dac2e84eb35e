"""Messages between members over ZeroMQ with CURVE: authenticated, encrypted, in two lanes.

Each member binds two sockets and connects two to every peer: **control** for whatever is small and must not wait,
**bulk** for large appends and snapshot chunks, cut into frames so that no heartbeat waits behind more than one of them.

Who may speak is decided twice: a connection is made only with a key that is in the address book, and a message is taken
only if its header names the member to whom that very key belongs, of this group, from the log directory known for it.
Whoever is refused is told why on the same connection. What cannot be sent at once is dropped: raft sends it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from clutch.consensus import packing
from clutch.consensus.identity import REFUSALS
from clutch.wire.errors import ClutchError, Corrupt, NotAllowed
from clutch.wire.raft import Address, Append, AppendReply, Header, PeerMessage, RaftId, Refusal, SnapshotChunk

BULK_FROM_BYTES = 32 << 10
FRAME_BYTES = 512 << 10
MAX_MESSAGE_BYTES = 256 << 20
CONTROL_QUEUE = 4096
BULK_QUEUE = 256
DRAIN_AT_ONCE = 256
MAX_REFUSALS = 64
RETRY_REFUSED_POLLS = 15
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)
_ZAP = "inproc://zeromq.zap.01"

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)
_header_decoder = msgspec.msgpack.Decoder(Header)


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair, in Z85."""

    public: str
    secret: str


def new_keys() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


class Peer:
    """The two connections to one other member."""

    def __init__(self, address: Address, control: zmq.Socket[bytes], bulk: zmq.Socket[bytes]) -> None:
        self.address = address
        self.control = control
        self.bulk = bulk
        self.monitors = [s.get_monitor_socket(_WATCHED) for s in (control, bulk)]
        self.retry_in = 0  # polls until a refused connection is made anew
        self.bulk_until = 0  # appends up to this index are on the bulk lane: later ones must not overtake them

    def lane(self, message: PeerMessage, size: int) -> zmq.Socket[bytes]:
        if isinstance(message, SnapshotChunk):
            return self.bulk
        if isinstance(message, Append) and message.entries:
            if size >= BULK_FROM_BYTES or self.bulk_until:
                self.bulk_until = message.entries[-1].index
                return self.bulk
            return self.control
        return self.bulk if size >= BULK_FROM_BYTES else self.control

    def close(self) -> None:
        for socket, monitor in zip((self.control, self.bulk), self.monitors, strict=True):
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)


class Transport:
    """One member's sockets. ``on_message`` is called for what arrives, ``on_idle`` after a burst of it."""

    def __init__(
        self,
        header: Header,
        keys: KeyPair,
        admit: Callable[[Header], None],
        on_message: Callable[[PeerMessage], None],
        on_idle: Callable[[], None],
    ) -> None:
        self._header = header
        encoded = _encoder.encode(header)
        self._header_bytes = len(encoded).to_bytes(2, "little") + encoded
        self._keys = keys
        self._admit = admit
        self._on_message = on_message
        self._on_idle = on_idle
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, 1023)
        self._zap: zmq.Socket[bytes] = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        self._bound: list[zmq.Socket[bytes]] = []
        self._peers: dict[RaftId, Peer] = {}
        self._book: dict[RaftId, Address] = {}
        self._allowed: dict[str, RaftId] = {}
        self._verdicts: dict[tuple[bytes, str], ClutchError | None] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._zap.FD, self._on_zap)
        self.on_gone: Callable[[RaftId], None] = lambda peer: None  # told when a connection to a peer breaks
        self.refused: list[ClutchError] = []  # whom this member would not listen to, lately
        self.refused_by: dict[RaftId, ClutchError] = {}  # who would not listen to this member
        self.dropped = 0

    # ------------------------------------------------------------------------------------------ connections

    def bind(self, control: str, bulk: str) -> tuple[str, str]:
        """Listen; returns the endpoints with their real ports."""
        endpoints = []
        for endpoint, queue in ((control, CONTROL_QUEUE), (bulk, BULK_QUEUE)):
            socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
            self._prepare(socket, queue)
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.ZAP_DOMAIN, b"clutch")
            socket.bind(endpoint)
            endpoints.append(bytes(socket.get(zmq.LAST_ENDPOINT)).decode().rstrip("\0"))
            self._bound.append(socket)
            self._loop.add_reader(socket.FD, self._on_readable, socket)
        return endpoints[0], endpoints[1]

    def meet(self, addresses: Iterable[Address]) -> None:
        """These are the members now: connect to new ones, leave those that are gone, let only their keys in."""
        book = {a.id: a for a in addresses if a.public_key}
        if book == self._book:
            return
        self._book = book
        self._verdicts.clear()
        self._allowed = {a.public_key: a.id for a in book.values()}
        for gone in [i for i, peer in self._peers.items() if book.get(i) != peer.address]:
            self._peers.pop(gone).close()
        for address in book.values():
            if address.id != self._header.sender and address.id not in self._peers:
                self._peers[address.id] = self._connect(address)

    def _connect(self, address: Address) -> Peer:
        sockets = []
        for queue in (CONTROL_QUEUE, BULK_QUEUE):
            socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
            self._prepare(socket, queue)
            socket.set(zmq.CURVE_SERVERKEY, address.public_key.encode())
            socket.set(zmq.IMMEDIATE, 1)
            socket.set(zmq.RECONNECT_IVL, 20)
            socket.set(zmq.RECONNECT_IVL_MAX, 250)
            socket.set(zmq.CONNECT_TIMEOUT, 1000)
            sockets.append(socket)
        peer = Peer(address, sockets[0], sockets[1])
        peer.control.connect(address.control)
        peer.bulk.connect(address.bulk)
        return peer

    def _prepare(self, socket: zmq.Socket[bytes], queue: int) -> None:
        socket.set(zmq.CURVE_PUBLICKEY, self._keys.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, queue)
        socket.set(zmq.RCVHWM, queue)
        socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.set(zmq.HEARTBEAT_IVL, 500)
        socket.set(zmq.HEARTBEAT_TIMEOUT, 1500)
        socket.set(zmq.HANDSHAKE_IVL, 3000)

    def close(self) -> None:
        self._loop.remove_reader(self._zap.FD)
        for socket in self._bound:
            self._loop.remove_reader(socket.FD)
            socket.close(0)
        for peer in self._peers.values():
            peer.close()
        self._zap.close(0)
        self._context.destroy(0)

    # ---------------------------------------------------------------------------------------------- sending

    def send(self, message: PeerMessage) -> bool:
        """Put a message on its lane; False if it could not be."""
        peer = self._peers.get(message.receiver)
        if peer is None:
            return False
        blobs: list[bytes] = []
        if isinstance(message, Append) and message.entries:
            light, blobs = packing.detach(message.entries)
            if blobs:
                message = msgspec.structs.replace(message, entries=light)
        payload = _encoder.encode(message)
        socket = peer.lane(message, len(payload) + sum(len(b) for b in blobs))
        try:
            if len(payload) <= FRAME_BYTES and not blobs:
                socket.send(self._header_bytes + payload, zmq.NOBLOCK)
            else:
                parts = [*_cut([self._header_bytes + payload]), b"", *_cut(blobs)]
                socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            self.dropped += 1
            return False
        return True

    # -------------------------------------------------------------------------------------------- receiving

    def poll(self) -> None:
        """Look at everything once: sockets signal only changes, and connections to peers are read only here."""
        self._on_zap()
        for socket in self._bound:
            self._on_readable(socket)
        for peer in list(self._peers.values()):
            self._hear_refusals(peer)
            if peer.retry_in:
                peer.retry_in -= 1
                if not peer.retry_in:
                    # ZeroMQ gives a refused handshake up for good, but the other side may know this key by now.
                    peer.close()
                    self._peers[peer.address.id] = self._connect(peer.address)

    def _on_readable(self, socket: zmq.Socket[bytes]) -> None:
        heard = False
        for _ in range(DRAIN_AT_ONCE):
            try:
                frames: Any = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            heard = True
            self._take(socket, frames)
        else:
            self._loop.call_soon(self._read_on, socket)  # more may wait; let others have their turn first
        if heard:
            self._on_idle()

    def _read_on(self, socket: zmq.Socket[bytes]) -> None:
        if not socket.closed:
            self._on_readable(socket)

    def _take(self, socket: zmq.Socket[bytes], frames: list[Any]) -> None:
        if len(frames) < 2 or len(frames[1]) < 2:
            return
        first = frames[1].buffer
        size = int.from_bytes(first[:2], "little")
        header_bytes = bytes(first[2 : 2 + size])
        key = frames[1].get("User-Id")
        known = (header_bytes, key)
        if known not in self._verdicts:
            judged = self._judge(header_bytes, key)
            if judged is not None and not isinstance(judged, REFUSALS):
                self._note(judged)  # our own disk, not the sender: ask again with its next message
                return
            self._verdicts[known] = judged
        verdict = self._verdicts[known]
        if verdict is not None:
            self._refuse(socket, frames[0].bytes, header_bytes, verdict)
            return
        try:
            message = _put_together(first[2 + size :], frames[2:])
        except (msgspec.MsgspecError, Corrupt) as error:
            self._note(NotAllowed(f"a message that does not decode: {error}", object=str(self._allowed.get(key))))
            return
        if message.sender != self._allowed.get(key):
            self._note(NotAllowed(f"a message in the name of {message.sender}", object=str(self._allowed.get(key))))
            return
        if isinstance(message, AppendReply):
            peer = self._peers.get(message.sender)
            if peer is not None and peer.bulk_until <= message.index:
                peer.bulk_until = 0
        self._on_message(message)

    def _judge(self, header_bytes: bytes, key: str) -> ClutchError | None:
        try:
            header = _header_decoder.decode(header_bytes)
        except msgspec.MsgspecError as error:
            return NotAllowed(f"its header does not decode: {error}", object=key)
        try:
            if self._allowed.get(key) != header.sender:
                raise NotAllowed(f"the key does not belong to {header.sender}", object=str(header.sender))
            self._admit(header)
        except ClutchError as error:
            return error
        return None

    def _refuse(self, socket: zmq.Socket[bytes], route: bytes, header_bytes: bytes, verdict: ClutchError) -> None:
        self._note(verdict)
        try:
            header = _header_decoder.decode(header_bytes)
        except msgspec.MsgspecError:
            return
        refusal = Refusal(header.group, self._header.sender, header.sender, 0, header.birth, verdict.view())
        try:
            socket.send_multipart((route, self._header_bytes + _encoder.encode(refusal)), zmq.NOBLOCK)
        except zmq.ZMQError:
            self.dropped += 1

    def _note(self, error: ClutchError) -> None:
        if not self.refused or str(self.refused[-1]) != str(error):
            self.refused.append(error)
            del self.refused[:-MAX_REFUSALS]

    def _hear_refusals(self, peer: Peer) -> None:
        while True:
            try:
                frames = peer.control.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            size = int.from_bytes(frames[0][:2], "little")
            message = _decoder.decode(frames[0][2 + size :])
            if isinstance(message, Refusal):
                self.refused_by[peer.address.id] = NotAllowed(message.error.cause, object=message.error.object)
                self._on_message(message)
        for monitor in peer.monitors:
            while monitor.poll(0):
                event = recv_monitor_message(monitor, zmq.NOBLOCK)
                if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self.refused_by.pop(peer.address.id, None)
                    continue
                if event["event"] == zmq.EVENT_DISCONNECTED:
                    self.on_gone(peer.address.id)
                    continue
                peer.retry_in = peer.retry_in or RETRY_REFUSED_POLLS
                self.refused_by[peer.address.id] = NotAllowed(
                    "it refuses this member's key", object=str(peer.address.id), next_step="Check the key in the group."
                )

    # ------------------------------------------------------------------------------------------- the gate

    def _on_zap(self) -> None:
        """ZeroMQ asks whether a key may connect (ZAP, RFC 27)."""
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, sequence, _, address, _, mechanism, *credentials = request
            key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and credentials else ""
            if key in self._allowed:
                answer = (version, sequence, b"200", b"OK", key.encode(), b"")
            else:
                self._note(NotAllowed(f"an unknown key from {address.decode()}", object=key or "no key"))
                answer = (version, sequence, b"400", b"unknown key", b"", b"")
            self._zap.send_multipart(answer)


def _cut(pieces: list[bytes]) -> list[Any]:
    """Frames of bounded size, without a copy."""
    frames: list[Any] = []
    for piece in pieces:
        if len(piece) <= FRAME_BYTES:
            frames.append(piece)
        else:
            view = memoryview(piece)
            frames += [view[at : at + FRAME_BYTES] for at in range(0, len(piece), FRAME_BYTES)]
    return frames


def _put_together(first: memoryview, more: list[Any]) -> PeerMessage:
    """A message from its frames: what is said, an empty frame, then the data of large entries."""
    if not more:
        return _decoder.decode(first)
    said: list[Any] = [first]
    at = 0
    while at < len(more) and len(more[at]):
        said.append(more[at].buffer)
        at += 1
    message = _decoder.decode(first if len(said) == 1 else b"".join(said))
    if isinstance(message, Append) and packing.has_detached(message.entries):
        blobs = [f.buffer for f in more[at + 1 :]]
        whole = packing.attach(message.entries, blobs[0] if len(blobs) == 1 else memoryview(b"".join(blobs)))
        return msgspec.structs.replace(message, entries=whole)
    return message
