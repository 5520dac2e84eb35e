"""For those who receive webhooks: whether a message is really from the cluster, and what it says.

::

    from clutch.sdk import webhooks

    message = webhooks.read(secret, request.headers, request.body)   # NotAuthenticated unless it is genuine
    if message.id not in seen: ...

Give the body's bytes as they came: the same JSON written again has another signature.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from clutch.wire.errors import BadRequest, NotAuthenticated
from clutch.wire.library import (
    DELIVERY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    WebhookMessage,
    is_signed,
)

MAX_AGE_S = 300.0


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, max_age_s: float = MAX_AGE_S, now: float | None = None
) -> str:
    """The id of the message, the same at every try of it. ``NotAuthenticated`` unless whoever sent it has the secret
    and did so less than ``max_age_s`` ago, by our clock; a clock may be that much behind, too."""
    by_name = {str(name).lower(): str(value) for name, value in headers.items()}
    timestamp = by_name.get(TIMESTAMP_HEADER.lower(), "")
    signature = by_name.get(SIGNATURE_HEADER.lower(), "")
    if not timestamp or not signature:
        raise _refused(f"it has no {TIMESTAMP_HEADER} or no {SIGNATURE_HEADER}")
    if not is_signed(secret, timestamp, body, signature):
        raise _refused("its signature is not of this secret, or its body was changed")
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 15:
        raise _refused("its timestamp is no time")
    if abs((time.time() if now is None else now) - int(timestamp)) > max_age_s:
        raise _refused(f"it is older than {max_age_s:g} s, or a clock is wrong")
    return by_name.get(DELIVERY_HEADER.lower(), "")


def read(
    secret: str, headers: Mapping[str, str], body: bytes, *, max_age_s: float = MAX_AGE_S, now: float | None = None
) -> WebhookMessage:
    """What a genuine message says; see ``verify``."""
    verify(secret, headers, body, max_age_s=max_age_s, now=now)
    try:
        return msgspec.json.decode(body, type=WebhookMessage)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(
            f"it is no message of a webhook in the format 'plain': {error}",
            object="webhook",
            next_step="Is the webhook's format 'slack'?",
        ) from None


def _refused(cause: str) -> NotAuthenticated:
    return NotAuthenticated(cause, object="webhook", next_step="Compare the secret with that of the webhook.")
