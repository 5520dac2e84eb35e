"""Shims that are copied from a nursery: as good as started ones, and whatever becomes of the nursery, the lock of a
member tells whether it was ever executed."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

from shim_ground import ShimGround, key_of

from clutch.agent import shim
from clutch.backends.containers import proc
from clutch.backends.containers.process import ProcessContainers
from clutch.testing.containers_suite import eventually, running, unique_sleep
from clutch.wire.messages import ExitCause, MemberStatus


def nurseries(ground: ShimGround) -> list[int]:
    """Those over this ground's directories that this process started."""
    told = running(str(ground.directories.root))
    return [pid for pid in told if (seen := proc.stat(pid)) is not None and seen.parent == os.getpid()]


def parent_of_shim(ground: ShimGround, name: str) -> int:
    seen = proc.stat(ground.record(key_of(ground.sh(name, "")), shim.STARTED).number("shim"))
    return seen.parent if seen is not None else 0


def has_shim(ground: ShimGround, name: str) -> bool:
    return parent_of_shim(ground, name) > 0


def descriptors(pid: int) -> dict[int, str]:
    return {int(path.name): str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}


async def with_nursery(ground: ShimGround) -> tuple[ProcessContainers, int]:
    """Containers whose nursery is ready: the first member is started without it and starts it."""
    containers = ground.open()
    await containers.start(ground.sh("first", "true"))
    (nursery,) = nurseries(ground)
    await eventually(lambda: proc.name(nursery) == "clutch-shim")
    for number in range(1000):
        name = f"probe-{number}"
        spec = ground.sh(name, "sleep 60")
        await containers.start(spec)
        await eventually(partial(has_shim, ground, name))
        born = parent_of_shim(ground, name) == nursery
        await containers.end(key_of(spec))
        await containers.wait(key_of(spec), 30.0)
        if born:
            return containers, nursery
    raise AssertionError("nothing is born there")


async def test_a_copied_shim_is_alone_with_what_it_was_given(ground: ShimGround) -> None:
    containers, nursery = await with_nursery(ground)
    spec = ground.sh("alone", "ls -l /proc/$PPID/fd /proc/self/fd; sleep 60")
    await containers.start(spec)
    await eventually(lambda: parent_of_shim(ground, "alone") == nursery)
    pid = ground.record(key_of(spec), shim.STARTED).number("shim")
    assert os.getsid(pid) == pid
    held = descriptors(pid)
    assert not any(name.startswith("socket:") for name in held.values()), held
    names = (shim.LOCK, shim.WAKE, shim.ORDERS)
    assert [held[number] for number in (3, 4, 5)] == [str(ground.path(key_of(spec)) / name) for name in names]
    assert held[0] == held[1] == "/dev/null"
    await eventually(lambda: b"/proc/self/fd" in ground.stdout(key_of(spec)))
    command = ground.stdout(key_of(spec)).partition(b"/proc/self/fd")[2]
    assert b"socket:" not in command and str(ground.path(key_of(spec))).encode() not in command


async def test_what_a_dead_nursery_was_asked_was_never_executed(ground: ShimGround) -> None:
    containers, nursery = await with_nursery(ground)
    mark = ground.folder / "ran"
    os.kill(nursery, signal.SIGSTOP)
    spec = ground.sh("asked", f"echo ran >> {mark}")
    assert (await containers.start(spec)).status is MemberStatus.STARTING
    os.kill(nursery, signal.SIGKILL)
    record = await containers.wait(key_of(spec), 30.0)
    assert record.cause is ExitCause.NEVER_STARTED and not mark.exists()
    assert (await containers.start(spec)).exit == record
    again = ground.sh("again", f"echo ran >> {mark}")
    await containers.start(again)
    assert (await containers.wait(key_of(again), 30.0)).code == 0
    assert mark.read_text() == "ran\n"


async def test_members_outlive_their_nursery_and_nothing_stays_dead_in_it(ground: ShimGround) -> None:
    containers, nursery = await with_nursery(ground)
    word = unique_sleep()
    spec = ground.spec("outlives", "sleep", word)
    await containers.start(spec)
    await eventually(lambda: parent_of_shim(ground, "outlives") == nursery)
    dead = [pid for pid in shim.children(nursery) if (seen := proc.stat(pid)) is not None and seen.state == "Z"]
    await eventually(lambda: all(proc.stat(pid) is None for pid in dead))
    await containers.close()
    await eventually(lambda: proc.stat(nursery) is None)
    others = ground.open()
    seen = await others.observe(key_of(spec))
    assert seen is not None and seen.status is MemberStatus.RUNNING
    await eventually(lambda: running(word) == [seen.pid])  # its command has begun by now, or is about to
    await others.end(key_of(spec))
    assert (await others.wait(key_of(spec), 30.0)).cause is ExitCause.ENDED
