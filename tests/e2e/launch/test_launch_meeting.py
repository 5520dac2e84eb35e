"""The rendezvous layer under trouble: a slow node, a master that is killed, a member that begins again meanwhile."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from launch_ground import TELL, Ground, ground, texts, told

from clutch.testing.cluster import until
from clutch.wire.programs import RanksLaunch
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, OnDeath, RoleSpec, Spread

PYTHON = (sys.executable, "program.py")


def boots_of(task: str) -> list[int]:
    """Processes of this task that are still at the rendezvous."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            around, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"CLUTCH_TASK={task}\0".encode() in around + b"\0" and b"clutch.runtime.boot" in command:
            found.append(int(entry.name))
    return found


def waits_for_b(place: Ground, task: str) -> list[int]:
    def look() -> list[int]:
        found = place.cluster.client.task(task).detail()
        running = [member for member in found.members if member.state == "running"]
        return boots_of(task) if running else []

    return until(look, "one member runs and waits for the other", 60)


def test_a_slow_node_and_a_master_that_is_killed_meanwhile(tmp_path: Path) -> None:
    with ground(tmp_path) as place:
        slow, master = place.cluster.agents["b"], place.cluster.masters[0]
        slow.signal(signal.SIGSTOP)
        task = place.submit({"program.py": TELL}, PYTHON, RanksLaunch())
        waits_for_b(place, task.id)
        master.kill()
        master.start()
        place.cluster.wait_serving()
        assert told(task) == [], "nobody goes on before all are there"
        slow.signal(signal.SIGCONT)
        assert task.wait(90).task.reason == "done", "\n".join(texts(task))
        found = told(task)
        assert [one["RANK"] for one in found] == [str(rank) for rank in range(5)]
        assert {tuple(one["peers"]) for one in found} in ({(2, 3)}, {(3, 2)})  # type: ignore[arg-type]


def test_a_member_that_is_killed_before_the_others_come_is_waited_for(tmp_path: Path) -> None:
    with ground(tmp_path) as place:
        slow = place.cluster.agents["b"]
        slow.signal(signal.SIGSTOP)
        shape = Members(2, Resources(2, "artificial"))
        roles = (RoleSpec(name="main", shape=shape, spread=Spread.HARD, on_death=OnDeath.RESPAWN),)
        task = place.submit({"program.py": TELL}, PYTHON, RanksLaunch(), roles=roles, max_restarts=3)
        (first,) = waits_for_b(place, task.id)
        os.kill(first, signal.SIGKILL)
        until(lambda: [pid for pid in boots_of(task.id) if pid != first], "it begins again", 60)
        slow.signal(signal.SIGCONT)
        assert task.wait(90).task.reason == "done", "\n".join(texts(task))
        found = told(task)
        assert [one["RANK"] for one in found] == [str(rank) for rank in range(4)]
        assert len({(one["MASTER_PORT"], one["CLUTCH_COMMS_PORT"]) for one in found}) == 1, "all have the newer address"
