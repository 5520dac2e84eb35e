"""Tickets: the right of one user to reach one task's ports from a browser, for a while.

A browser cannot send a bearer token when it opens a page, and a page that a task serves must never get hold of one. So
a user asks for a ticket and opens the page with it; the proxy keeps it in a cookie that only this task's path receives.
A ticket is good for nothing else: the API does not know it.
"""

from __future__ import annotations

import base64
import binascii
from typing import Protocol

import msgspec

from clutch.wire.errors import NotAuthenticated

COOKIE = "clutch_ticket"
QUERY = "clutch_ticket"
PURPOSE = b"clutch ticket\0"
TICKET_S = 12 * 3600.0


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    user: str
    task: str
    expires_at: float


class Keys(Protocol):
    """What signs: the master's keys."""

    def sign(self, message: bytes) -> bytes: ...

    def signed(self, message: bytes, signature: bytes) -> bool: ...


def make(keys: Keys, ticket: Ticket) -> str:
    """The ticket as text, safe in a URL and in a cookie."""
    said = msgspec.msgpack.encode(ticket)
    return f"{_text(said)}.{_text(keys.sign(PURPOSE + said))}"


def check(keys: Keys, text: str, task: str, now: float) -> Ticket:
    """The ticket, if it was made here, is for this task and still good."""
    try:
        said, seal = (_bytes(part) for part in text.split("."))
        ticket = msgspec.msgpack.decode(said, type=Ticket)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise _refused(task) from None
    one_spelling = text == f"{_text(said)}.{_text(seal)}"
    if not one_spelling or not keys.signed(PURPOSE + said, seal) or ticket.task != task or ticket.expires_at <= now:
        raise _refused(task)
    return ticket


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))


def _refused(task: str) -> NotAuthenticated:
    return NotAuthenticated(
        "this page needs a ticket, and none came or it is no longer good",
        object=f"task {task}",
        next_step=f"Run 'clutch open {task}' for a new address.",
    )
