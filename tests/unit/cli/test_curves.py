"""Curves in a terminal: what is drawn where."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from clutch.cli.curves import BLANK, SPARKS, Curve, are_curves, bar, frame_of, number, plot, spark


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    lines = plot([Curve([(0, 0.0), (10, 1.0)])], 30, 4)
    drawn = [line.partition("│")[2] for line in lines[:4]]
    assert len(lines) == 6, "four rows, an axis and its ends"
    assert drawn[3][0] != chr(BLANK) and drawn[0].rstrip(chr(BLANK))[-1:] != ""
    assert len(drawn[0]) > len(drawn[3]), "high values are at the right"
    assert lines[0].lstrip().startswith("1") and lines[3].lstrip().startswith("0")
    assert lines[5].split() == ["0", "10"]


def test_nothing_is_drawn_of_nothing() -> None:
    assert plot([Curve([])], 30, 4) == []
    assert plot([Curve([(1, math.nan), (2, math.inf)])], 30, 4) == []


def test_points_at_one_step_are_no_curve() -> None:
    assert not are_curves([Curve([(30, 1.0)]), Curve([(30, 2.0)]), Curve([])])
    assert not are_curves([Curve([(30, 1.0), (31, math.nan)])])
    assert are_curves([Curve([(30, 1.0)]), Curve([(30, 2.0), (31, 2.0)])])


def test_one_value_has_a_frame_around_it() -> None:
    frame = frame_of([Curve([(3, 5.0)])])
    assert frame is not None and frame.low < 5.0 < frame.high and frame.right > frame.left


def test_the_last_curve_is_on_top() -> None:
    same = [(0.0, 0.0), (1.0, 1.0)]
    lines = plot([Curve(same, "31"), Curve(same, "32")], 20, 3)
    assert any("\x1b[32m" in line for line in lines) and not any("\x1b[31m" in line for line in lines)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats()), max_size=50), st.integers(10, 120), st.integers(1, 20))
def test_every_picture_fits(points: list[tuple[int, float]], width: int, height: int) -> None:
    lines = plot([Curve([(float(x), y) for x, y in points])], width, height)
    assert len(lines) in (0, height + 2)
    assert all(len(line.partition("│")[2]) <= max(8, width) for line in lines)


@given(st.lists(st.floats(), max_size=60), st.integers(1, 30))
def test_a_spark_is_blocks(values: list[float], width: int) -> None:
    drawn = spark(values, width)
    assert len(drawn) <= width and set(drawn) <= set(SPARKS)


def test_bars_and_numbers() -> None:
    assert bar(0.5, 4) == "██░░" and bar(7, 3) == "███" and bar(-1, 2) == "░░"
    assert [number(v) for v in (3.0, 0.123456, 1e-7, 123456789.0)] == ["3", "0.1235", "1e-07", "1.235e+08"]
