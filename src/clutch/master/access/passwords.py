"""Passwords as hashes: scrypt, with its cost written beside each, so that the cost can be raised later."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from clutch.wire.errors import BadRequest

LENGTH_MIN, LENGTH_MAX = 8, 1024
Cost = tuple[int, int, int]
"""scrypt's log2(n), r and p."""
COST: Cost = (15, 8, 3)
"""32 MiB and about 0.2 s a guess, as OWASP recommends."""
_LOG_N_MAX = 20
_MEMORY_BYTES = 2**30


def check_password(password: str) -> None:
    if not LENGTH_MIN <= len(password) <= LENGTH_MAX:
        raise BadRequest(
            f"a password has {LENGTH_MIN} to {LENGTH_MAX} characters",
            object="password",
            path="password",
            next_step="Choose another one.",
        )


def _derived(password: str, salt: bytes, cost: Cost) -> bytes:
    log_n, r, p = cost
    return hashlib.scrypt(password.encode(), salt=salt, n=2**log_n, r=r, p=p, maxmem=_MEMORY_BYTES, dklen=32)


def hashed(password: str, cost: Cost = COST) -> str:
    """What may be stored instead of a password. Costly: call it outside the event loop."""
    salt = secrets.token_bytes(16)
    key = _derived(password, salt, cost)
    words = ",".join(map(str, cost))
    return "$".join(("scrypt", words, *(base64.b64encode(part).decode() for part in (salt, key))))


def matches(password: str, stored: str, cost: Cost = COST) -> bool:
    """Whether this is the password. As slow where there is none or no such user (``cost``: what a hash made today
    takes), and for an overlong one. Costly, as ``hashed``."""
    known = stored.startswith("scrypt$")
    salt, key = b"no such password", bytes(32)
    if known:
        _, words, salt_text, key_text = stored.split("$")
        log_n, r, p = (int(part) for part in words.split(","))
        cost = (min(log_n, _LOG_N_MAX), r, p)
        salt, key = base64.b64decode(salt_text), base64.b64decode(key_text)
    made = _derived(password[:LENGTH_MAX], salt, cost)
    return hmac.compare_digest(made, key) and known and len(password) <= LENGTH_MAX
