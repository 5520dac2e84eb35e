"""What every way of keeping a journal checks before it writes, and how a view's fields become columns.

Pure: no SQL, no I/O. The memory journal refuses exactly what the SQL ones refuse, with the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from clutch.backends.journal.base import Has, Where
from clutch.wire.errors import BadRequest, BrokenInvariant, Corrupt, NotFound
from clutch.wire.journal import Batch, Gone, Leadership, OutboxItem, Row, Snapshot
from clutch.wire.views import VIEWS, View

MAX_PAGE = 10_000
PIECE_BYTES = 1 << 20
"""Snapshots are written in pieces of this size, so that appends wait for one piece and not for the whole."""
KEPT_SNAPSHOTS = 2
_INT_LIMIT = 2**63

Value = str | int | float | bool | bytes
_COLUMN_TYPES: tuple[type[Value], ...] = (str, int, float, bool, bytes)


def _columns(view: type[View]) -> dict[str, type[Value]]:
    columns: dict[str, type[Value]] = {}
    for field in msgspec.structs.fields(view):
        kind = field.type
        while hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        if kind not in _COLUMN_TYPES:
            raise TypeError(f"{view.__name__}.{field.name}: a view's field is str, int, float, bool or bytes")
        columns[field.name] = kind
    if columns.get("key") is not str:
        raise TypeError(f"{view.__name__} needs a field key: str")
    return columns


TABLES: dict[str, type[View]] = {view.table: view for view in VIEWS}
COLUMNS: dict[str, dict[str, type[Value]]] = {view.table: _columns(view) for view in VIEWS}
"""Column name and type, for each view table, in the order of the struct's fields."""


def default_of(kind: type[Value]) -> Value:
    """What a column holds in rows written before the view had this field."""
    return kind()


def view_from(table: str, values: dict[str, Any]) -> View:
    """A view from stored values; fields it has gained since are at their default."""
    columns = COLUMNS[table]
    full: dict[str, Any] = {name: kind(values[name]) if name in values else kind() for name, kind in columns.items()}
    return TABLES[table](**full)


_NAMES = {table: tuple(columns) for table, columns in COLUMNS.items()}
_FLAGS = {table: tuple(n for n, kind in columns.items() if kind is bool) for table, columns in COLUMNS.items()}
"""Columns that SQLite gives back as numbers."""


def view_of(table: str, row: Sequence[Any]) -> View:
    """A view from a whole row, its columns in the order of the struct's fields."""
    values = dict(zip(_NAMES[table], row, strict=True))
    for name in _FLAGS[table]:
        values[name] = bool(values[name])
    return TABLES[table](**values)


def columns_of(table: str) -> dict[str, type[Value]]:
    found = COLUMNS.get(table)
    if found is None:
        raise BadRequest(f"there is no view {table!r}", object=table, next_step=f"Known views: {', '.join(COLUMNS)}.")
    return found


def check_question(table: str, where: Where, order_by: str, limit: int) -> tuple[str, bool]:
    """The column to order by and whether descending; ``BadRequest`` for anything that is not a known column."""
    columns = columns_of(table)
    column = order_by.removeprefix("-")
    for name in (*where, column):
        if name not in columns:
            step = f"Known columns: {', '.join(columns)}."
            raise BadRequest(f"no column {name!r}", object=table, next_step=step, path=name)
    for name, wanted in where.items():
        kind = columns[name]
        if isinstance(wanted, Has):
            wanted = (wanted.text,)
            kind = str if kind is str else bytes  # only texts have texts in them
        for value in wanted if isinstance(wanted, tuple) else (wanted,):
            fits = isinstance(value, (int, float)) if kind in (int, float, bool) else isinstance(value, kind)
            if not fits:
                raise BadRequest(f"expected {kind.__name__}, got {value!r}", object=table, path=name)
            _check_value(value, table, name)
    if not 1 <= limit <= MAX_PAGE:
        raise BadRequest(f"a page has 1 to {MAX_PAGE} rows, got {limit}", object=table, path="limit")
    return column, order_by.startswith("-")


def no_such_page(table: str, after: str) -> NotFound:
    return NotFound(
        "the row behind which the page would start is gone",
        object=f"{table}/{after}",
        next_step="Start again from the first page.",
    )


def _check_value(value: object, subject: str, path: str) -> None:
    """Refuse what some store would change or choke on: a NUL or lone surrogate, an int over 64 bits, not-a-number."""
    if isinstance(value, str):
        if "\0" in value:
            raise BadRequest("text may not hold a NUL character", object=subject, path=path)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise BadRequest("text is not valid Unicode", object=subject, path=path) from None
    elif isinstance(value, float):
        if value != value:
            raise BadRequest("a number is not a number (NaN)", object=subject, path=path)
    elif isinstance(value, int) and not -_INT_LIMIT <= value < _INT_LIMIT:
        raise BadRequest("an integer does not fit 64 bits", object=subject, path=path)


