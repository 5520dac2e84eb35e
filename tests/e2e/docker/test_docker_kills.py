"""Agents, keepers and engines killed while a container prints: it runs once, and its output is whole."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path
from random import Random

import pytest

from clutch.agent import spool
from clutch.backends.containers import proc
from clutch.backends.containers.base import Containers, Key
from clutch.backends.containers.docker import DockerContainers, answers
from clutch.testing.containers_suite import eventually
from clutch.testing.docker import DockerEngine
from clutch.testing.docker_ground import PATIENCE_S, DockerGround, key_of
from clutch.wire.messages import ExitCause, MemberStatus

STARTER = Path(__file__).parent / "docker_starter.py"
LINES = 400
TALK = f"""
echo ran >> marks
i=0; while [ $i -lt {LINES} ]; do
  printf 'out %d ' $i; echo; printf 'err %d;' $i >&2; i=$((i+1)); usleep 1000
  while [ -e stop$((i/100)) ]; do usleep 10000; done
done
exit 11
"""
SAID = (
    "".join(f"out {i} \n" for i in range(LINES)).encode(),
    "".join(f"err {i};" for i in range(LINES)).encode(),
)


async def until(ground: DockerGround, key: Key, stdout_bytes: int) -> None:
    await eventually(lambda: sum(spool.ends(ground.directories.path(key) / "output")[:1]) >= stdout_bytes)


async def until_kept(ground: DockerGround, containers: Containers, key: Key) -> None:
    """Looked at until a keeper lives again."""
    async with asyncio.timeout(PATIENCE_S):
        while not ground.keeper(key):
            await containers.observe(key)
            await asyncio.sleep(0.01)


async def test_a_keeper_killed_again_and_again_loses_and_doubles_nothing(ground: DockerGround) -> None:
    containers = ground.open()
    spec = ground.sh("m", TALK)
    key = key_of(spec)
    stops = [ground.folder / f"stop{number}" for number in (1, 2, 3)]
    for stop in stops:
        stop.touch()
    await containers.start(spec)
    for number, stop in enumerate(stops):
        await until(ground, key, 100 + 900 * number)
        ground.kill_keeper(key)
        stop.unlink()
        seen = await containers.observe(key)
        assert seen is not None and seen.status is MemberStatus.RUNNING and seen.exit is None
        await until_kept(ground, containers, key)
    record = await containers.wait(key, PATIENCE_S)
    assert (record.code, record.cause) == (11, ExitCause.OWN)
    assert ground.output(key) == SAID
    assert (record.stdout_bytes, record.stderr_bytes) == tuple(map(len, SAID))
    assert (ground.folder / "marks").read_text() == "ran\n"


async def test_what_ends_while_nobody_is_there_is_found_whole(ground: DockerGround) -> None:
    """The agent is killed, then the keeper, then the container ends by itself; then a new agent comes."""
    command = [sys.executable, str(STARTER), str(ground.folder.parent), str(ground.socket), TALK]
    pipe = asyncio.subprocess.PIPE
    agent = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert agent.stdout is not None and await agent.stdout.readline() == b"started\n"
    key = key_of(ground.sh("m", TALK))
    await until(ground, key, 100)
    agent.kill()
    await agent.communicate()
    ground.kill_keeper(key)
    await ground.until_container_ended(key)
    containers = ground.open()
    [seen] = await containers.found()
    assert Key(seen.member, seen.fence) == key
    record = await containers.wait(key, PATIENCE_S)
    assert (record.code, record.cause) == (11, ExitCause.OWN)
    assert 0 < record.started_at < record.ended_at
    assert ground.output(key) == SAID
    again = await containers.start(ground.sh("m", "echo ran >> marks"))
    assert again.exit == record and (ground.folder / "marks").read_text() == "ran\n"


async def test_an_order_outlives_the_keeper_that_took_it(ground: DockerGround) -> None:
    containers = ground.open()
    spec = ground.sh("m", "echo up; sleep 600")
    key = key_of(spec)
    await containers.start(spec)
    await until(ground, key, 3)
    keeper = ground.keeper(key)
    os.kill(keeper, 19)  # it cannot do what it is told
    await containers.end(key)
    ground.kill_keeper(key)
    await until_kept(ground, containers, key)
    seen = await containers.observe(key)
    assert seen is not None and seen.exit is None
    await containers.end(key)  # as an agent repeats what is wanted
    record = await containers.wait(key, PATIENCE_S)
    assert (record.code, record.cause) == (-9, ExitCause.ENDED)


async def test_a_start_whose_keeper_dies_first_executes_nothing_later(ground: DockerGround) -> None:
    """Killed at any time between the claim and the start: it runs once or never, and the record says which."""
    outcomes = set()
    random = Random(7)
    for number in range(8):
        containers = ground.open()
        spec = ground.sh(f"m{number}", f"echo {number} >> marks; exit 5")
        key = key_of(spec)
        await containers.start(spec)
        child = next(iter(containers._shims._children))
        await asyncio.sleep(random.random() * 0.15)
        os.kill(child, 9)
        record = await containers.wait(key, PATIENCE_S)
        outcomes.add(record.cause)
        marks = (ground.folder / "marks").read_text().split() if (ground.folder / "marks").exists() else []
        assert marks.count(str(number)) == (1 if record.cause is ExitCause.OWN else 0), record
        assert record.code == (5 if record.cause is ExitCause.OWN else 127)
    assert outcomes <= {ExitCause.OWN, ExitCause.NEVER_STARTED} and ExitCause.NEVER_STARTED in outcomes


async def test_bytes_that_are_no_text_and_lines_of_exactly_16_kib_survive_a_kill(ground: DockerGround) -> None:
    """The engine's log cuts at 16 KiB, and is read here from its beginning to its end."""
    random = Random(3)
    sizes = [16384, 16383, 16385, 32768, 49152, 1, 0, 0, 100, 16384]
    data = b"".join(bytes(random.choices(range(11, 256), k=size)) + b"\n" for size in sizes) + b"\r50%\r"
    (ground.folder / "data").write_bytes(data)
    containers = ground.open()
    spec = ground.sh(
        "m", "cat data; cat data >&2; echo up >> marks; while [ ! -e go ]; do usleep 10000; done; cat data"
    )
    key = key_of(spec)
    await containers.start(spec)
    await until(ground, key, 1)
    ground.kill_keeper(key)
    (ground.folder / "go").touch()
    await ground.until_container_ended(key)
    await containers.wait(key, PATIENCE_S)
    out, err = ground.output(key)
    assert err == data
    assert out == data + data


