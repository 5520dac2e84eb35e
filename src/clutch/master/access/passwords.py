"""Passwords as hashes: scrypt, with its cost written beside each, so that the cost can be raised later."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from clutch.wire.errors import BadRequest

LENGTH_MIN, LENGTH_MAX = 8, 1024
_LOG_N, _R, _P = 15, 8, 3
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


def _derived(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    log_n, r, p = cost
    return hashlib.scrypt(password.encode(), salt=salt, n=2**log_n, r=r, p=p, maxmem=_MEMORY_BYTES, dklen=32)


def hashed(password: str) -> str:
    """What may be stored instead of a password. Costly: call it outside the event loop."""
    salt = secrets.token_bytes(16)
    key = _derived(password, salt, (_LOG_N, _R, _P))
    return "$".join(("scrypt", f"{_LOG_N},{_R},{_P}", *(base64.b64encode(part).decode() for part in (salt, key))))


DUMMY = "scrypt$15,8,3$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
"""Compared against when there is no such user or no password, so that the answer takes as long."""


def matches(password: str, stored: str) -> bool:
    """Whether this is the password; as slow for a wrong, a missing and an overlong one. Costly, as ``hashed``."""
    known = stored.startswith("scrypt$")
    _, cost, salt, key = (stored if known else DUMMY).split("$")
    log_n, r, p = (int(part) for part in cost.split(","))
    made = _derived(password[:LENGTH_MAX], base64.b64decode(salt), (min(log_n, _LOG_N_MAX), r, p))
    return hmac.compare_digest(made, base64.b64decode(key)) and known and len(password) <= LENGTH_MAX
