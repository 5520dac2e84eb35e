"""What may be put into the library: how long texts are, what a label is, and how such things are stored. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from clutch.master.access.rules import check_name, check_text
from clutch.wire.errors import BadRequest, NotFound, TooLarge
from clutch.wire.library import LATEST, number_of

NOTES_MAX = 64_000
LABELS_MAX = 32
LABEL_MAX = 64
METRICS_MAX = 1000
JSON_MAX_BYTES = 256 * 2**10
SOURCE_MAX = 256 * 2**10


def check_labels(labels: Sequence[str], path: str = "labels") -> str:
    """Labels as they are stored: ``,one,two,``, in order, each once."""
    for label in labels:
        check_text(label, path, LABEL_MAX)
        if not label.strip() or "," in label or not label.isprintable():
            raise BadRequest(
                f"{label!r} is not a label", object=path, path=path, next_step="Use words without commas and breaks."
            )
    if len(labels) > LABELS_MAX:
        raise BadRequest(f"there are more than {LABELS_MAX}", object=path, path=path, next_step="Use fewer.")
    return joined(labels)


def joined(words: Iterable[str]) -> str:
    kept = list(dict.fromkeys(words))
    return f",{','.join(kept)}," if kept else ""


def parted(text: str) -> tuple[str, ...]:
    return tuple(text.strip(",").split(",")) if text else ()


def check_json(value: Mapping[str, Any], path: str) -> str:
    """A JSON object as it is stored."""
    try:
        text = msgspec.json.encode(value, order="deterministic").decode()
    except (UnicodeError, RecursionError, TypeError) as error:
        raise BadRequest(f"it is no JSON: {error}", object=path, path=path, next_step="Leave that out.") from None
    if len(text) > JSON_MAX_BYTES:
        raise TooLarge(
            f"it is larger than {JSON_MAX_BYTES} bytes", object=path, path=path, next_step="Keep large things in files."
        )
    return text


def check_metrics(metrics: Mapping[str, float]) -> str:
    for name, value in metrics.items():
        check_text(name, "metrics", 200)
        if not name or not math.isfinite(value):
            raise BadRequest(
                f"{name!r} is {value!r}", object="metrics", path="metrics", next_step="Give names and finite numbers."
            )
    if len(metrics) > METRICS_MAX:
        raise BadRequest(f"there are more than {METRICS_MAX}", object="metrics", path="metrics")
    return check_json(metrics, "metrics")


def check_alias(alias: str) -> str:
    check_name(alias, "alias")
    if alias == LATEST or alias.isdigit():
        raise BadRequest(
            f"{alias!r} already means something: numbers are versions, {LATEST!r} is the newest",
            object="alias",
            path="alias",
            next_step="Choose a word, as 'best' or 'prod'.",
        )
    return alias


def check_version(version: str) -> str:
    """A version as it is asked for: a number, an alias, or ``latest``."""
    if number_of(version) is None:
        check_name(version, "version")
    return version


def prefix_end(prefix: str) -> str:
    """A text behind all names that begin so."""
    return prefix + "\U0010ffff"


def the_one(prefix: str, found: Sequence[str], what: str) -> str:
    """The name that was meant: it itself, or the only one that begins so."""
    if prefix in found:
        return prefix
    if not found:
        kind = what.split()[0]
        step = f"'clutch {kind} list' shows those there are."
        raise NotFound(f"there is no such {kind}, or you may not see it", object=what, next_step=step)
    if len(found) > 1:
        shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise BadRequest(f"several begin so: {shown}", object=what, next_step="Say more of its name.")
    return found[0]