def _check_row(row: Row, index: int, term: int) -> None:
    if row.index != index or row.term != term:
        raise BrokenInvariant(
            f"row {row.index} of term {row.term} was appended where row {index} of term {term} belongs",
            object="journal",
            next_step="This is a bug in the caller; nothing was written.",
        )
    subject = f"row {row.index}"
    _check_value(row.at, subject, "at")
    _check_value(row.cause, subject, "cause")
    _check_value(row.kind, subject, "kind")
    _check_value(row.version, subject, "version")


def check_batch(batch: Batch, lead: Leadership, last_index: int) -> None:
    """Refuse, before anything is written, rows out of order and values that some store could not give back."""
    for place, row in enumerate(batch.rows, last_index + 1):
        _check_row(row, place, lead.term)
    for item in batch.views:
        if isinstance(item, Gone):
            columns_of(item.table)
            continue
        subject = f"{item.table}/{item.key}"
        for name in COLUMNS[item.table]:
            _check_value(getattr(item, name), subject, name)
    for wait in batch.outbox:
        for name in ("token", "kind", "due_at"):
            _check_value(getattr(wait, name), f"outbox {wait.token!r}", name)


def chain(rows: tuple[Row, ...], previous: int) -> list[int]:
    """The checksum to keep beside each row."""
    sums = []
    for row in rows:
        previous = row.checksum(previous)
        sums.append(previous)
    return sums


class Changes(msgspec.Struct, frozen=True):
    """A batch's changes with one word per key: the last one said."""

    put: dict[str, dict[str, View]]
    gone: dict[str, list[str]]
    waiting: dict[str, OutboxItem]
    delivered: tuple[str, ...]


def changes_of(batch: Batch) -> Changes:
    last: dict[tuple[str, str], View | Gone] = {(item.table, item.key): item for item in batch.views}
    put: dict[str, dict[str, View]] = {}
    gone: dict[str, list[str]] = {}
    for (table, key), item in last.items():
        if isinstance(item, Gone):
            gone.setdefault(table, []).append(key)
        else:
            put.setdefault(table, {})[key] = item
    done = set(batch.delivered)
    waiting = {item.token: item for item in batch.outbox if item.token not in done}
    return Changes(put, gone, waiting, batch.delivered)


def check_snapshot(snapshot: Snapshot, last_index: int) -> None:
    if not 0 <= snapshot.index <= last_index:
        raise BrokenInvariant(
            f"a snapshot at row {snapshot.index} of a journal that ends at row {last_index}",
            object="journal",
            next_step="This is a bug in the caller; nothing was written.",
        )


def corrupt_row(index: int, what: str) -> Corrupt:
    return Corrupt(
        f"row {index} {what}",
        object=f"journal row {index}",
        next_step="Stop here and restore the last backup (clutch restore); nothing was changed.",
    )


def forgotten(after: int, base: int) -> NotFound:
    return NotFound(
        f"rows {after + 1} to {base} were forgotten behind a snapshot",
        object="journal",
        next_step="Load the snapshot and read behind it.",
    )


def nothing_to_start_from(base: int) -> Corrupt:
    return Corrupt(
        f"no snapshot passes its checksum and the rows up to {base} are forgotten",
        object="journal snapshot",
        next_step="Restore the last backup into an empty journal (clutch restore).",
    )


class Tail(msgspec.Struct, frozen=True):
    """What a store knows of its own ends: the anchor of the chain before its first row, and its last row."""

    base_index: int
    base_checksum: int
    last_index: int


def verified(after: int, limit: int, tail: Tail, stored: list[tuple[Row, int]]) -> list[Row]:
    """The rows behind ``after``, from the stored rows at and behind it (so the first may be its anchor).

    ``Corrupt`` when a row fails its checksum, is missing, or the end is; ``NotFound`` when they were forgotten.
    """
    if after < tail.base_index:
        raise forgotten(after, tail.base_index)
    if after == tail.base_index:
        previous = tail.base_checksum
        stored = stored[1:] if stored and stored[0][0].index == after else stored
    elif after > tail.last_index:
        return []
    elif not stored or stored[0][0].index != after:
        raise corrupt_row(after, "is missing")
    else:
        previous, stored = stored[0][1], stored[1:]
    rows: list[Row] = []
    expected = after
    for row, kept in stored[:limit]:
        expected += 1
        if row.index != expected:
            raise corrupt_row(expected, "is missing")
        previous = row.checksum(previous)
        if previous != kept:
            raise corrupt_row(expected, "fails its checksum")
        rows.append(row)
    if len(rows) < limit and expected < tail.last_index:
        raise corrupt_row(expected + 1, "is missing")
    return rows


def check_origin(last_index: int, checksum: int, promised_index: int, promised_checksum: int) -> None:
    if (last_index, checksum) != (promised_index, promised_checksum):
        raise Corrupt(
            f"the copy ends at row {last_index}, its origin promised row {promised_index}, or the chain differs",
            object="journal copy",
            next_step="Take another backup; nothing was changed.",
        )