@pytest.mark.parametrize(("megabytes", "kills"), [pytest.param(100, 0, marks=pytest.mark.slow), (20, 2)])
async def test_megabytes_byte_for_byte(ground: DockerGround, megabytes: int, kills: int) -> None:
    path = ground.folder / "data"
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(megabytes):
            piece = os.urandom(1_000_000)
            digest.update(piece)
            file.write(piece)
    containers = ground.open()
    spec = ground.sh("m", "cat data")
    key = key_of(spec)
    await containers.start(spec)
    for number in range(kills):
        await until(ground, key, (number + 1) * 4_000_000)
        ground.kill_keeper(key)
        await until_kept(ground, containers, key)
    record = await containers.wait(key, 100.0)
    assert (record.code, record.stdout_bytes) == (0, megabytes * 1_000_000)
    assert hashlib.sha256(ground.output(key)[0]).digest() == digest.digest()


# -- engines ------------------------------------------------------------------------------------------------------


async def test_an_engine_that_is_stopped_takes_its_containers_and_says_so(
    private_engine: DockerEngine, tmp_path: Path
) -> None:
    ground = DockerGround(tmp_path, private_engine.socket)
    containers = ground.open()
    spec = ground.sh("m", "trap 'exit 143' TERM; echo up; sleep 600 & wait")
    key = key_of(spec)
    await containers.start(spec)
    await until(ground, key, 3)
    await asyncio.to_thread(private_engine.stop)
    assert await answers(private_engine.socket) is None
    seen = await containers.observe(key)
    assert seen is not None
    await asyncio.to_thread(private_engine.start)
    record = await containers.wait(key, PATIENCE_S)
    assert record.cause is ExitCause.MACHINE and "engine" in record.reason, record
    assert ground.output(key)[0] == b"up\n"
    await ground.close()


