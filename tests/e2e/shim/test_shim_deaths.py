"""Whoever is killed, at any moment: a member runs at most once, nothing of it stays behind unseen, and how it ended
reaches whoever looks next."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from shim_ground import ShimGround, key_of

from clutch.agent import shim
from clutch.agent.directory import is_held
from clutch.backends.containers.base import Key
from clutch.testing.containers_suite import eventually, running, unique_sleep
from clutch.wire.messages import ExitCause, MemberStatus

STARTER = Path(__file__).parent / "shim_starter.py"


class Starter:
    """A process that starts members; the ``with`` block ends it."""

    def __init__(self, folder: Path, count: int, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(STARTER), str(folder), str(count), script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Starter:
        self.expect("ready")
        return self

    def expect(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == line + "\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


async def test_a_killed_agent_loses_nothing(ground: ShimGround) -> None:
    script = "echo ran >> marks; echo before; until [ -e go ]; do sleep 0.02; done; echo after; exit 9"
    with Starter(ground.folder.parent, 2, script) as starter:
        starter.go()
        starter.expect("started")
        starter.kill()
    keys = [key_of(ground.sh(f"m{number}", script)) for number in range(2)]
    containers = ground.open()
    found = await containers.found()
    assert [seen.member for seen in found] == [key.member for key in keys]
    await eventually(lambda: all(ground.stdout(key) == b"before\n" for key in keys))
    assert {seen.status for seen in await containers.found()} == {MemberStatus.RUNNING}
    assert (await containers.usage(keys[0])).processes >= 1
    (ground.folder / "go").touch()
    for key in keys:
        record = await containers.wait(key, 30.0)
        assert (record.code, record.cause) == (9, ExitCause.OWN)
        assert ground.stdout(key) == b"before\nafter\n"
    assert (ground.folder / "marks").read_text() == "ran\n" * 2


async def test_starters_that_race_run_each_member_once(ground: ShimGround) -> None:
    count = 12
    with (
        Starter(ground.folder.parent, count, 'echo "$CLUTCH_CONTAINER" >> marks') as one,
        Starter(ground.folder.parent, count, 'echo "$CLUTCH_CONTAINER" >> marks') as two,
        Starter(ground.folder.parent, count, 'echo "$CLUTCH_CONTAINER" >> marks') as three,
    ):
        for starter in (one, two, three):
            starter.go()
        for starter in (one, two, three):
            starter.expect("started")
        containers = ground.open()
        for number in range(count):
            assert (await containers.wait(key_of(ground.sh(f"m{number}", "")), 30.0)).code == 0
    ran = (ground.folder / "marks").read_text().splitlines()
    assert len(ran) == len(set(ran)) == count


@pytest.mark.parametrize("seed", range(4))
async def test_a_starter_killed_at_any_moment(ground: ShimGround, seed: int) -> None:
    """What its directory exists for is never started again; all others can be."""
    count, script = 8, 'echo "$CLUTCH_CONTAINER" >> marks'
    with Starter(ground.folder.parent, count, script) as starter:
        starter.go()
        await asyncio.sleep(Random(seed).uniform(0.0, 0.06))
        starter.kill()
    containers = ground.open()
    begun = len(await containers.found())
    for number in range(count):
        spec = ground.sh(f"m{number}", script)
        await containers.start(spec)
        record = await containers.wait(key_of(spec), 30.0)
        if record.cause is ExitCause.NEVER_STARTED:
            assert number == begun - 1 and "starter ended" in record.reason, record
        else:
            assert (record.code, record.cause) == (0, ExitCause.OWN), record
    ran = (ground.folder / "marks").read_text().splitlines()
    assert len(ran) == len(set(ran)) and len(ran) in (count, count - 1)


async def test_a_killed_shim_takes_its_tree_along(either_ground: ShimGround) -> None:
    ground = either_ground
    containers = ground.open()
    words = one, two, three = unique_sleep(), unique_sleep(), unique_sleep()
    spec = ground.sh("orphans", f"echo said; (setsid setsid sleep {one} &); sleep {two} & sleep {three}")
    key = key_of(spec)
    await containers.start(spec)
    await eventually(lambda: all(map(running, words)) and ground.stdout(key) == b"said\n")
    waiting = asyncio.create_task(containers.wait(key, 30.0))
    ground.kill_shim(key)
    record = await waiting
    assert (record.code, record.cause) == (-9, ExitCause.MACHINE) and "shim was killed" in record.reason
    assert list(map(running, words)) == [[], [], []]
    assert record.stdout_bytes == 5 and record.started_at > 0
    assert (await ground.open().wait(key, 0.0)) == record  # settled for all who come later
    assert (await containers.start(spec)).exit == record


async def test_a_process_that_hides_is_still_found_by_its_control_group(ground: ShimGround) -> None:
    """No environment, no session, no parent of ours: only the group tells."""
    containers = ground.open()
    word = unique_sleep()
    spec = ground.sh("hider", f"(setsid env -i sleep {word} &); exec sleep 600")
    key = key_of(spec)
    await containers.start(spec)
    if not ground.directories.traces(key).cgroups:
        pytest.skip("this machine gives us no control groups")
    await eventually(lambda: bool(running(word)))
    pid = ground.record(key, shim.STARTED).number("pid")
    ground.kill_shim(key)
    await eventually(lambda: shim.stat_fields(pid)[:1] in ([], [b"Z"]) and not is_held(ground.path(key)))
    assert running(word)  # by now the only one left
    assert (await containers.wait(key, 30.0)).cause is ExitCause.MACHINE
    assert running(word) == []


async def test_a_shim_killed_while_nobody_looked(ground: ShimGround) -> None:
    containers = ground.open()
    word = unique_sleep()
    spec = ground.sh("unseen", f"(setsid sleep {word} &); sleep 600")
    key = key_of(spec)
    await containers.start(spec)
    await eventually(lambda: bool(running(word)))
    await containers.close()
    ground.kill_shim(key)
    await eventually(lambda: not is_held(ground.path(key)))
    (seen,) = await ground.open().found()
    assert seen.status is MemberStatus.EXITED and seen.exit is not None and seen.exit.cause is ExitCause.MACHINE
    assert running(word) == []


async def test_a_stopped_shim_still_ends_its_member(ground: ShimGround) -> None:
    containers = ground.open()
    spec = ground.sh("frozen", "sleep 600")
    key = key_of(spec)
    await containers.start(spec)
    await eventually(lambda: ground.record(key, shim.STARTED).whole)
    os.kill(ground.record(key, shim.STARTED).number("shim"), signal.SIGSTOP)
    await containers.end(key)
    assert (await containers.wait(key, 30.0)).cause is ExitCause.ENDED


async def test_service_managers_do_not_end_a_shim(ground: ShimGround) -> None:
    containers = ground.open()
    spec = ground.sh("steady", "until [ -e go ]; do sleep 0.02; done; exit 2")
    key = key_of(spec)
    await containers.start(spec)
    await eventually(lambda: ground.record(key, shim.STARTED).whole)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(ground.record(key, shim.STARTED).number("shim"), number)
    (ground.folder / "go").touch()
    record = await containers.wait(key, 30.0)
    assert (record.code, record.cause) == (2, ExitCause.OWN)


async def test_a_signal_at_the_very_start_is_not_lost(ground: ShimGround) -> None:
    """It waits until the command is executed; the shim's child before that ignores what the shim ignores."""
    containers = ground.open()
    for number in range(5):
        spec = ground.spec(f"early-{number}", "sleep", "600")
        await containers.start(spec)
        await containers.signal(key_of(spec), signal.SIGTERM)
        record = await containers.wait(key_of(spec), 30.0)
        assert (record.code, record.cause) == (-signal.SIGTERM, ExitCause.OWN)


