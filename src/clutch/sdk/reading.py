"""Lines of output through a blocking client: those there are, and those to come. What is asked for is a ``Call``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from clutch.sdk.call import Call
from clutch.sdk.output import Follower, first_page, next_page, parse_page
from clutch.wire.errors import Unavailable
from clutch.wire.output import OutputLine, OutputPage, OutputQuery

if TYPE_CHECKING:
    from clutch.sdk.client import Client

LOOK_FIRST_S, LOOK_MAX_S = 0.05, 1.0
Reads = Callable[[OutputQuery], Call[OutputPage]]
Follows = Callable[[OutputQuery], Call[Any]]


def read_lines(client: Client, query: OutputQuery, reads: Reads) -> Iterator[OutputLine]:
    """Every line that the query asks for, as of now, oldest first."""
    query, last = first_page(query), list[OutputLine]()
    while True:
        page = client.perform(reads(query))
        if query.tail:
            last[:0] = page.lines  # the end comes first
        else:
            yield from page.lines
        if not page.more:
            yield from last
            return
        query = next_page(query, page)


def follow_lines(
    client: Client,
    follower: Follower,
    follows: Follows,
    is_over: Callable[[], bool],
    told: Callable[[Unavailable], None] | None = None,
) -> Iterator[OutputLine]:
    """Lines as they come, from where a follower stands, until it is over and all was said.

    The follower moves when the next line is asked for, or when its holder says so: whoever is interrupted goes on
    with the same follower and loses nothing. A master that goes away is waited for, and ``told`` is told so.
    """
    pause = LOOK_FIRST_S
    while not follower.finished:
        try:
            yield from follower.rest()
            for said in client.lines(follows(follower.query())):
                pause = LOOK_FIRST_S
                if said:
                    follower.hear(parse_page(said))
                yield from follower.rest()
            follower.stream_ended(is_over())
        except Unavailable as error:
            if told is not None:
                told(error)
            time.sleep(pause)
            pause = min(pause * 2, LOOK_MAX_S)
