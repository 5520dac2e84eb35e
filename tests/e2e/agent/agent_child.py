"""An agent in a process of its own. Made to be killed.

python agent_child.py SETTINGS_AS_JSON
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from clutch.agent.main import AgentSettings, run
from clutch.agent.slots import SlotWish
from clutch.wire.errors import ClutchError


async def with_dump(settings: AgentSettings) -> None:
    """SIGUSR1 tells where every task is: for whoever looks into a hang."""

    def dump() -> None:
        for task in asyncio.all_tasks():
            task.print_stack(file=sys.stderr)

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, dump)
    await run(settings)


def main(told: dict[str, object]) -> int:
    data, slots = Path(str(told.pop("data"))), int(str(told.pop("artificial", 8)))
    masters = tuple(told.pop("masters"))  # type: ignore[call-overload]
    settings = AgentSettings(data=data, masters=masters, slots=SlotWish(artificial=slots), **told)  # type: ignore[arg-type]
    try:
        asyncio.run(with_dump(settings))
    except ClutchError as error:
        sys.stderr.write(f"{error.code}: {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
