"""The process behind ``clutch up``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from clutch.agent.slots import SlotWish
from clutch.cli.house import House, HouseSettings
from clutch.cli.seen import Up
from clutch.cli.serving import run_loop
from clutch.cli.wishes import UpWish
from clutch.master.logs import configure_logs
from clutch.master.settings import MasterSettings


def serve_house(data: Path, wish: UpWish, tell: Callable[[Up], None]) -> None:
    """Run a master and its agents until told to stop."""
    settings = HouseSettings(
        master=MasterSettings(data=data, port=wish.port, db=wish.db),
        agents=wish.agents,
        slots=SlotWish(artificial=wish.artificial_slots, cuda_visible=os.environ.get("CUDA_VISIBLE_DEVICES")),
        join=wish.join,
        join_host=wish.join_host,
    )

    async def run() -> None:
        await House(settings, tell).run()

    configure_logs("info")
    run_loop(run())
