"""What ranks print becomes lines with their names, however it is cut on the way."""

from __future__ import annotations

import collections
import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from clutch.runtime.launch.ends import REASON_MAX, TAIL_BYTES, End, tail_text
from clutch.runtime.launch.lines import LINE_MAX, PROGRESS_S, TAIL_LINES, Lines, Raw

PREFIX = b"[rank=1] "


def fresh() -> tuple[Lines, collections.deque[bytes]]:
    tail: collections.deque[bytes] = collections.deque(maxlen=TAIL_LINES)
    return Lines(PREFIX, tail), tail


def shown(pieces: list[bytes], now: float = 0.0) -> bytes:
    lines, _ = fresh()
    return b"".join(lines.feed(piece, now) for piece in pieces) + lines.close(now)


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_plain_text_is_the_same_however_it_is_cut(text: bytes, cuts: list[int]) -> None:
    text = text.replace(b"\r", b"")
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    expected = text.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert shown(pieces) == b"".join(PREFIX + line + b"\n" for line in expected)


@given(st.lists(st.sampled_from([b"a", b"bb", b"\r", b"\n", b"\r\n", b" ", b"x" * 5000]), max_size=40))
def test_no_line_is_too_long_and_no_last_word_is_lost(pieces: list[bytes]) -> None:
    found = shown(pieces)
    lines = found.split(b"\n")[:-1]
    assert all(line.startswith(PREFIX) and len(line) <= len(PREFIX) + LINE_MAX for line in lines)
    assert b"\r" not in found
    words = [word for word in re.split(rb"[\r\n]+", b"".join(pieces)) if word.strip()]
    if words:
        assert words[-1].strip()[-50:] in found.replace(b"\n" + PREFIX, b"")


@given(st.lists(st.sampled_from([b"a\n", b"b\r\n", b"c"]), max_size=20), st.integers(0, 30))
def test_both_line_ends_are_one(pieces: list[bytes], cut: int) -> None:
    """Also when a piece ends between a carriage return and its line feed."""
    text = b"".join(pieces)
    assert shown([text[:cut], text[cut:]]) == shown([text.replace(b"\r\n", b"\n")])


def test_of_progress_one_a_second_is_shown_and_the_last() -> None:
    lines, _ = fresh()
    out = [lines.feed(b"\r%d%%" % n, n / 100) for n in range(500)]
    written = b"".join(out).splitlines()
    assert len(written) == 5 and written[0] == PREFIX + b"0%"
    due = lines.due()
    assert due is not None and 4.0 < due <= 6.0
    assert lines.tick(due).startswith(PREFIX + b"4") and lines.due() is None
    assert lines.feed(b"\n", 6.0) == PREFIX + b"499%\n", "what stood there when the line ended"


def test_progress_before_a_line_is_shown_first() -> None:
    lines, _ = fresh()
    assert lines.feed(b"1%\r2%\r3%\rdone\n", 10.0).splitlines() == [PREFIX + b"1%", PREFIX + b"3%", PREFIX + b"done"]
    assert lines.feed(b"\r\r  \r\r", 10.0 + PROGRESS_S) == b"", "blanks are nothing"


def test_a_long_line_is_cut() -> None:
    found = shown([b"x" * (2 * LINE_MAX + 7) + b"\n" + b"y" * 3]).splitlines()
    assert [len(line) - len(PREFIX) for line in found] == [LINE_MAX, LINE_MAX, 7, 3]


def test_a_launchers_words_pass_as_they_are() -> None:
    tail: collections.deque[bytes] = collections.deque(maxlen=TAIL_LINES)
    raw = Raw(tail)
    assert raw.feed(b"a\nb", 0.0) + raw.feed(b"c\r\nd", 0.0) + raw.close(0.0) == b"a\nbc\r\nd"
    assert [line.strip() for line in tail] == [b"a", b"bc", b"d"]


@given(st.lists(st.binary(max_size=3000), max_size=TAIL_LINES))
def test_a_reason_is_one_bounded_line(tail: list[bytes]) -> None:
    text = tail_text(collections.deque(tail))
    assert sum(len(line.encode()) for line in text) <= TAIL_BYTES
    said = End("rank 3", 7, text).sentence()
    assert said.startswith("rank 3 exited with code 7") and "\n" not in said and len(said) <= REASON_MAX + 40


def test_a_reason_keeps_the_newest_lines() -> None:
    text = [f"line {number} " + "x" * 60 for number in range(20)]
    said = End("rank 0", -9, text).sentence()
    assert said.startswith("rank 0 was killed by SIGKILL; its last lines: line ") and said.endswith(text[-1])
    assert "line 0 " not in said
    assert End("rank 0", 1, ["y" * 2000]).sentence().endswith("y" * 300)
    assert End("rank 0", -99, []).sentence() == "rank 0 was killed by signal 99"
    assert End("rank 0", 1, ["a", "b"]).paragraph() == "rank 0 exited with code 1; its last lines:\n    a\n    b"
