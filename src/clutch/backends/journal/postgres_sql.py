"""What the PostgreSQL journal says to the server. A batch is one statement, whatever is in it.

One statement is one round trip and one transaction: a leader that is paused between two of its own messages never holds
the leader row locked, so a standby never waits for it. Rows and views travel as arrays, one per column.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import astuple

from clutch.backends.journal.shapes import COLUMNS, Changes, Value
from clutch.wire.journal import Row

_ARRAYS: dict[type[Value], str] = {
    str: "text[]",
    int: "bigint[]",
    float: "double precision[]",
    bool: "boolean[]",
    bytes: "bytea[]",
}
_ROW_ARRAYS = ("bigint[]", "bigint[]", "double precision[]", "text[]", "text[]", "bigint[]", "bytea[]", "bigint[]")
_OUTBOX_ARRAYS = ("text[]", "text[]", "double precision[]", "bytea[]")

NOW = "extract(epoch FROM clock_timestamp())::double precision"

LEAD = f"""
UPDATE leader SET term = term + 1, holder = $1, expires_at = {NOW} + $2
WHERE id = 1 AND (holder = '' OR holder = $1 OR expires_at <= {NOW})
RETURNING generation, term, last_index, last_checksum"""

PRESENT = f"SELECT term, holder, expires_at - {NOW} AS left_s FROM leader WHERE id = 1"

RENEW = f"UPDATE leader SET expires_at = {NOW} + $2 WHERE id = 1 AND term = $1 AND holder <> '' RETURNING 1"

RESIGN = "UPDATE leader SET holder = '', expires_at = 0 WHERE id = 1 AND term = $1"

ROWS = """SELECT seq, term, at, cause, kind, version, payload, checksum
FROM journal WHERE seq >= $1 ORDER BY seq LIMIT $2"""

_LED = "led AS (SELECT 1 FROM leader WHERE id = 1 AND term = $1 FOR UPDATE)"

BEGIN_SNAPSHOT = f"""WITH {_LED} SELECT greatest(
    (SELECT coalesce(max(id), 0) FROM snapshots), (SELECT coalesce(max(id), 0) FROM snapshot_pieces)) + 1 FROM led"""

ADD_PIECE = f"WITH {_LED} INSERT INTO snapshot_pieces SELECT $2, $3, $4 FROM led RETURNING 1"

FINISH_SNAPSHOT = f"WITH {_LED} INSERT INTO snapshots SELECT $2, $3, $4, $5 FROM led RETURNING 1"

DROP_SNAPSHOTS = f"""WITH {_LED} DELETE FROM snapshots USING led
WHERE id NOT IN (SELECT id FROM snapshots ORDER BY id DESC LIMIT $2)"""

SWEEP = f"""WITH {_LED} DELETE FROM snapshot_pieces USING led
WHERE NOT EXISTS (SELECT 1 FROM snapshots WHERE snapshots.id = snapshot_pieces.id)"""

FORGET = """
WITH upto AS (SELECT seq, checksum FROM journal WHERE seq = $2),
led AS (UPDATE leader SET base_index = upto.seq, base_checksum = upto.checksum FROM upto
        WHERE id = 1 AND term = $1 RETURNING 1),
old AS (DELETE FROM snapshots USING led WHERE seq < $2),
gone AS (DELETE FROM journal USING led WHERE seq <= $2 RETURNING 1)
SELECT (SELECT count(*) FROM led) AS led, (SELECT count(*) FROM gone) AS gone"""


class _Places:
    """Hands out ``$1``, ``$2``, ... in order."""

    def __init__(self) -> None:
        self.used = 0

    def next(self, kind: str) -> str:
        self.used += 1
        return f"${self.used}::{kind}"

    def unnest(self, kinds: tuple[str, ...]) -> str:
        return f"FROM led, unnest({', '.join(self.next(kind) for kind in kinds)}) AS given"


def append_statement() -> str:
    """Advance the leader row at this term and, only if that was possible, write everything."""
    place = _Places()
    last, checksum = place.next("bigint"), place.next("bigint")
    term, before = place.next("bigint"), place.next("bigint")
    parts = [
        f"""led AS (UPDATE leader SET last_index = {last}, last_checksum = {checksum}
        WHERE id = 1 AND term = {term} AND last_index = {before} RETURNING 1)""",
        f"wrote AS (INSERT INTO journal SELECT given.* {place.unnest(_ROW_ARRAYS)})",
    ]
    for table, columns in COLUMNS.items():
        names = ", ".join(f'"{name}"' for name in columns)
        sets = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name != "key")
        arrays = tuple(_ARRAYS[kind] for kind in columns.values())
        parts.append(
            f'put_{table} AS (INSERT INTO "{table}" ({names}) SELECT given.* {place.unnest(arrays)} '
            f'ON CONFLICT ("key") DO UPDATE SET {sets})'
        )
        parts.append(f'drop_{table} AS (DELETE FROM "{table}" USING led WHERE "key" = ANY({place.next("text[]")}))')
    parts.append(
        f"""put_outbox AS (INSERT INTO outbox (token, kind, due_at, payload)
        SELECT given.* {place.unnest(_OUTBOX_ARRAYS)} ON CONFLICT (token)
        DO UPDATE SET kind = excluded.kind, due_at = excluded.due_at, payload = excluded.payload)"""
    )
    parts.append(f"drop_outbox AS (DELETE FROM outbox USING led WHERE token = ANY({place.next('text[]')}))")
    return "WITH " + ",\n".join(parts) + "\nSELECT count(*) FROM led"


APPEND = append_statement()


def append_arguments(rows: tuple[Row, ...], sums: list[int], changes: Changes) -> list[Any]:
    """The arrays for ``APPEND``, behind the four numbers of the leader row."""
    arguments: list[Any] = _columns([(*astuple(row), kept) for row, kept in zip(rows, sums, strict=True)], 8)
    for table, columns in COLUMNS.items():
        views = changes.put.get(table)
        arguments += _columns([astuple(view) for view in views.values()] if views else [], len(columns))
        arguments.append(changes.gone.get(table, []))
    arguments += _columns([astuple(item) for item in changes.waiting.values()], 4)
    arguments.append(list(changes.delivered))
    return arguments


def _columns(records: list[tuple[Any, ...]], width: int) -> list[list[Any]]:
    if not records:
        return [[] for _ in range(width)]
    return [list(column) for column in zip(*records, strict=True)]
