"""Run the same command with several settings on a cluster, at most as many at once as there is room for.

clutch up
python examples/many_commands.py
"""

from __future__ import annotations

import asyncio

import clutch


async def one(cluster: clutch.AsyncClient, rate: float) -> str:
    """The last line that the command printed for this rate."""
    script = f"rate = {rate}; loss = (rate - 0.03) ** 2; print('rate', rate, 'loss', round(loss, 6))"
    task = await cluster.run("python3", "-c", script, code=None, name=f"rate-{rate:g}", cpus=0.1)
    detail = await task.wait(timeout_s=300)
    lines = [line.text async for line in task.output()]
    return lines[-1] if detail.exit_code == 0 else f"rate {rate} failed: {detail.task.detail}"


async def main() -> None:
    async with clutch.AsyncClient() as cluster:
        for line in await asyncio.gather(*(one(cluster, rate) for rate in (0.001, 0.01, 0.03, 0.1))):
            print(line)


if __name__ == "__main__":
    asyncio.run(main())
