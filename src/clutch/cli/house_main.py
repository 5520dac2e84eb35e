"""The process behind ``clutch up``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from clutch.agent.slots import SlotWish
from clutch.cli.house import House, HouseSettings
from clutch.cli.seen import Up
from clutch.cli.serving import run_loop
from clutch.master.logs import configure_logs
from clutch.master.settings import MasterSettings

Asked = tuple[int, int, int, bool, str, str]


def serve_house(data: Path, asked: Asked, tell: Callable[[Up], None]) -> None:
    """Run a master and its agents until told to stop."""
    agents, artificial, port, join, join_host, db = asked
    settings = HouseSettings(
        master=MasterSettings(data=data, port=port, db=db),
        agents=agents,
        slots=SlotWish(artificial=artificial, cuda_visible=os.environ.get("CUDA_VISIBLE_DEVICES")),
        join=join,
        join_host=join_host,
    )

    async def run() -> None:
        await House(settings, tell).run()

    configure_logs("info")
    run_loop(run())
