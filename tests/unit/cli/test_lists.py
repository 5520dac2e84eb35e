"""Tables fit their terminal, whatever is in them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.cli.agents import parse_slots
from clutch.cli.lists import Column, ago, clipped, facts, moment, span, table, told_here, width_of
from clutch.cli.pools import parse_setting
from clutch.wire.errors import BadRequest

texts = st.text(st.characters(codec="utf-8"), max_size=60)


def columns(count: int) -> list[Column]:
    return [Column(f"c{n}", lambda row, n=n: row[n], goes=n, right=n % 2 == 1) for n in range(count)]


@settings(deadline=None)
@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(texts, min_size=n, max_size=n), min_size=1, max_size=5)),
       st.integers(12, 200))  # fmt: skip
def test_no_line_is_wider_than_the_terminal(rows: list[list[str]], width: int) -> None:
    lines = table(rows, columns(len(rows[0])), width)
    assert len(lines) == len(rows) + 1
    assert max(width_of(line) for line in lines) <= width
    assert all("\n" not in line and "\x1b" not in line for line in lines)


def test_a_narrow_terminal_keeps_what_matters_and_a_pipe_keeps_all() -> None:
    chosen = [
        Column("id", lambda row: row[0]),
        Column("state", lambda row: row[1]),
        Column("notes", lambda row: row[2], 1),
    ]
    rows = [("t-123", "running", "x" * 70)]
    assert table(rows, chosen, 40)[1].startswith("t-123  running  xxxx")
    assert table(rows, chosen, 14)[0].split() == ["ID", "STATE"]
    assert table(rows, chosen, None)[1].endswith("x" * 70)


def test_states_are_coloured_only_when_asked() -> None:
    chosen = [Column("state", lambda row: row)]
    assert table(["running"], chosen, 40, True)[1] == "\x1b[32mrunning\x1b[0m"
    assert table(["running"], chosen, 40)[1] == "running"


@settings(deadline=None)
@given(texts, st.integers(1, 30))
def test_a_clipped_text_fits(text: str, width: int) -> None:
    assert width_of(clipped(text, width)) <= width
    assert clipped(text, 1000) == text


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5s"), (99, "99s"), (600, "10m"), (7300, "2h"), (200000, "2d"), (0, "0s")]
)
def test_spans(seconds: float, words: str) -> None:
    assert span(seconds) == words
    assert ago(0.0, 5.0) == ""


def test_facts_leave_out_what_is_empty() -> None:
    assert facts([("a", ""), ("long", 1), ("b", "x\ny")]) == "long  1\nb     x·y"


def test_slots_of_a_machine() -> None:
    assert parse_slots("0,2-4") == (0, 2, 3, 4)
    for bad in ("", "a", "1-", "-1", "0-99999"):
        with pytest.raises(BadRequest, match=re.escape("--slots")):
            parse_slots(bad)


def test_settings_of_a_pool() -> None:
    assert parse_setting("min_run_s=30") == ("min_run_s", 30)
    assert parse_setting("fit=spread") == ("fit", "spread")
    assert parse_setting("policy=fair_share") == ("policy", {"type": "fair_share"})
    with pytest.raises(BadRequest):
        parse_setting("what")


def test_a_storys_moments_are_told_as_clocks_show_them() -> None:
    line = "1794778085.313  #12     task ended: task=c-1  <- agent:one"
    assert told_here(f"  {line}") == f"{moment(1794778085.313)}  #12     task ended: task=c-1  <- agent:one"
    assert told_here("it waits for a node") == "it waits for a node"
    assert told_here("1e400 of them") == "1e400 of them"
