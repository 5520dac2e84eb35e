"""Snapshots under way: to followers that are too far behind, and from a leader that is far ahead.

No I/O but ``Files``; time is ticks. At most one snapshot comes in at a time, at most one goes out to each follower.
A stream that hears nothing for an election timeout goes back to what was acknowledged; one that hears nothing for ten
gives up, and the leader's core probes the follower again.
"""

from __future__ import annotations

from collections.abc import Callable

from clutch.consensus.files import Files
from clutch.consensus.snapshots import INCOMING, Incoming, Outgoing, file_name
from clutch.consensus.state import Limits
from clutch.wire.errors import Corrupt
from clutch.wire.raft import PeerMessage, RaftId, SnapshotAck, SnapshotChunk, SnapshotMeta

Send = Callable[[PeerMessage], bool]
_GIVE_UP_AFTER = 10  # election timeouts


class Streams:
    """Every snapshot stream of one member."""

    def __init__(self, group: str, me: RaftId, files: Files, limits: Limits, send: Send) -> None:
        self._group = group
        self._me = me
        self._files = files
        self._limits = limits
        self._send = send
        self._outgoing: dict[RaftId, Outgoing] = {}
        self._incoming: Incoming | None = None
        self._finishing = False
        self.refused: Corrupt | None = None

    # ------------------------------------------------------------------------------------------- outgoing

    @property
    def names_in_use(self) -> tuple[str, ...]:
        return tuple(o.name for o in self._outgoing.values())

    def begin(self, peer: RaftId, meta: SnapshotMeta, term: int, now: int) -> None:
        """Start to stream a snapshot to a follower, in place of any other on its way there."""
        self._outgoing[peer] = Outgoing(peer, meta, self._files.size(file_name(meta)), now)
        self.push(peer, term)

    def push(self, peer: RaftId, term: int) -> None:
        """Send as many chunks as the window allows."""
        stream = self._outgoing.get(peer)
        if stream is None:
            return
        while (piece := stream.next_piece(self._limits.chunk_bytes, self._limits.chunks_inflight)) is not None:
            offset, size = piece
            data = self._files.read(stream.name, offset, size)
            chunk = SnapshotChunk(self._group, self._me, peer, term, stream.meta, offset, stream.total, data)
            if not self._send(chunk):
                stream.sent = offset
                return

    def on_ack(self, m: SnapshotAck, term: int, now: int) -> bool | None:
        """True when the stream is over and well, False when it failed, None while it goes on."""
        stream = self._outgoing.get(m.sender)
        if stream is None or m.index != stream.meta.index:
            return None
        if m.refused:
            del self._outgoing[m.sender]
            return False
        stream.on_acknowledged(m.offset, now)
        if stream.acknowledged >= stream.total:
            del self._outgoing[m.sender]
            return True
        self.push(m.sender, term)
        return None

    def tick(self, term: int, now: int) -> list[RaftId]:
        """Send again what seems lost; returns the peers whose streams were given up."""
        given_up = []
        patience = self._limits.election_ticks
        for peer, stream in list(self._outgoing.items()):
            silent = now - stream.heard_at
            if silent >= patience * _GIVE_UP_AFTER:
                del self._outgoing[peer]
                given_up.append(peer)
            elif silent and silent % patience == 0:
                stream.go_back()
                self.push(peer, term)
        return given_up

    def stop(self) -> None:
        """This member no longer leads."""
        self._outgoing.clear()

    # ------------------------------------------------------------------------------------------- incoming

    def on_chunk(self, m: SnapshotChunk, commit: int) -> Incoming | None:
        """Take a piece. Returns the snapshot when it is all here and checked, to be synced and then finished."""
        if self._finishing:
            return None
        if m.snapshot.index <= commit:
            self._acknowledge(m, m.total)  # nothing in it is news
            return None
        current = self._incoming
        if current is None or current.meta != m.snapshot or current.sender != m.sender or current.total != m.total:
            if m.offset != 0:
                self._acknowledge(m, 0)
                return None
            current = self._incoming = Incoming(self._files, m)
        current.term = max(current.term, m.term)
        current.take(m)
        if not current.complete:
            self._acknowledge(m, current.received)
            return None
        try:
            current.check()
        except Corrupt as error:
            self.refused = error
            self._incoming = None
            self._acknowledge(m, 0, refused=True)
            return None
        self._finishing = True
        return current

    def finish(self, incoming: Incoming) -> None:
        """The file is durable: give it its name, and tell the sender."""
        incoming.keep()
        self._finishing = False
        self._incoming = None
        ack = SnapshotAck(self._group, self._me, incoming.sender, incoming.term, incoming.meta.index, incoming.total)
        self._send(ack)

    def _acknowledge(self, m: SnapshotChunk, offset: int, *, refused: bool = False) -> None:
        self._send(SnapshotAck(self._group, self._me, m.sender, m.term, m.snapshot.index, offset, refused))


__all__ = ["INCOMING", "Streams"]
