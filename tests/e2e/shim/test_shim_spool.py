"""The spool's two ends against each other: whatever is written, read, dropped and read again, no byte is doubled,
moved or silently missing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.agent import shim, spool

NUMBERS = {"stdout": shim.STDOUT, "stderr": shim.STDERR}
CAP = shim.CAP_LEAST_BYTES

steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from([shim.STDOUT, shim.STDERR]), st.integers(1, 4096)),
        st.tuples(st.just("burst"), st.sampled_from([shim.STDOUT, shim.STDERR]), st.integers(1, 40)),
        st.tuples(st.just("read"), st.just(0), st.integers(1, 20_000)),
        st.tuples(st.just("release"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("tear"), st.just(0), st.integers(1, 30)),
    ),
    max_size=60,
)


def content(stream: int, start: int, end: int) -> bytes:
    return bytes((offset * 7 + stream * 100) % 251 for offset in range(start, end))


class Reader:
    """Checks each piece against what must have been written there, and that nothing is left out in silence."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cursor = spool.Cursor()
        self.gaps = 0

    def read(self, limit_bytes: int) -> bool:
        ends = {"stdout": self.cursor.stdout, "stderr": self.cursor.stderr}
        pieces, self.cursor = spool.read(self.folder, self.cursor, limit_bytes)
        for piece in pieces:
            if isinstance(piece, spool.Gap):
                assert piece.start == ends[piece.stream] < piece.end
                ends[piece.stream] = piece.end
                self.gaps += 1
            else:
                start, end = piece.offset, piece.offset + len(piece.data)
                assert start == ends[piece.stream] < end
                assert piece.data == content(NUMBERS[piece.stream], start, end)
                ends[piece.stream] = end
        assert (self.cursor.stdout, self.cursor.stderr) == (ends["stdout"], ends["stderr"])
        return bool(pieces)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_what_is_read_is_what_was_written(plan: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        writer = shim.Spool(name, CAP)
        reader = Reader(Path(name))
        for verb, stream, amount in plan:
            if verb == "write":
                start = writer.offsets[stream]
                writer.add(stream, content(stream, start, start + amount))
            elif verb == "burst":
                for _ in range(amount):
                    start = writer.offsets[stream]
                    writer.add(stream, content(stream, start, start + 3000))
            elif verb == "read":
                reader.read(amount)
            elif verb == "release":
                spool.release(Path(name), reader.cursor)
            elif verb == "restart":  # another agent, which knows only how far the store is
                reader.cursor = spool.Cursor(stdout=reader.cursor.stdout, stderr=reader.cursor.stderr)
            elif verb == "tear" and (numbers := spool.segments(Path(name))):
                with tempfile.TemporaryDirectory() as torn:  # a reader over a copy whose last frame is cut
                    for number in numbers:
                        data = (Path(name) / f"{number:08d}").read_bytes()
                        cut = data[:-amount] if number == numbers[-1] else data
                        (Path(torn) / f"{number:08d}").write_bytes(cut)
                    Reader(Path(torn)).read(2**40)
            assert sum(path.stat().st_size for path in Path(name).iterdir()) <= CAP
        while reader.read(10_000):
            pass
        assert (reader.cursor.stdout, reader.cursor.stderr) == (
            writer.offsets[shim.STDOUT],
            writer.offsets[shim.STDERR],
        )
        if spool.segments(Path(name)):
            assert spool.ends(Path(name)) == (reader.cursor.stdout, reader.cursor.stderr)


def test_a_drop_is_a_gap_in_both_streams(tmp_path: Path) -> None:
    writer = shim.Spool(str(tmp_path), CAP)
    writer.add(shim.STDERR, b"early")
    for _ in range(40):
        writer.add(shim.STDOUT, b"x" * 4000)
    pieces, _ = spool.read(tmp_path, spool.Cursor(), 2**40)
    gaps = [piece for piece in pieces if isinstance(piece, spool.Gap)]
    assert [(gap.stream, gap.start) for gap in gaps] == [("stdout", 0), ("stderr", 0)]
    assert gaps[1].end == 5 and gaps[0].end % 4000 == 0 and gaps[0].end > 0
    assert pieces[:2] == gaps  # known at once, not only when stderr speaks again


def test_streams_are_read_in_the_order_they_were_written(tmp_path: Path) -> None:
    writer = shim.Spool(str(tmp_path), 2**20)
    words = [(shim.STDOUT if number % 3 else shim.STDERR, b"%d " % number) for number in range(50)]
    for stream, word in words:
        writer.add(stream, word)
    pieces, _ = spool.read(tmp_path, spool.Cursor(), 2**40)
    assert [(NUMBERS[piece.stream], piece.data) for piece in pieces if isinstance(piece, spool.Piece)] == words


def test_what_a_record_counts_and_the_disk_lost_is_a_gap() -> None:
    gaps, cursor = spool.rest(spool.Cursor(stdout=10, stderr=5), 30, 5)
    assert gaps == [spool.Gap("stdout", 10, 30)] and (cursor.stdout, cursor.stderr) == (30, 5)
    assert spool.rest(cursor, 30, 5)[0] == []


def test_a_record_is_whole_or_nothing() -> None:
    fields = [("argv", b"a=b"), ("argv", b""), ("env", b"A=x\ny"), ("end_of", b"=")]
    data = shim.pack(fields)
    assert shim.unpack(data) == fields and shim.unpack(shim.pack([])) == []
    assert [shim.unpack(data[:size]) for size in range(len(data))] == [None] * len(data)
