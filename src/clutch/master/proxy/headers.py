"""What of a request and its answer crosses the proxy. Pure.

Hop-by-hop headers stay on their side. The caller's own credentials never reach the task. Addresses in the answer that
point at the task's root are moved under the path where the proxy shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from clutch.master.proxy.tickets import COOKIE, QUERY

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"upgrade")
)
OURS = frozenset((b"authorization", b"host", b"cookie", b"content-length", b"transfer-encoding"))
HANDSHAKE = b"sec-websocket-"


def to_task(headers: Iterable[tuple[bytes, bytes]], prefix: str, host: str) -> Headers:
    """The headers a task sees, whatever the method; framing is added by who writes the body."""
    kept: Headers = [(b"host", host.encode("latin-1", "replace"))]
    forwarded_host = b""
    for name, value in headers:
        lower = name.lower()
        if lower == b"host":
            forwarded_host = value
        if lower == b"cookie":
            cookies = _other_cookies(value)
            if cookies:
                kept.append((b"cookie", cookies))
        if lower in OURS or lower in HOP_BY_HOP or lower.startswith((HANDSHAKE, b"x-forwarded-")):
            continue
        kept.append((lower, value))
    kept += [(b"x-forwarded-prefix", prefix.encode()), (b"x-forwarded-host", forwarded_host)]
    return kept


def from_task(headers: Iterable[tuple[bytes, bytes]], prefix: str) -> Headers:
    """The headers a caller sees. A task may not set cookies outside its own path, nor the proxy's own."""
    kept: Headers = []
    for name, value in headers:
        lower = name.lower()
        if lower in HOP_BY_HOP or lower == b"transfer-encoding":
            continue
        if lower == b"location":
            value = _moved(value, prefix)
        if lower == b"set-cookie":
            moved = _confined(value, prefix)
            if moved is None:
                continue
            value = moved
        kept.append((lower, value))
    return kept


def without_ticket(query: bytes) -> bytes:
    """The query string without the ticket that opened the page."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    if not any(name == QUERY for name, _ in pairs):
        return query
    kept = [(name, value) for name, value in pairs if name != QUERY]
    return urlencode(kept, encoding="latin-1").encode("ascii")


def ticket_in(query: bytes) -> str:
    return next((v for n, v in parse_qsl(query.decode("latin-1")) if n == QUERY), "")


def cookie_in(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The ticket a browser brings back; empty when none."""
    for name, value in headers:
        if name.lower() == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, text = part.strip().partition("=")
                if key == COOKIE:
                    return text
    return ""


def bearer_in(headers: Iterable[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name.lower() == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].decode("latin-1").strip()
    return ""


def _other_cookies(value: bytes) -> bytes:
    parts = (part.strip() for part in value.split(b";"))
    return b"; ".join(p for p in parts if p and not p.startswith(COOKIE.encode() + b"="))


def _moved(location: bytes, prefix: str) -> bytes:
    if location.startswith(b"/") and not location.startswith(b"//"):
        return prefix.encode() + location
    return location


def _confined(value: bytes, prefix: str) -> bytes | None:
    """The cookie with its path moved under the prefix and without a domain; None when it is ours or unreadable."""
    name = value.partition(b"=")[0].strip()
    if name == COOKIE.encode():
        return None
    try:
        cookie = SimpleCookie(value.decode("latin-1"))
    except CookieError:
        return None
    for morsel in cookie.values():
        morsel["path"] = prefix + (morsel["path"] or "/")
        morsel["domain"] = ""
        return morsel.OutputString().encode("latin-1")
    return None
