"""How our connections to PostgreSQL behave: named, never waiting for ever, and ended by the server when who opened them
has gone, so that a successor is not kept from their locks.

Two clocks do that. A master that is stopped in the middle of a transaction still answers the network: the server ends
the transaction when nothing is asked in it. One that is cut off may have left half a question behind, for whose rest
the server would wait without that clock: the server asks the network whether anybody is there.
"""

from __future__ import annotations

from typing import Any

import asyncpg

CONNECT_S = 10.0
COMMAND_S = 60.0
Connection = Any

_ENDS_WITHOUT_US = {
    "idle_in_transaction_session_timeout": "3s",
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "4000",
}


async def connect_writer(url: str, name: str) -> Connection:
    """A connection whose commits are on the platter when they return, whatever the server's default is."""
    settings = {"application_name": f"clutch {name}", "lock_timeout": "10s", **_ENDS_WITHOUT_US}
    connection = await asyncpg.connect(url, timeout=CONNECT_S, command_timeout=COMMAND_S, server_settings=settings)
    weak = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting($1) IN ('off', 'local')"
    await connection.execute(weak, "synchronous_commit")
    return connection


async def connect_readers(url: str, name: str) -> Any:
    """A small pool that opens connections when they are needed."""
    settings = {"application_name": f"clutch {name}", **_ENDS_WITHOUT_US}
    return await asyncpg.create_pool(
        url, min_size=0, max_size=4, timeout=CONNECT_S, command_timeout=COMMAND_S, server_settings=settings
    )
