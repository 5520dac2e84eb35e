"""Any command, once for each slot: every process knows its rank and sees its own device."""

from __future__ import annotations

from clutch.runtime.launch.base import Launch, supervisor_words
from clutch.runtime.launch.world import world_of, world_variables
from clutch.wire.errors import BadRequest
from clutch.wire.programs import RanksLaunch
from clutch.wire.push import Roster


class Ranks:
    """``launch: ranks``."""

    def __init__(self, said: RanksLaunch) -> None:
        self._said = said

    def launch(self, argv: tuple[str, ...], environment: dict[str, str], roster: Roster | None) -> Launch:
        if roster is None:
            raise BadRequest("ranks are counted over a roster, and there is none", object="launch")
        said = self._said
        world = world_of(roster, said.processes, oversubscribe=said.oversubscribe)
        options: dict[str, str | None] = {"first": str(world.first), "count": str(world.local_size)}
        options |= {"grace": f"{said.grace_s:g}"} | ({} if said.share_devices else {"own-devices": None})
        return Launch(
            (*supervisor_words("ranks", options), *argv), {**environment, **world_variables(roster, world)}
        )  # fmt: skip
