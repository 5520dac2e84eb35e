"""Reading and filling PostgreSQL's tables on a connection whose transaction the caller holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import astuple

from clutch.backends.journal.postgres_sql import ROWS
from clutch.backends.journal.shapes import COLUMNS, PIECE_BYTES, Tail, nothing_to_start_from, verified, view_from
from clutch.wire.journal import Chunk, OutboxItem, Row, Snapshot

Connection = Any
"""asyncpg's connection, bare or from the pool; asyncpg ships no complete types."""

_CHUNK_ROWS = 1_000


async def read_rows(connection: Connection, after: int, limit: int) -> list[Row]:
    tail = Tail(*await connection.fetchrow("SELECT base_index, base_checksum, last_index FROM leader WHERE id = 1"))
    found = await connection.fetch(ROWS, after, limit + 1)
    return verified(after, limit, tail, [(Row(*record[:7]), record[7]) for record in found])


async def read_snapshot(connection: Connection) -> Snapshot | None:
    for number, index, version, kept in await connection.fetch("SELECT * FROM snapshots ORDER BY id DESC"):
        query = "SELECT payload FROM snapshot_pieces WHERE id = $1 ORDER BY piece"
        pieces = await connection.fetch(query, number)
        snapshot = Snapshot(index, version, b"".join(record[0] for record in pieces))
        if snapshot.checksum() == kept:
            return snapshot
    base = await connection.fetchval("SELECT base_index FROM leader WHERE id = 1")
    if base:
        raise nothing_to_start_from(base)
    return None


async def read_all(connection: Connection) -> AsyncIterator[Chunk]:
    yield Chunk(snapshot=await read_snapshot(connection))
    after = await connection.fetchval("SELECT base_index FROM leader WHERE id = 1")
    while rows := await read_rows(connection, after, _CHUNK_ROWS):
        yield Chunk(rows=tuple(rows))
        after = rows[-1].index
    for table, columns in COLUMNS.items():
        names = ", ".join(f'"{name}"' for name in columns)
        cursor = await connection.cursor(f'SELECT {names} FROM "{table}" ORDER BY "key"')
        while found := await cursor.fetch(_CHUNK_ROWS):
            yield Chunk(views=tuple(view_from(table, dict(record)) for record in found))
    cursor = await connection.cursor("SELECT token, kind, due_at, payload FROM outbox ORDER BY token")
    while found := await cursor.fetch(_CHUNK_ROWS):
        yield Chunk(outbox=tuple(OutboxItem(*record) for record in found))


async def write_chunk(connection: Connection, chunk: Chunk, sums: list[int]) -> None:
    if (snapshot := chunk.snapshot) is not None:
        head = (1, snapshot.index, snapshot.version, snapshot.checksum())
        await connection.execute("INSERT INTO snapshots VALUES ($1, $2, $3, $4)", *head)
        for piece, start in enumerate(range(0, len(snapshot.payload), PIECE_BYTES)):
            part = snapshot.payload[start : start + PIECE_BYTES]
            await connection.execute("INSERT INTO snapshot_pieces VALUES (1, $1, $2)", piece, part)
    records = [(*astuple(row), kept) for row, kept in zip(chunk.rows, sums, strict=True)]
    await connection.copy_records_to_table("journal", records=records)
    by_table: dict[str, list[tuple[Any, ...]]] = {}
    for view in chunk.views:
        by_table.setdefault(view.table, []).append(astuple(view))
    for table, views in by_table.items():
        await connection.copy_records_to_table(table, records=views, columns=list(COLUMNS[table]))
    await connection.copy_records_to_table("outbox", records=[astuple(item) for item in chunk.outbox])
