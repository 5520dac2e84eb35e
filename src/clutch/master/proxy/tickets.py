"""Tickets: the right of one user to reach one task's ports from a browser, for a while.

A browser cannot send a bearer token when it opens a page, and a page that a task serves must never get hold of one. So
a user asks for a ticket, opens the page with it, and the proxy keeps it in a cookie that only this task's path receives.
A ticket is good for nothing else: the API does not know it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from clutch.wire.errors import NotAuthenticated

COOKIE = "clutch_ticket"
QUERY = "clutch_ticket"
TICKET_S = 12 * 3600.0


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    user: str
    task: str
    expires_at: float


def make(key: bytes, ticket: Ticket) -> str:
    """The ticket as text, safe in a URL and in a cookie."""
    said = msgspec.msgpack.encode(ticket)
    return f"{_text(said)}.{_text(_seal(key, said))}"


def check(key: bytes, text: str, task: str, now: float) -> Ticket:
    """The ticket, if it was made here, is for this task and still good."""
    try:
        ticket = msgspec.msgpack.decode(_bytes(text.partition(".")[0]), type=Ticket)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise _refused(task) from None
    ours = hmac.compare_digest(make(key, ticket).encode(), text.encode())
    if not ours or ticket.task != task or ticket.expires_at <= now:
        raise _refused(task)
    return ticket


def _seal(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, b"clutch ticket\0" + said, hashlib.sha256)


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
