"""Contacts: whom a term believes, whom it greets, who fell silent, and what must be said again."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.master.contacts import GREETING_PAUSE_S, Contacts, Heard
from clutch.wire.ids import NodeId, PoolName
from clutch.wire.messages import Hello, Report
from clutch.wire.resources import Capacity

N = NodeId("n")


def contacts() -> Contacts:
    made = Contacts(suspect_after_s=4.0, repeat_after_s=1.0)
    made.generation, made.term = 1, 3
    return made


def report(sequence: int, session: str = "s1", greeting: int = 1, **more: Any) -> Report:
    plain = {
        "node": N,
        "pool": PoolName("pool"),
        "generation": 1,
        "term": 3,
        "wanted_sequence": 0,
        "capacity": Capacity(),
    }
    return Report(**{**plain, "session": session, "sequence": sequence, "greeting": greeting, **more})


def acquainted() -> Contacts:
    """A node that was heard, greeted, and has answered."""
    made = contacts()
    assert made.take(report(1, term=0, greeting=0), 0.0) is Heard.STRANGE
    assert made.greet(N, 0.0) == Hello(1, 3, 1)
    assert made.take(report(2), 0.1) is Heard.NEWS
    return made


@pytest.mark.parametrize("wrong", [{"term": 2}, {"term": 4}, {"generation": 0}, {"generation": 2}])
def test_another_term_s_report_is_strange(wrong: dict[str, int]) -> None:
    assert acquainted().take(report(9, **wrong), 1.0) is Heard.STRANGE


def test_only_later_reports_are_news() -> None:
    made = acquainted()
    assert made.take(report(5), 1.0) is Heard.NEWS
    assert made.take(report(5), 1.1) is Heard.OLD
    assert made.take(report(4), 1.2) is Heard.OLD
    assert made.take(report(6), 1.3) is Heard.NEWS


def test_another_start_of_the_agent_must_echo_the_latest_greeting() -> None:
    made = acquainted()
    fresh = report(1, session="s2", greeting=0)
    assert made.take(fresh, 1.0) is Heard.STRANGE
    hello = made.greet(N, 1.0)
    assert hello is not None and hello.greeting == 2
    assert made.take(report(7), 1.1) is Heard.NEWS, "until then the first one is believed"
    assert made.take(report(2, session="s2", greeting=2), 1.2) is Heard.NEWS
    assert made.take(report(8), 1.3) is Heard.STRANGE, "the first start's late words take nothing back"
    assert made.take(report(2, session="s2", greeting=2), 1.4) is Heard.OLD


def test_greetings_grow_and_are_not_hurried() -> None:
    made = contacts()
    made.take(report(1, term=0), 0.0)
    assert made.greet(N, 0.0) == Hello(1, 3, 1)
    assert made.greet(N, GREETING_PAUSE_S / 2) is None
    assert made.greet(N, GREETING_PAUSE_S) == Hello(1, 3, 2)


def test_silence_is_named_once_and_ends_with_a_word() -> None:
    made = acquainted()
    assert made.fallen_silent(4.0) == []
    assert made.fallen_silent(4.2) == [N]
    assert made.fallen_silent(9.0) == []
    assert made.take(report(3), 10.0) is Heard.NEWS
    assert made.fallen_silent(13.9) == []
    assert made.fallen_silent(14.1) == [N]


def test_strangers_are_not_silent_they_were_never_in_touch() -> None:
    made = contacts()
    made.take(report(1, term=0), 0.0)
    assert made.fallen_silent(100.0) == []


def test_what_was_said_is_repeated_until_it_is_reflected() -> None:
    made = acquainted()
    assert made.to_repeat(1.0) == []
    made.said(N, 10, 1.0)
    assert made.to_repeat(1.5) == [], "give it a moment"
    assert made.to_repeat(2.0) == [N]
    made.take(report(3, wanted_sequence=9), 2.0)
    assert made.to_repeat(2.0) == [N]
    made.take(report(4, wanted_sequence=10), 2.1)
    assert made.to_repeat(9.0) == []
    made.said(N, 11, 9.0)
    made.fallen_silent(50.0)
    assert made.to_repeat(50.0) == [], "nobody is there to hear it"
    made.said(NodeId("stranger"), 1, 0.0)