async def test_a_killed_engine_without_live_restore_ends_them_when_it_returns(
    private_engine: DockerEngine, tmp_path: Path
) -> None:
    ground = DockerGround(tmp_path, private_engine.socket)
    containers = ground.open()
    spec = ground.sh("m", "echo up; sleep 600")
    key = key_of(spec)
    await containers.start(spec)
    await until(ground, key, 3)
    private_engine.kill()
    await until_doing(containers, key, "waiting for the engine")
    seen = await containers.observe(key)
    assert seen is not None and seen.status is MemberStatus.RUNNING
    await asyncio.to_thread(private_engine.start)
    record = await containers.wait(key, PATIENCE_S)
    assert record.cause is ExitCause.MACHINE and "engine" in record.reason, record
    await ground.close()


@pytest.mark.parametrize("ends", ["while the engine is away", pytest.param("when it is back", marks=pytest.mark.slow)])
async def test_a_killed_engine_with_live_restore_changes_nothing(
    lasting_engine: DockerEngine, tmp_path: Path, ends: str
) -> None:
    """Its output waits in pipes while nobody reads, also when the container ends before the engine returns.

    The engine is killed while the container is silent: what an engine has read and not handed on, nobody has.
    """
    ground = DockerGround(tmp_path, lasting_engine.socket)
    containers = ground.open()
    spec = ground.sh("m", TALK)
    key = key_of(spec)
    (ground.folder / "stop1").touch()
    await containers.start(spec)
    before = tuple(said[: said.index(word)] for said, word in zip(SAID, (b"out 100", b"err 100"), strict=True))
    await eventually(lambda: ground.output(key) == before)
    seen = await containers.observe(key)
    assert seen is not None and seen.pid
    pid = seen.pid
    lasting_engine.kill()
    await until_doing(containers, key, "waiting for the engine")
    if ends == "while the engine is away":
        (ground.folder / "stop1").unlink()
        await eventually(lambda: not proc.alive([pid]))
    await asyncio.to_thread(lasting_engine.start)
    (ground.folder / "stop1").unlink(missing_ok=True)
    record = await containers.wait(key, PATIENCE_S)
    assert (record.code, record.cause) == (11, ExitCause.OWN), record
    assert ground.output(key) == SAID
    assert (record.stdout_bytes, record.stderr_bytes) == tuple(map(len, SAID))
    await ground.close()


async def test_an_end_is_carried_out_while_the_engine_is_away(lasting_engine: DockerEngine, tmp_path: Path) -> None:
    ground = DockerGround(tmp_path, lasting_engine.socket)
    containers = ground.open()
    spec = ground.sh("m", "echo up; sleep 600")
    key = key_of(spec)
    started = await containers.start(spec)
    await until(ground, key, 3)
    started = await containers.observe(key)
    assert started is not None and started.pid
    lasting_engine.kill()
    await until_doing(containers, key, "waiting for the engine")
    await containers.end(key)
    pid = started.pid
    await eventually(lambda: not proc.alive([pid]))
    await asyncio.to_thread(lasting_engine.start)
    record = await containers.wait(key, PATIENCE_S)
    assert (record.code, record.cause) == (-9, ExitCause.ENDED), record
    await ground.close()


async def until_doing(containers: DockerContainers, key: Key, text: str) -> None:
    await eventually(lambda: text in containers.doing(key))


async def test_two_engines_know_nothing_of_each_other(
    ground: DockerGround, private_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = DockerGround(tmp_path_factory.mktemp("other"), private_engine.socket)
    here, there = ground.open(), other.open()
    spec = ground.sh("m", "echo here; exit 1")
    await here.start(spec)
    await there.start(other.sh("m", "echo there; exit 2"))
    key = key_of(spec)
    assert (await here.wait(key, PATIENCE_S)).code == 1 and (await there.wait(key, PATIENCE_S)).code == 2
    assert (ground.output(key)[0], other.output(key)[0]) == (b"here\n", b"there\n")
    await here.forget(key)
    assert await here.found() == [] and len(await there.found()) == 1
    await other.close()
