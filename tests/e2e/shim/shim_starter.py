"""An agent's worth of starting, as a process that can be killed: ``shim_starter.py FOLDER COUNT SCRIPT``.

It says ``ready``, waits for a line, then starts members ``m0`` ... and stays until it is ended.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from shim_ground import ShimGround


async def main(folder: Path, count: int, script: str) -> None:
    ground = ShimGround(folder)
    containers = ground.open()
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        await containers.start(ground.sh(f"m{number}", script))
    print("started", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