# -- pids and boots -----------------------------------------------------------------------------------------------


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process, which must not be touched."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        assert process.poll() is None, "a bystander was killed"
        process.kill()


async def lost_member(ground: ShimGround, name: str) -> Key:
    """A member whose shim was killed and that nobody has looked at since."""
    containers = ground.open()
    spec = ground.sh(name, "sleep 600")
    await containers.start(spec)
    key = key_of(spec)
    await eventually(lambda: ground.record(key, shim.STARTED).whole)
    pid = ground.record(key, shim.STARTED).number("pid")
    await containers.close()
    ground.kill_shim(key)
    await eventually(lambda: shim.stat_fields(pid)[:1] in ([], [b"Z"]) and not is_held(ground.path(key)))
    return key


async def test_a_reused_pid_is_nobody_of_ours(ground: ShimGround, bystander: subprocess.Popen[bytes]) -> None:
    key = await lost_member(ground, "reused")
    ticks = shim.start_ticks(bystander.pid)
    ground.edit(key, shim.STARTED, pid=str(bystander.pid), ticks=str(ticks - 1), shim=str(bystander.pid))
    containers = ground.open()
    (seen,) = await containers.found()
    assert seen.exit is not None and seen.exit.cause is ExitCause.MACHINE
    usage = await containers.usage(key)
    assert usage.processes == 0


