"""What crosses the proxy, and who holds a ticket for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.master.access.keys import MasterKeys
from clutch.master.proxy import headers, tickets
from clutch.master.proxy.ports import parse
from clutch.wire.errors import BadRequest, NotAuthenticated

KEY, OTHER = MasterKeys(("k" * 32,)), MasterKeys(("o" * 32,))
PREFIX = "/proxy/c1/8888"


def test_a_ticket_is_good_for_its_task_until_it_expires() -> None:
    text = tickets.make(KEY, tickets.Ticket("ada", "c1", 100.0))
    assert tickets.check(KEY, text, "c1", 99.0).user == "ada"
    for key, task, now in ((KEY, "c2", 1.0), (KEY, "c1", 100.0), (OTHER, "c1", 1.0)):
        with pytest.raises(NotAuthenticated):
            tickets.check(key, text, task, now)


@given(st.text(max_size=80) | st.builds(lambda a, b: f"{a}.{b}", st.text(max_size=20), st.text(max_size=20)))
def test_nothing_made_up_is_a_ticket(text: str) -> None:
    with pytest.raises(NotAuthenticated):
        tickets.check(KEY, text, "c1", 0.0)


def test_any_changed_character_of_a_ticket_is_noticed() -> None:
    text = tickets.make(KEY, tickets.Ticket("ada", "c1", 100.0))
    for place, letter in enumerate(text):
        changed = text[:place] + ("A" if letter != "A" else "B") + text[place + 1 :]
        with pytest.raises(NotAuthenticated):
            tickets.check(KEY, changed, "c1", 0.0)


def test_credentials_and_hop_by_hop_headers_stay_outside() -> None:
    given_headers = [
        (b"Authorization", b"Bearer secret"),
        (b"Cookie", b"clutch_ticket=secret; theme=dark; clutch_ticket=again"),
        (b"Connection", b"keep-alive"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Key", b"x"),
        (b"Host", b"cluster:8620"),
        (b"X-Forwarded-Host", b"forged"),
        (b"Accept", b"*/*"),
    ]
    passed = headers.to_task(given_headers, PREFIX, "localhost:8888")
    assert passed == [
        (b"host", b"localhost:8888"),
        (b"cookie", b"theme=dark"),
        (b"accept", b"*/*"),
        (b"x-forwarded-prefix", PREFIX.encode()),
        (b"x-forwarded-host", b"cluster:8620"),
    ]


def test_what_the_answer_says_about_the_root_is_moved_under_the_prefix() -> None:
    said = headers.from_task(
        [
            (b"Location", b"/login?next=1"),
            (b"Set-Cookie", b"sid=1; Path=/; HttpOnly; Domain=evil.example"),
            (b"Set-Cookie", b"clutch_ticket=stolen; Path=/"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Content-Type", b"text/html"),
        ],
        PREFIX,
    )
    assert (b"location", f"{PREFIX}/login?next=1".encode()) in said
    cookies = [value for name, value in said if name == b"set-cookie"]
    assert len(cookies) == 1
    assert f"Path={PREFIX}/".encode() in cookies[0]
    assert b"Domain" not in cookies[0]
    assert b"HttpOnly" in cookies[0]
    assert (b"content-type", b"text/html") in said
    assert not any(name == b"transfer-encoding" for name, _ in said)


def test_other_places_are_left_alone() -> None:
    assert headers.from_task([(b"location", b"//other/x")], PREFIX) == [(b"location", b"//other/x")]
    assert headers.from_task([(b"location", b"relative")], PREFIX) == [(b"location", b"relative")]


def test_the_ticket_leaves_the_query_and_the_rest_stays() -> None:
    assert headers.without_ticket(b"a=1&clutch_ticket=x&b=%20") == b"a=1&b=+"
    assert headers.without_ticket(b"a=%ff&c") == b"a=%ff&c"
    assert headers.ticket_in(b"a=1&clutch_ticket=x.y") == "x.y"


@pytest.mark.parametrize("path", ["", "/", "/c1", "/c1/", "/c1/x/", "/c1/99999999999/", "//8888/", "/c1/²/"])
def test_a_path_without_task_or_port_is_refused(path: str) -> None:
    with pytest.raises(BadRequest):
        parse(path)


def test_a_path_names_task_port_and_rest() -> None:
    assert parse("/c1/8888") == ("c1", 8888, "/")
    assert parse("/c1/8888/a/b") == ("c1", 8888, "/a/b")
