"""A lane for output in one file: appended, synced, read back at its start. Strict: a hole is an error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from clutch.wire.errors import BrokenInvariant
from clutch.wire.ids import Fence, MemberId
from clutch.wire.link import OutputCommitted, OutputDone, OutputGap, OutputPiece

Frame = OutputPiece | OutputGap | OutputDone
_DECODER = msgspec.msgpack.Decoder(Frame)


class FileLane:
    def __init__(self, path: Path) -> None:
        self.state: dict[tuple[MemberId, Fence], OutputCommitted] = {}
        self.doubled_bytes = 0
        self.written_bytes = 0
        self.writes = 0
        self._lock = asyncio.Lock()
        for frame in frames_in(path):
            self._fold(frame)
        self.written_bytes = 0
        self._file = path.open("ab")
        self._file.truncate(whole_bytes(path))

    async def opened(self, member: MemberId, fence: Fence) -> OutputCommitted:
        return self.state.get((member, fence), OutputCommitted(member, fence, 0, 0))

    async def write(self, frames: Sequence[Frame]) -> list[OutputCommitted]:
        async with self._lock:
            new = [kept for frame in frames if (kept := self._new_part(frame)) is not None]
            self.writes += 1
            data = b"".join(len(packed).to_bytes(4, "big") + packed for packed in map(msgspec.msgpack.encode, new))
            await asyncio.to_thread(self._append, data)
            touched = dict.fromkeys((frame.member, frame.fence) for frame in frames)
            return [self.state[key] for key in touched]

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def _new_part(self, frame: Frame) -> Frame | None:
        key = (frame.member, frame.fence)
        known = self.state.get(key, OutputCommitted(*key, 0, 0))
        if isinstance(frame, OutputDone):
            if (frame.stdout, frame.stderr) != (known.stdout, known.stderr):
                raise BrokenInvariant(f"{key} ends at {frame.stdout}, {frame.stderr}, known is {known}")
            kept: Frame | None = None if known.done else frame
        else:
            at = known.stdout if frame.stream == "stdout" else known.stderr
            start, end = (
                (frame.start, frame.end)
                if isinstance(frame, OutputGap)
                else (frame.offset, frame.offset + len(frame.data))
            )
            if start > at:
                raise BrokenInvariant(f"{key} has a hole from {at} to {start}")
            self.doubled_bytes += min(at, end) - start
            if end <= at:
                kept = None
            elif isinstance(frame, OutputGap):
                kept = msgspec.structs.replace(frame, start=at)
            else:
                kept = msgspec.structs.replace(frame, offset=at, data=frame.data[at - start :])
        if kept is not None:
            self._fold(kept)
        else:
            self.state.setdefault(key, known)
        return kept

    def _fold(self, frame: Frame) -> None:
        key = (frame.member, frame.fence)
        known = self.state.get(key, OutputCommitted(*key, 0, 0))
        if isinstance(frame, OutputDone):
            self.state[key] = msgspec.structs.replace(known, done=True)
            return
        end = frame.end if isinstance(frame, OutputGap) else frame.offset + len(frame.data)
        self.written_bytes += len(frame.data) if isinstance(frame, OutputPiece) else 0
        self.state[key] = msgspec.structs.replace(known, **{frame.stream: end})


def whole_bytes(path: Path) -> int:
    """Up to where the file holds whole frames."""
    data = path.read_bytes() if path.exists() else b""
    position = 0
    while position + 4 <= len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if end > len(data):
            break
        position = end
    return position


def frames_in(path: Path) -> list[Frame]:
    data = path.read_bytes() if path.exists() else b""
    found: list[Frame] = []
    position, end = 0, whole_bytes(path)
    while position < end:
        size = int.from_bytes(data[position : position + 4], "big")
        found.append(_DECODER.decode(data[position + 4 : position + 4 + size]))
        position += 4 + size
    return found


def output_of(path: Path, task: str, stream: str = "stdout") -> bytes:
    """All of a task's output in order, over all its members and incarnations; a gap is an error."""
    pieces: list[bytes] = []
    for frame in frames_in(path):
        if frame.member.task == task and not isinstance(frame, OutputDone) and frame.stream == stream:
            assert isinstance(frame, OutputPiece), f"a gap: {frame}"
            pieces.append(frame.data)
    return b"".join(pieces)
