"""An agent's worth of starting, as a process that can be killed: ``docker_starter.py FOLDER SOCKET SCRIPT``."""

import asyncio
import sys
from pathlib import Path

from clutch.testing.docker_ground import DockerGround


async def main(folder: Path, socket: Path, script: str) -> None:
    ground = DockerGround(folder, socket)
    await ground.open().start(ground.sh("m", script))
    print("started", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