async def test_after_a_restart_of_the_machine_no_pid_counts(
    ground: ShimGround, bystander: subprocess.Popen[bytes]
) -> None:
    """Even one with the same number and the same start time: that is another boot's."""
    key = await lost_member(ground, "rebooted")
    ticks = str(shim.start_ticks(bystander.pid))
    for name in (shim.SPEC, shim.STARTED):
        ground.edit(key, name, boot="00000000-0000-4000-8000-000000000000")
    ground.edit(key, shim.STARTED, pid=str(bystander.pid), ticks=ticks)
    (seen,) = await ground.open().found()
    assert seen.exit is not None and seen.exit.cause is ExitCause.MACHINE
    assert "restarted" in seen.exit.reason


# -- directories that are not whole -------------------------------------------------------------------------------


def empty(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.write_text("x")


def a_dangling_link(path: Path) -> None:
    path.symlink_to("/no/such/place")


def torn_spec(path: Path) -> None:
    path.mkdir()
    (path / "spec").write_bytes(b"task=t\0role=ma")


@pytest.mark.parametrize("harm", [empty, a_file, a_dangling_link, torn_spec])
async def test_what_is_half_written_is_never_executed(ground: ShimGround, harm: object) -> None:
    assert callable(harm)
    spec = ground.sh("half", "echo ran >> marks")
    harm(ground.path(key_of(spec)))
    containers = ground.open()
    seen = await containers.start(spec)
    assert seen.exit is not None and seen.exit.cause is ExitCause.NEVER_STARTED and "half-written" in seen.exit.reason
    assert [one.exit for one in await containers.found()] == [seen.exit]
    assert (await containers.wait(key_of(spec), 0.0)) == seen.exit
    await containers.forget(key_of(spec))
    assert await containers.found() == [] and not (ground.folder / "marks").exists()


@pytest.mark.parametrize("keep_bytes", [0, 10, -1])
async def test_a_torn_exit_record_is_an_end_for_the_machine_to_answer_for(ground: ShimGround, keep_bytes: int) -> None:
    containers = ground.open()
    spec = ground.sh("torn", "echo ran >> marks")
    key = key_of(spec)
    await containers.start(spec)
    await containers.wait(key, 30.0)
    await eventually(lambda: not is_held(ground.path(key)))
    whole = (ground.path(key) / shim.EXIT).read_bytes()
    (ground.path(key) / shim.EXIT).write_bytes(whole[:keep_bytes])
    (seen,) = await ground.open().found()
    assert seen.exit is not None and seen.exit.cause is ExitCause.MACHINE and "cannot be read" in seen.exit.reason
    assert (await containers.start(spec)).exit == seen.exit
    assert (ground.folder / "marks").read_text() == "ran\n"


async def test_a_torn_started_record_ends_it_like_a_lost_shim(ground: ShimGround) -> None:
    key = await lost_member(ground, "half-started")
    path = ground.path(key) / shim.STARTED
    path.write_bytes(path.read_bytes()[:9])
    (seen,) = await ground.open().found()
    assert seen.exit is not None and (seen.exit.code, seen.exit.cause) == (-9, ExitCause.MACHINE)


async def test_a_shim_that_cannot_run_says_so(ground: ShimGround, tmp_path: Path) -> None:
    broken = ground.open(python="/no/such/python")
    unspawned = await broken.start(ground.sh("no-python", "true"))
    assert unspawned.exit is not None and unspawned.exit.cause is ExitCause.NEVER_STARTED
    assert "shim could not be started" in unspawned.exit.reason
    (tmp_path / "shim.py").write_text("raise RuntimeError('out of luck')")
    broken = ground.open(shim_file=str(tmp_path / "shim.py"))
    spec = ground.sh("bad-shim", "true")
    await broken.start(spec)
    record = await broken.wait(key_of(spec), 30.0)
    assert record.cause is ExitCause.NEVER_STARTED and "out of luck" in record.reason
