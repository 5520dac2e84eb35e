"""What is shown of a line's bytes, which level it names, and where lines are cut."""

import pytest

from clutch.master.output.cursors import read, written
from clutch.master.output.text import level_of, shown
from clutch.wire.errors import BadRequest


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"plain\n", "plain"),
        (b"no end", "no end"),
        (b"\n", ""),
        (b"windows\r\n", "windows"),
        (b" 10%|#   |\r 50%|##  |\r100%|####|\n", "100%|####|"),
        (b" 10%\r 50%\r", " 50%"),
        (b"\r\r\n", ""),
        ("Größe 漢字 🦜\n".encode(), "Größe 漢字 🦜"),
        (b"bad \xff\xfe bytes\n", "bad \ufffd\ufffd bytes"),
        (b"nul \x00 inside\n", "nul \x00 inside"),
    ],
)
def test_a_line_is_shown_as_a_terminal_would_leave_it(line: bytes, expected: str) -> None:
    assert shown(line) == expected


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("2026-11-15 11:00:00,123 INFO trainer: step 1", "info"),
        ("2026-11-15 11:00:00,123 - root - WARNING - disk nearly full", "warning"),
        ("[2026-11-15 11:00] [ERROR] it broke", "error"),
        ("WARN something", "warning"),
        ("CRITICAL:root:gone", "critical"),
        ("FATAL: cannot start", "critical"),
        ("DEBUG x", "debug"),
        ("error: no such file", "error"),
        ("[info] ready", "info"),
        ('{"time": "2026-11-15", "level": "warning", "msg": "x"}', "warning"),
        ("ts=2026-11-15 level=error msg=x", "error"),
        ('severity="CRITICAL" x', "critical"),
        ("E1115 11:00:00.000 file.cc:1] broke", "error"),
        ("I1115 11:00:00.000 file.cc:1] fine", "info"),
        ("[W 2026-11-15 11:00:00.000 ServerApp] careful", "warning"),
        ("Traceback (most recent call last):", "error"),
        ("no error was found in this sentence", None),
        ("INFORMATION is not a level here", None),
        ("plain", None),
        ("", None),
        ("x" * 90 + " ERROR too far in", None),
    ],
)
def test_levels(text: str, level: str | None) -> None:
    assert level_of(text) == level


def test_cursors_come_back_as_they_were() -> None:
    for positions in ({}, {1: 5}, {7: 2**40, 3: 1}, {n: n * 1_000_003 for n in range(1, 4_000)}):
        assert read(written(positions)) == positions
    assert len(written({n: 10_000_000 + n * 17 for n in range(1, 2_000)})) < 12_000


@pytest.mark.parametrize("cursor", ["x", "cA", "!!!!", "eg", "ekFBQUE", "cJIB_w", "p" * 5_000])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest):
        read(cursor)
