"""Which part of what an agent sent is new: exactly once by offset. Pure.

A repeat is dropped, an overlap is trimmed, a hole that no gap record explains is refused, and then nothing of that call
is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clutch.master.output.records import STREAMS, Key, StreamState, checked_key
from clutch.wire.errors import BadRequest, Conflict
from clutch.wire.ids import Fence, MemberId
from clutch.wire.link import OutputCommitted, OutputDone, OutputGap, OutputPiece

Frame = OutputPiece | OutputGap | OutputDone
Incarnation = tuple[MemberId, Fence]
Item = tuple[int, float, bytes] | tuple[int, int]
"""New bytes (offset, time, data) or a gap (start, end) of one stream."""

_FAR = 2**62
_LATEST_S = 1e11
"""A time that is not one, or beyond this, counts as unknown."""


class News:
    """What is new in one stream: items in order, up to where they lead, and whether that is its end."""

    __slots__ = ("done", "end", "items", "size")

    def __init__(self, end: int, done: bool) -> None:
        self.end = end
        self.done = done
        self.items: list[Item] = []
        self.size = 0

    def fork(self) -> News:
        """Where the next call begins."""
        return News(self.end, self.done)

    def join(self, later: News) -> None:
        self.end, self.done = later.end, later.done
        self.items += later.items
        self.size += later.size


class Taking:
    """One commit's worth of calls on streams as the store has them."""

    def __init__(self, states: Mapping[Key, StreamState]) -> None:
        self._states = states
        self.news: dict[Key, News] = {}

    def take(self, frames: Sequence[Frame]) -> None:
        """Take one call's frames, all or (when it raises) none."""
        call: dict[Key, News] = {}
        for frame in frames:
            if isinstance(frame, OutputPiece):
                self._piece(call, frame)
            elif isinstance(frame, OutputGap):
                self._gap(call, frame)
            else:
                self._end(call, frame)
        for key, news in call.items():
            if key in self.news:
                self.news[key].join(news)
            else:
                self.news[key] = news

    def reached(self, incarnation: Incarnation) -> OutputCommitted:
        """What the store holds of an incarnation once this commit is durable."""
        out, err = (self._at({}, Key(*incarnation, stream)) for stream in STREAMS)
        return OutputCommitted(*incarnation, out.end, err.end, out.done and err.done)

    def _at(self, call: dict[Key, News], key: Key) -> News:
        found = call.get(key)
        if found is None:
            earlier = self.news.get(key)
            if earlier is not None:
                found = earlier.fork()
            else:
                state = self._states.get(checked_key(key))
                found = News(0, False) if state is None else News(state.committed, state.done)
            call[key] = found
        return found

    def _piece(self, call: dict[Key, News], piece: OutputPiece) -> None:
        key = Key(piece.member, piece.fence, piece.stream)
        news = self._at(call, key)
        end = piece.offset + len(piece.data)
        if piece.offset < 0 or end > _FAR:
            raise _impossible(key, piece.offset, end)
        if end <= news.end:
            return
        if piece.offset > news.end:
            raise _hole(key, news.end, piece.offset)
        if news.done:
            raise _after_its_end(key, news.end)
        data = piece.data if piece.offset == news.end else piece.data[news.end - piece.offset :]
        at = piece.at if 0.0 <= piece.at < _LATEST_S else 0.0
        news.items.append((news.end, at, data))
        news.size += len(data)
        news.end = end

    def _gap(self, call: dict[Key, News], gap: OutputGap) -> None:
        key = Key(gap.member, gap.fence, gap.stream)
        news = self._at(call, key)
        if gap.start < 0 or gap.end < gap.start or gap.end > _FAR:
            raise _impossible(key, gap.start, gap.end)
        if gap.end <= news.end:
            return
        if gap.start > news.end:
            raise _hole(key, news.end, gap.start)
        if news.done:
            raise _after_its_end(key, news.end)
        news.items.append((news.end, gap.end))
        news.end = gap.end

    def _end(self, call: dict[Key, News], done: OutputDone) -> None:
        """Both streams end. One that the store has further than the record says (a machine that lost power forgot what
        it had sent) ends where the store has it."""
        ends = zip(STREAMS, (done.stdout, done.stderr), strict=True)
        for stream, end in ends:
            key = Key(done.member, done.fence, stream)
            news = self._at(call, key)
            if end > news.end:
                raise _hole(key, news.end, end)
            news.done = True


def _hole(key: Key, expected: int, found: int) -> Conflict:
    return Conflict(
        f"bytes {expected} to {found} are missing and no gap record explains them",
        object=str(key),
        next_step=f"Send from offset {expected} on.",
    )


def _after_its_end(key: Key, end: int) -> Conflict:
    return Conflict(f"the stream ended at offset {end}", object=str(key), next_step="Send nothing more of it.")


def _impossible(key: Key, start: int, end: int) -> BadRequest:
    return BadRequest(f"no stream has bytes {start} to {end}", object=str(key), next_step="Read the spool again.")
