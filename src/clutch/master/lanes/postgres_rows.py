"""A lane's rows in PostgreSQL: what a commit changes, in one statement, so that it costs one round trip and one sync.

The statement first locks the states that it moves, and does nothing at all unless each is at the version before the one
given. Parts are added after others were dropped, since a packed part takes the place of the first it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic

from clutch.backends.journal.postgres_session import Connection
from clutch.master.lanes.rows import LaneChange, LaneRows, Part, State


class PostgresRows(Generic[State, Part]):
    """``types`` are those of all columns."""

    def __init__(self, rows: LaneRows[State, Part], types: Mapping[str, str]) -> None:
        self._rows = rows
        moving, states = rows.moving_columns, (*rows.key_columns, *rows.moving_columns)
        moves = ["bigint", *(types[name] for name in moving)]
        drops = ["bigint", types[rows.place]]
        puts = ["bigint", *(types[name] for name in rows.part_columns)]
        self._change = f"""WITH
    given AS (SELECT * FROM {_table(1, moves)} AS n (id, {", ".join(moving)})),
    held AS (SELECT s.id FROM {rows.states} s JOIN given n ON s.id = n.id AND s.version = n.version - 1
        FOR UPDATE OF s),
    ready AS (SELECT 1 WHERE (SELECT count(*) FROM held) = (SELECT count(*) FROM given)),
    moved AS (UPDATE {rows.states} s SET {", ".join(f"{name} = n.{name}" for name in moving)}
        FROM given n, ready WHERE s.id = n.id),
    dropped AS (DELETE FROM {rows.parts} p USING ready, {_table(1 + len(moves), drops)} AS d (owner, place)
        WHERE p.{rows.owner} = d.owner AND p.{rows.place} = d.place RETURNING 1),
    put AS (INSERT INTO {rows.parts} ({", ".join((rows.owner, *rows.part_columns))}) SELECT n.* FROM ready,
        {_table(1 + len(moves) + len(drops), puts)} AS n WHERE (SELECT count(*) FROM dropped) >= 0)
    SELECT id FROM held"""
        self._add = f"""INSERT INTO {rows.states} ({", ".join(states)}) SELECT * FROM
    {_table(1, [types[name] for name in states])} ON CONFLICT DO NOTHING RETURNING id, {", ".join(rows.key_columns)}"""
        self._widths = len(moves), len(drops), len(puts)

    async def write(self, connection: Connection, changes: Sequence[LaneChange[State, Part]]) -> list[int]:
        """Commit all of it; the id of each changed state. ``Stale`` when one is not at the version before the one
        given, and then nothing was changed."""
        if all(change.state.id for change in changes):
            return await self._write(connection, changes, [change.state.id for change in changes])
        for statement in (self._add, self._change):
            await connection.prepare(statement)  # now: a writer that stops in the transaction leaves no half question
        async with connection.transaction():
            added = await self._add_states(connection, [change.state for change in changes if not change.state.id])
            return await self._write(connection, changes, [change.state.id or next(added) for change in changes])

    async def _write(
        self, connection: Connection, changes: Sequence[LaneChange[State, Part]], ids: list[int]
    ) -> list[int]:
        rows = self._rows
        states = [change.state for change in changes if change.state.id]
        each = list(zip(ids, changes, strict=True))
        moves = [(state.id, *rows.moving_of(state)) for state in states]
        drops = [(owner, place) for owner, change in each for place in change.drops]
        puts = [(owner, *rows.values_of(part)) for owner, change in each for part in change.puts]
        tables = zip((moves, drops, puts), self._widths, strict=True)
        found = await connection.fetch(self._change, *(column for table in tables for column in _columns(*table)))
        held = {row["id"] for row in found}
        for state in states:
            if state.id not in held:
                raise rows.moved(state)
        return ids

    async def _add_states(self, connection: Connection, states: Sequence[State]) -> Iterator[int]:
        rows = self._rows
        keys = [rows.key_of(state) for state in states]
        values = [(*key, *rows.moving_of(state)) for key, state in zip(keys, states, strict=True)]
        found = await connection.fetch(self._add, *_columns(values, len(values[0])))
        ids = {tuple(row)[1:]: row["id"] for row in found}
        for key, state in zip(keys, states, strict=True):
            if key not in ids:
                raise rows.moved(state)
        return iter([ids[key] for key in keys])


def _table(first: int, types: Sequence[str]) -> str:
    """Rows that come as one array for each column, numbered from ``first`` on."""
    return f"unnest({', '.join(f'${n}::{name}[]' for n, name in enumerate(types, first))})"


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
