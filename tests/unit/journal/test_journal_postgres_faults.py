"""What a broken connection means to who is being cancelled, and to who is not."""

import asyncio

import pytest

from clutch.backends.journal.postgres_faults import speaking_of
from clutch.wire.errors import Unavailable


async def rolls_back_on_a_broken_connection(seconds: float) -> None:
    with speaking_of("postgresql://here"):
        try:
            await asyncio.sleep(seconds)
        finally:
            raise ConnectionResetError("the connection is lost")


async def test_a_fault_is_told() -> None:
    with pytest.raises(Unavailable, match="connection is lost"):
        await rolls_back_on_a_broken_connection(0)


async def test_who_is_cancelled_leaves_though_its_rollback_fails() -> None:
    task = asyncio.create_task(rolls_back_on_a_broken_connection(60))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_deadline_is_a_deadline_though_the_rollback_fails() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await rolls_back_on_a_broken_connection(60)
    with pytest.raises(Unavailable):
        await rolls_back_on_a_broken_connection(0)
