"""Output in memory: for the simulator, for tests, and for a master that may forget. Nothing here waits."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from clutch.master.output.packing import checked
from clutch.master.output.records import Aged, Key, Segment, Span, StreamChange, StreamState
from clutch.master.output.tables import moved
from clutch.wire.errors import DiskFull
from clutch.wire.ids import Fence, MemberId, TaskId


class MemoryShelf:
    """What is stored; it outlives the stores that are opened on it. It holds at most ``capacity_bytes``."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.states: dict[int, StreamState] = {}
        self.ids: dict[Key, int] = {}
        self.rows: dict[int, dict[int, Segment]] = {}
        self.places: dict[int, list[int]] = {}
        self.used_bytes = 0
        self.last_id = 0


class MemoryOutputStore:
    """One process's way to a shelf."""

    def __init__(self, shelf: MemoryShelf | None = None) -> None:
        self.shelf = shelf if shelf is not None else MemoryShelf()

    async def states(self, incarnations: Sequence[tuple[MemberId, Fence]]) -> list[StreamState]:
        shelf = self.shelf
        keys = [Key(*one, stream) for one in incarnations for stream in ("stdout", "stderr")]
        return [shelf.states[shelf.ids[key]] for key in keys if key in shelf.ids]

    async def streams(self, *tasks: TaskId) -> list[StreamState]:
        wanted = frozenset(tasks)
        return [state for state in self.shelf.states.values() if state.member.task in wanted]

    async def write(self, changes: Sequence[StreamChange]) -> list[int]:
        self._check(changes)
        return [self._change(change) for change in changes]

    def _check(self, changes: Sequence[StreamChange]) -> None:
        shelf = self.shelf
        grown = 0
        for change in changes:
            state = change.state
            present = shelf.states.get(shelf.ids.get(state.key, 0))
            if (present.version if present else 0) != state.version - 1 or (present.id if present else 0) != state.id:
                raise moved(state)
            rows = shelf.rows.get(state.id, {})
            grown += sum(segment.size for segment in change.puts) - sum(rows[s].size for s in change.drops if s in rows)
        if shelf.capacity_bytes is not None and grown > 0 and shelf.used_bytes + grown > shelf.capacity_bytes:
            raise DiskFull("the memory store is full", object="output", next_step="Free space; nothing was written.")

    def _change(self, change: StreamChange) -> int:
        shelf = self.shelf
        stream = change.state.id
        if not stream:
            shelf.last_id += 1
            stream = shelf.last_id
            shelf.ids[change.state.key] = stream
            shelf.rows[stream], shelf.places[stream] = {}, []
        shelf.states[stream] = replace(change.state, id=stream)
        rows, places = shelf.rows[stream], shelf.places[stream]
        for start in change.drops:
            shelf.used_bytes -= rows.pop(start).size
            places.remove(start)
        for segment in change.puts:
            rows[segment.start] = segment
            insort(places, segment.start)
            shelf.used_bytes += segment.size
        return stream

    async def segments(self, span: Span) -> list[Segment]:
        found: list[Segment] = []
        size = 0
        for segment in self._touching(span):
            found.append(checked(segment) if span.bodies else replace(segment, body=b""))
            size += 0 if segment.kind.is_gap else segment.end - segment.start
            if len(found) >= span.limit_rows or (span.bodies and size >= span.limit_bytes):
                break
        return found

    def _touching(self, span: Span) -> Iterator[Segment]:
        places = self.shelf.places.get(span.stream, [])
        rows = self.shelf.rows.get(span.stream, {})
        low = max(bisect_right(places, span.start) - 1, 0)
        high = bisect_right(places, span.stop - 1)
        chosen = places[low:high]
        for start in reversed(chosen) if span.newest_first else chosen:
            if rows[start].end > span.start:
                yield rows[start]

    async def oldest(self, after: tuple[float, int, int], limit: int) -> list[Aged]:
        found = [
            Aged(self.shelf.states[stream].member.task, stream, segment.start, segment.last_at, segment.size)
            for stream, rows in self.shelf.rows.items()
            for segment in rows.values()
            if segment.size > 0 and (segment.last_at, stream, segment.start) > after
        ]
        return sorted(found, key=lambda aged: (aged.last_at, aged.stream, aged.start))[:limit]

    async def size_bytes(self) -> int:
        return self.shelf.used_bytes

    async def forget(self, task: TaskId) -> int:
        shelf = self.shelf
        gone = [stream for stream, state in shelf.states.items() if state.member.task == task]
        for stream in gone:
            del shelf.ids[shelf.states.pop(stream).key]
            shelf.used_bytes -= sum(segment.size for segment in shelf.rows.pop(stream).values())
            del shelf.places[stream]
        return len(gone)

    async def close(self) -> None:
        return
