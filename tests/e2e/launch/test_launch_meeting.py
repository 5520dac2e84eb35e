"""The rendezvous layer under trouble: a slow node, a master that is killed, a member that begins again meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launch_ground import TELL, Ground, texts, told

from clutch.testing.cluster import until
from clutch.testing.push_master import push_master
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


@contextmanager
def stopped(place: Ground, node: str) -> Iterator[Callable[[], None]]:
    """The node's agent does nothing, until it is told to go on."""
    agent = place.cluster.agents[node]
    agent.signal(signal.SIGSTOP)
    try:
        yield lambda: agent.signal(signal.SIGCONT)
    finally:
        agent.signal(signal.SIGCONT)


def test_a_slow_node_and_a_master_that_is_killed_meanwhile(two_nodes: Ground) -> None:
    place, master = two_nodes, two_nodes.cluster.masters[0]
    with stopped(place, "b") as go_on:
        task = place.submit({"program.py": TELL}, PYTHON, RanksLaunch())
        waits_for_b(place, task.id)
        master.kill()
        master.start()
        place.cluster.wait_serving()
        assert told(task) == [], "nobody goes on before all are there"
        go_on()
        assert task.wait(90).task.reason == "done", "\n".join(texts(task))
        found = told(task)
        assert [one["RANK"] for one in found] == [str(rank) for rank in range(5)]
        assert {tuple(one["peers"]) for one in found} in ({(2, 3)}, {(3, 2)})  # type: ignore[arg-type]


def test_a_member_that_is_killed_before_the_others_come_is_waited_for(two_nodes: Ground) -> None:
    place = two_nodes
    with stopped(place, "b") as go_on:
        shape = Members(2, Resources(2, "artificial"))
        roles = (RoleSpec(name="main", shape=shape, spread=Spread.HARD, on_death=OnDeath.RESPAWN),)
        task = place.submit({"program.py": TELL}, PYTHON, RanksLaunch(), roles=roles, max_restarts=3)
        (first,) = waits_for_b(place, task.id)
        os.kill(first, signal.SIGKILL)
        until(lambda: [pid for pid in boots_of(task.id) if pid != first], "it begins again", 60)
        go_on()
        assert task.wait(90).task.reason == "done", "\n".join(texts(task))
        found = told(task)
        assert [one["RANK"] for one in found] == [str(rank) for rank in range(4)]
        assert len({(one["MASTER_PORT"], one["CLUTCH_COMMS_PORT"]) for one in found}) == 1, "all have the newer address"


def words_in(place: Path) -> str:
    return "".join(path.read_text() for path in place.glob("words"))


async def booted(url: str, token: str, place: Path, slots: str, within_s: float) -> tuple[int, str, str, str]:
    """A boot as an agent starts it: its exit code, both outputs, and its last words."""
    said = {"TASK": "t", "TOKEN": token, "MASTERS": url, "RENDEZVOUS": "1", "MEET_WITHIN_S": str(within_s)}
    said |= {"SLOTS": slots, "LAUNCH": '{"name":"ranks"}', "LAST_WORDS": str(place / "words")}
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(place), **{f"CLUTCH_{n}": v for n, v in said.items()}}
    words = (
        "-m",
        "clutch.runtime.boot",
        "--",
        "sh",
        "-c",
        "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE",
    )
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=place, env=environment, stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    left = await asyncio.to_thread(words_in, place)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode(), left


async def test_who_does_not_come_is_named_at_the_deadline(tmp_path: Path) -> None:
    """Two of three wait and give up with a reason; with the third all is well, though its node is late."""
    async with push_master(tmp_path / "data") as master, asyncio.timeout(120):
        tokens = await master.submit("t", 3)
        places = [tmp_path / name for name in ("m0", "m1", "n0", "n1", "n2")]
        await asyncio.to_thread(lambda: [place.mkdir() for place in places])
        both = [booted(master.url, tokens[n], places[n], "0,1", 1.0) for n in (0, 1)]
        for code, out, err, left in await asyncio.gather(*both):
            assert (code, out) == (117, "")
            assert err.startswith("clutch boot: ") and "of 3 members did not come" in err and "main.2" in err
            assert left == err.removeprefix("clutch ").strip(), "what the agent tells the master"
        slots = ("0,1", "2,3,4", "5")
        all_three = [booted(master.url, tokens[n], places[2 + n], slots[n], 60.0) for n in range(3)]
        found = await asyncio.gather(*all_three)
        assert [code for code, *_ in found] == [0, 0, 0], found
        lines = sorted(line for _, out, _, _ in found for line in out.splitlines())
        assert lines == [
            "[rank=0] 0 of 6, 0 of 2",
            "[rank=1] 1 of 6, 1 of 2",
            "[rank=2] 2 of 6, 0 of 3",
            "[rank=3] 3 of 6, 1 of 3",
            "[rank=4] 4 of 6, 2 of 3",
            "[rank=5] 5 of 6, 0 of 1",
        ]


async def test_a_boot_that_names_no_launcher_is_refused(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "CLUTCH_LAUNCH": '{"name": "mpirun"}', "TMPDIR": str(tmp_path)}
    words = ("-m", "clutch.runtime.boot", "--", "true")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *words, env=environment, stderr=pipe)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 118 and b"CLUTCH_LAUNCH" in err and err.count(b"\n") == 1
