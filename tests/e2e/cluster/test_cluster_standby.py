"""Two masters on one PostgreSQL: the standby takes over when the leader is killed, stopped, or cut off."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from clutch.sdk import calls
from clutch.sdk.client import Client
from clutch.testing import namespaces
from clutch.testing.cluster import Cluster, until
from clutch.testing.ports import free_port
from clutch.testing.postgres import any_server, fresh_database, temporary_server

COUNTING = Path(__file__).with_name("counting.py")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with any_server() as address:
        yield address


@contextmanager
def database(server: str) -> Iterator[str]:
    """An empty database for the length of the block."""
    with asyncio.Runner() as runner:
        made = fresh_database(server, f"standby_{uuid4().hex[:12]}")
        address = runner.run(made.__aenter__())
        try:
            yield address
        finally:
            runner.run(made.__aexit__(None, None, None))


def serves(url: str) -> bool:
    with Client((url,), "", patience_s=0.1) as nobody:
        return nobody.perform(calls.get_health()).status == "serving"


def count(cluster: Cluster, name: str, lines: int) -> object:
    marks = cluster.folder / "marks"
    marks.mkdir(exist_ok=True)
    command = (sys.executable, str(COUNTING), str(marks), name, str(lines), "0.05")
    return cluster.client.run(*command, code=None, name=name)


def runs(cluster: Cluster, name: str) -> int:
    path = cluster.folder / "marks" / f"{name}.runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_the_standby_takes_over_when_the_leader_is_killed(tmp_path: Path, server: str) -> None:
    with database(server) as db, Cluster(tmp_path, db=db, masters=2) as cluster:
        cluster.start()
        cluster.add_agent("one", slots=4)
        cluster.wait_nodes("one")
        task = count(cluster, "before", 100)
        until(lambda: runs(cluster, "before") == 1, "it runs")
        cluster.masters[0].kill()
        until(lambda: serves(cluster.urls[1]), "the standby serves")
        after = count(cluster, "after", 3)
        assert task.wait(60).task.reason == "done"  # type: ignore[attr-defined]
        assert after.wait(60).task.reason == "done"  # type: ignore[attr-defined]
        assert runs(cluster, "before") == 1
        assert runs(cluster, "after") == 1
        info = cluster.client.perform(calls.get_master())
        assert info.term == 2
        assert info.store.startswith("postgres")


def stop_and_continue(folder: Path, server: str, asleep_s: float) -> None:
    """The leader sleeps through its own replacement; when it wakes it must do nothing any more."""
    with database(server) as db, Cluster(folder, db=db, masters=2) as cluster:
        cluster.start()
        cluster.add_agent("one", slots=4)
        cluster.wait_nodes("one")
        task = count(cluster, "long", int(20 * (asleep_s + 6)))
        until(lambda: runs(cluster, "long") == 1, "it runs")
        slept_at = time.monotonic()
        os.kill(cluster.masters[0].pid, signal.SIGSTOP)
        until(lambda: serves(cluster.urls[1]), "the standby serves")
        cluster.wait_nodes("one")
        meanwhile = count(cluster, "meanwhile", 3)
        assert meanwhile.wait(60).task.reason == "done"  # type: ignore[attr-defined]
        until(lambda: time.monotonic() - slept_at >= asleep_s, "the leader has slept long enough", asleep_s + 5)
        events = cluster.client.perform(calls.get_master()).index
        os.kill(cluster.masters[0].pid, signal.SIGCONT)
        process = cluster.masters[0].process
        assert process is not None
        assert process.wait(20) != 0, "a master that was replaced ends, and says so"
        assert "leads no longer" in cluster.masters[0].last_lines()
        page = cluster.client.perform(calls.list_events(after=str(events), limit=1000))
        ended = ("member_lost", "member_ending", "allocation_ending")
        strange = [event for event in page.items if event.kind in ended and "verdict=done" not in event.text]
        assert strange == []
        assert task.wait(60).task.reason == "done"  # type: ignore[attr-defined]
        assert runs(cluster, "long") == 1


@pytest.mark.slow
def test_a_leader_that_slept_through_its_replacement_changes_nothing(tmp_path: Path, server: str) -> None:
    stop_and_continue(tmp_path, server, asleep_s=4)


@pytest.mark.slow
def test_a_leader_that_slept_for_half_a_minute_changes_nothing(tmp_path: Path, server: str) -> None:
    stop_and_continue(tmp_path, server, asleep_s=30)


@contextmanager
def postgres_on(address: str) -> Iterator[int]:
    """A server that listens there for anybody; its port."""
    port = free_port()
    with temporary_server({"listen_addresses": address, "port": str(port)}) as server:
        with (server.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.0.0.0/8 trust\n")
        os.kill(int((server.data / "postmaster.pid").read_text().split()[0]), signal.SIGHUP)
        yield port


@pytest.mark.skipif(not namespaces.CAN, reason=namespaces.WHY_NOT)
def test_the_standby_takes_over_when_the_leaders_network_goes_dark(tmp_path: Path) -> None:
    """No packet comes from the old leader any more, not even the end of its connections."""
    with namespaces.namespace(1) as there, postgres_on(there.outside) as port:
        db = f"postgresql://clutch@{there.outside}:{port}/postgres"
        with Cluster(tmp_path, db=db, masters=2) as cluster:
            leader = cluster.masters[0]
            leader.prefix = there.prefix
            leader.arguments = (*leader.arguments, f"--host={there.inside}", "--insecure")
            cluster.urls = (f"http://{there.inside}:{cluster.ports[0]}", cluster.urls[1])
            cluster.start()
            cluster.add_agent("one", slots=4)
            cluster.wait_nodes("one")
            task = count(cluster, "dark", 200)
            until(lambda: runs(cluster, "dark") == 1, "it runs")
            there.cut()
            until(lambda: serves(cluster.urls[1]), "the standby serves", 30)
            cluster.wait_nodes("one")
            assert count(cluster, "light", 3).wait(60).task.reason == "done"  # type: ignore[attr-defined]
            assert task.wait(60).task.reason == "done"  # type: ignore[attr-defined]
            assert runs(cluster, "dark") == 1
            there.mend()
            process = leader.process
            assert process is not None
            assert process.wait(60) != 0, "the old leader learns that it was replaced, and ends"


HALF_A_QUESTION = """
import asyncio, sys
from clutch.backends.journal.postgres_session import connect_writer

async def main():
    connection = await connect_writer(sys.argv[1], "test")
    async with connection.transaction():
        await connection.execute("LOCK TABLE guarded IN EXCLUSIVE MODE")
        await connection.prepare("SELECT 1")  # the server now waits for the rest of the question
        print("asked", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.skipif(not namespaces.CAN, reason=namespaces.WHY_NOT)
async def test_half_a_question_from_somebody_cut_off_holds_no_lock_for_long() -> None:
    with namespaces.namespace(2) as there, postgres_on(there.outside) as port:
        address = f"postgresql://clutch@{there.outside}:{port}/postgres"
        heir = await asyncpg.connect(address)
        await heir.execute("CREATE TABLE guarded (id bigint)")
        program = (*there.prefix, sys.executable, "-c", HALF_A_QUESTION, address)
        asking = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        try:
            assert asking.stdout is not None and await asking.stdout.readline() == b"asked\n"
            there.cut()
            await heir.execute("SET lock_timeout = '30s'")
            await heir.execute("TRUNCATE guarded")
        finally:
            asking.kill()
            await asking.wait()
            await heir.close()
