"""What is said of a checkpoint, as it is kept: texts by name.

What is not a text is written as JSON, and so is a text that would else be taken for JSON. ``meant`` gives back what was
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest


def words(metadata: Mapping[str, Any] | None, subject: str) -> dict[str, str]:
    """Metadata as it is kept. ``BadRequest`` about ``subject`` names what cannot be."""
    found: dict[str, str] = {}
    for key, value in (metadata or {}).items():
        if type(key) is not str or not key:
            raise BadRequest(f"a key of its metadata is a text, not {key!r:.60}", object=subject)
        try:
            plain = isinstance(value, str) and meant(value) == value
            found[key] = value if plain else msgspec.json.encode(value).decode()
        except (TypeError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise BadRequest(f"its metadata {key!r:.60} cannot be written: {error}", object=subject) from error
    return found


def meant(word: str) -> Any:
    """What was written: a number is a number, a list is a list."""
    try:
        return msgspec.json.decode(word)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return word
