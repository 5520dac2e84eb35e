"""Which keys and ranges are accepted, everywhere alike."""

from __future__ import annotations

import unicodedata

from clutch.backends.blobs.base import WHOLE_BYTES_MAX
from clutch.wire.errors import BadRequest, TooLarge

KEY_BYTES_MAX = 512
SEGMENT_BYTES_MAX = 200
RESERVED = ".clutch"
"""The folder at the top of every store that is ours."""

_HINT = (
    f"A key is segments joined by '/', at most {KEY_BYTES_MAX} bytes of UTF-8 in all and {SEGMENT_BYTES_MAX} each; "
    "no empty segment, '.', '..', backslash or control character."
)


def _refusal(key: str) -> str:
    """Why this is no key, or nothing."""
    if not key:
        return "the key is empty"
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in key):
        return "the key contains a control character, a line separator or half of a surrogate pair"
    if "\\" in key:
        return "the key contains a backslash"
    if not unicodedata.is_normalized("NFC", key):
        return "the key is not in Unicode's composed form (NFC), so it might look like another"
    if len(key.encode()) > KEY_BYTES_MAX:
        return f"the key has {len(key.encode())} bytes"
    segments = key.split("/")
    for segment in segments:
        if segment in ("", ".", ".."):
            return f"the key has the segment {segment!r}"
        if len(segment.encode()) > SEGMENT_BYTES_MAX:
            return f"a segment of the key has {len(segment.encode())} bytes"
    if segments[0] == RESERVED:
        return f"{RESERVED} is reserved"
    return ""


def is_key(key: str) -> bool:
    return not _refusal(key)


def check_key(key: str) -> None:
    if refusal := _refusal(key):
        raise BadRequest(refusal, object=f"blob {key[:80]!a}", next_step=_HINT)


def check_prefix(prefix: str) -> str:
    """The folder without its last slash; empty for everything."""
    folder = prefix.removesuffix("/")
    if folder:
        check_key(folder)
    elif prefix:
        raise BadRequest("a prefix does not start with '/'", object=f"prefix {prefix!r}", next_step=_HINT)
    return folder


def check_range(key: str, start: int, stop: int | None) -> None:
    if start < 0 or (stop is not None and stop < start):
        raise BadRequest(
            f"there are no bytes from {start} to {stop}", object=f"blob {key}", next_step="Give 0 <= start <= stop."
        )


def clamp_range(key: str, start: int, stop: int | None, size: int) -> tuple[int, int]:
    """The range within a blob of this size."""
    end = size if stop is None else min(stop, size)
    if start > size:
        raise BadRequest(
            f"it has {size} bytes, none from {start}", object=f"blob {key}", next_step="Ask stat for its size."
        )
    if end - start > WHOLE_BYTES_MAX:
        raise TooLarge(
            f"{end - start} bytes at once, at most {WHOLE_BYTES_MAX}",
            object=f"blob {key}",
            next_step="Use get_file, or ask for ranges.",
        )
    return start, end
