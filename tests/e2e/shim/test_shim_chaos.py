"""Agents killed one after the other, shims killed at random in between: every member runs once, and the output of each
is complete up to where it got."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from shim_ground import ShimGround, key_of

from clutch.wire.messages import ExitCause, MemberStatus

STARTER = Path(__file__).parent / "shim_starter.py"
MEMBERS, LINES, AGENTS = 10, 150, 6
SCRIPT = f"""
echo "$CLUTCH_CONTAINER" >> marks
i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); sleep 0.01; done
exit 11
"""


def begin_agent(ground: ShimGround) -> subprocess.Popen[bytes]:
    agent = subprocess.Popen(
        [sys.executable, str(STARTER), str(ground.folder.parent), str(MEMBERS), SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert agent.stdin is not None
    agent.stdin.write(b"go\n")
    agent.stdin.flush()
    return agent


def kill_agent(agent: subprocess.Popen[bytes]) -> None:
    agent.kill()
    agent.wait()
    assert agent.stdin is not None
    agent.stdin.close()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
async def test_agents_and_shims_killed_at_random(ground: ShimGround, seed: int) -> None:
    chance = Random(seed)
    keys = [key_of(ground.sh(f"m{number}", SCRIPT)) for number in range(MEMBERS)]
    killed: set[int] = set()
    for turn in range(AGENTS):
        agent = begin_agent(ground)
        await asyncio.sleep(chance.uniform(0.15, 0.5))
        seen = {number: ground.directories.observe(key) for number, key in enumerate(keys)}
        running = [number for number, one in seen.items() if one is not None and one.status is MemberStatus.RUNNING]
        if running and (turn == AGENTS // 2 or chance.random() < 0.5):
            victim = chance.choice(running)
            ground.kill_shim(keys[victim])
            killed.add(victim)
        kill_agent(agent)
    assert killed, "no shim was killed: the test proves nothing"
    containers = ground.open()
    for number, key in enumerate(keys):
        await containers.start(ground.sh(f"m{number}", SCRIPT))
        record = await containers.wait(key, 60.0)
        wanted = b"".join(b"line %d\n" % line for line in range(LINES))
        said = ground.stdout(key)
        assert record.stdout_bytes == len(said)
        if record.cause is ExitCause.OWN:
            assert (record.code, said) == (11, wanted)
        elif record.cause is ExitCause.MACHINE:
            assert number in killed and wanted.startswith(said)
        else:
            assert record.cause is ExitCause.NEVER_STARTED and said == b""
    ran = (ground.folder / "marks").read_text().splitlines()
    assert len(ran) == len(set(ran)) >= MEMBERS - AGENTS
