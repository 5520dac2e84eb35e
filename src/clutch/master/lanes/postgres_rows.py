"""A lane's rows in PostgreSQL: what a commit changes, in as few statements as it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic

from clutch.master.lanes.connections import Connection
from clutch.master.lanes.rows import LaneChange, LaneRows, Part, State


class PostgresRows(Generic[State, Part]):
    """Writes in a transaction that the caller began. ``types`` are those of the moving columns; ``drop`` removes parts
    by two arrays, of owners and of places."""

    def __init__(self, rows: LaneRows[State, Part], types: Mapping[str, str], drop: str) -> None:
        self._rows = rows
        self._drop = drop
        key, moving = ", ".join(rows.key_columns), rows.moving_columns
        self._move = f"""UPDATE {rows.states} s SET {", ".join(f"{name} = n.{name}" for name in moving)}
    FROM unnest($1::bigint[], {", ".join(f"${n}::{types[name]}[]" for n, name in enumerate(moving, 2))})
    AS n (id, {", ".join(moving)}) WHERE s.id = n.id AND s.version = n.version - 1 RETURNING s.id"""
        self._add = f"""INSERT INTO {rows.states} ({key}, {", ".join(moving)})
    VALUES ({", ".join(f"${n}" for n in range(1, len(rows.key_columns) + len(moving) + 1))})
    ON CONFLICT ({key}) DO NOTHING RETURNING id"""

    async def write(self, connection: Connection, changes: Sequence[LaneChange[State, Part]]) -> list[int]:
        """The id of each changed state. ``Stale`` when one is not at the version before the one given."""
        rows = self._rows
        await self._move_states(connection, [change.state for change in changes if change.state.id])
        ids = [change.state.id or await self._add_state(connection, change.state) for change in changes]
        parts = list(zip(ids, changes, strict=True))
        drops = [(owner, place) for owner, change in parts for place in change.drops]
        if drops:
            await connection.execute(self._drop, [owner for owner, _ in drops], [place for _, place in drops])
        puts = [(owner, *rows.values_of(part)) for owner, change in parts for part in change.puts]
        if puts:
            columns = (rows.owner, *rows.part_columns)
            await connection.copy_records_to_table(rows.parts, records=puts, columns=columns)
        return ids

    async def _move_states(self, connection: Connection, states: Sequence[State]) -> None:
        if not states:
            return
        moving = [list(values) for values in zip(*map(self._rows.moving_of, states), strict=True)]
        found = await connection.fetch(self._move, [state.id for state in states], *moving)
        reached = {row["id"] for row in found}
        for state in states:
            if state.id not in reached:
                raise self._rows.moved(state)

    async def _add_state(self, connection: Connection, state: State) -> int:
        values = (*self._rows.key_of(state), *self._rows.moving_of(state))
        owner: int | None = await connection.fetchval(self._add, *values)
        if owner is None:
            raise self._rows.moved(state)
        return owner
