"""What a task printed comes out byte for byte, however it was cut into lines, parts and pages."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.cli.printing import Exact, exact_bytes, line_text
from clutch.master.output.text import shown
from clutch.sdk.output import Follower, output_query
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.output import OutputLine, OutputPage

bytes_of = st.lists(
    st.sampled_from(
        [b"a", b"\n", b"\n", b"\r", b"\r\n", b"\xff", "é".encode(), b"\xc3", b"bc", b"", b"\x00", b"\xef\xbf\xbd"]
    )
).map(b"".join)


def made(data: bytes, start: int, *, partial: bool = False, stream: str = "stdout", cut: bool = False) -> OutputLine:
    """A line as the master's own code shows it."""
    return OutputLine(
        member=MemberId(TaskId("t"), "main", 0), fence=Fence(1, 1, 1), stream=stream, start=start,
        end=start + len(data), number=0, at=0.0, text=shown(data), partial=partial, cut=cut,
    )  # fmt: skip


def cut_up(data: bytes) -> list[OutputLine]:
    """Whole lines, and the last one without an end as it comes while it grows."""
    lines, start = [], 0
    for piece in data.splitlines(keepends=True) if b"\r" not in data else _by_newline(data):
        if not piece.endswith(b"\n") and len(piece) > 1:
            lines.append(made(piece[: len(piece) // 2], start, partial=True))
            lines.append(made(piece, start, partial=True))
        lines.append(made(piece, start))
        start += len(piece)
    return lines


def _by_newline(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    return [*(line + b"\n" for line in whole), *([rest] if rest else [])]


@settings(deadline=None)
@given(bytes_of, st.integers(1, 5))
def test_every_byte_comes_once(data: bytes, together: int) -> None:
    if data.endswith(b"\r"):
        data += b"."  # the one thing a line's text cannot tell: a carriage return as the very last byte
    lines = cut_up(data) if b"\r" not in data else _partials(data)
    exact = Exact(lambda line, start, stop: data[start:stop])
    out = b""
    while lines:
        run = exact.run(lines[:together])
        out += exact.data(run)
        exact.passed(run)
        lines = lines[len(run) :]
    assert out == data


def _partials(data: bytes) -> list[OutputLine]:
    lines, start = [], 0
    for piece in _by_newline(data):
        if not piece.endswith(b"\n") and len(piece) > 1:
            lines.append(made(piece[:1], start, partial=True))
        lines.append(made(piece, start, partial=not piece.endswith(b"\n")))
        start += len(piece)
    return lines


def test_what_the_text_tells_is_not_asked_for() -> None:
    assert exact_bytes(made(b"abc\n", 0)) == b"abc\n"
    assert exact_bytes(made(b"abc", 0)) == b"abc"
    assert exact_bytes(made(b"a\rbc\n", 0)) is None
    assert exact_bytes(made(b"10%\r", 0, partial=True)) is None
    assert exact_bytes(made(b"\xff\n", 0)) is None


def test_streams_are_not_mixed_up() -> None:
    lines = [made(b"a\n", 0), made(b"b\n", 2), made(b"E\n", 0, stream="stderr"), made(b"c\n", 4)]
    exact = Exact(lambda *_: b"")
    assert exact.run(lines) == tuple(lines[:2])
    assert exact.data(lines[:2]) == b"a\nb\n"


def test_lines_for_readers() -> None:
    assert line_text(made(b"x\n", 0), label=True) == "main.0 | x\n"
    assert line_text(made(b"x", 0, cut=True)) == "x"
    lost = OutputLine(
        member=MemberId(TaskId("t"), "main", 0), fence=Fence(1, 1, 1), stream="stdout", start=5, end=9, number=0,
        at=0.0, text="", kind="lost",
    )  # fmt: skip
    assert line_text(lost) == "[clutch: 4 bytes of stdout were lost before they arrived]\n"


# -- a reader that is interrupted ---------------------------------------------------------------------------------


def answered(sizes: list[int], at: int) -> list[OutputPage]:
    """A master's pages from a cursor on: the cursor is how many lines were given."""
    pages, first = [], 0
    for size in sizes:
        lines = tuple(made(b"x\n", number) for number in range(first, first + size))
        if first >= at:
            pages.append(OutputPage(lines, str(first + size), "", True))
        first += size
    return pages


def read_on(follower: Follower, pages: list[OutputPage], seen: list[int], chance: Random) -> bool:
    """Shows what comes until it is interrupted (False) or the stream ends."""
    for page in pages:
        follower.hear(page)
        for line in follower.rest():
            if chance.random() < 0.2:
                return False  # before it was shown
            seen.append(line.start)
            if chance.random() < 0.2:
                follower.passed(line)  # shown and said so, then interrupted
                return False
    return True


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), max_size=8), st.integers(0, 2**32))
def test_a_follower_that_is_interrupted_anywhere_shows_each_line_once(sizes: list[int], seed: int) -> None:
    follower, chance = Follower(output_query("t")), Random(seed)
    seen: list[int] = []
    for _ in range(1000):
        for line in follower.rest():
            seen.append(line.start)
        if follower.finished:
            break
        if read_on(follower, answered(sizes, int(follower.query().after or 0)), seen, chance):
            follower.stream_ended(chance.random() < 0.5)
    assert follower.finished
    assert seen == list(range(sum(sizes)))
