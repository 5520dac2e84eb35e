"""What users and strangers do wrong to a gang: each is a clear error on record, and nothing hangs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from gang_ground import Gang, Gangs, environment_of

from clutch.testing.cluster import until


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gangs]:
    with Gangs(tmp_path_factory.mktemp("gangs"), 2, 2, cables=False) as made:
        yield made


def test_one_file_of_a_checkpoint_with_different_bytes_from_two_ranks(ground: Gangs) -> None:
    gang = ground.start({"steps": 6, "every": 3, "clash": 3})
    gang.ended("failed")
    said = "checkpoint of step 3: weights has different contents on ranks 0, 1, 2, 3"
    assert said in gang.trial.detail, gang.story()
    assert any(said in line and "name it by its rank" in line for line in gang.output())
    assert gang.trial.checkpoint == "", "nobody goes on from half of it"


def test_more_ranks_than_slots(ground: Gangs) -> None:
    """Of a node: where its slots will be is known when it has them."""
    gang = ground.start({"steps": 6}, launch={"name": "ranks", "processes": 3})
    gang.ended("failed")
    assert "3 processes" in gang.trial.detail and "slots" in gang.trial.detail, gang.story()


def test_more_ranks_than_slots_where_that_is_meant(ground: Gangs) -> None:
    gang = ground.start({"steps": 6}, launch={"name": "ranks", "processes": 3, "oversubscribe": True})
    gang.size = 6
    gang.ended()
    assert len(gang.begun(1)) == 6


def test_more_slots_than_there_are_wait_and_say_so(ground: Gangs) -> None:
    gang = ground.start({"steps": 6}, resources={"slots_per_trial": 6})
    waiting = gang.until(lambda: gang.detail.waiting, "why it waits")
    assert "6" in str(waiting) and "4" in str(waiting), waiting
    gang.move("kill")
    gang.ended("cancelled")


def test_strangers_at_a_members_port_change_nothing(ground: Gangs, tmp_path: Path) -> None:
    """A web browser, somebody who says nothing, and ZeroMQ without a key, while the gang trains."""
    calm = ground.start({"steps": 30}, seed=5)
    calm.ended()
    gate = tmp_path / "gate"
    gang = ground.start({"steps": 30, "gate": str(gate)}, seed=5)
    chief = environment_of(gang.begun(1)[0].pid)
    place = ("127.0.0.1", int(chief["CLUTCH_COMMS_PORT"]))
    with zmq.Context() as context, context.socket(zmq.DEALER) as knocks, socket.create_connection(place, 5):
        knocks.set(zmq.LINGER, 0)
        knocks.connect(f"tcp://{place[0]}:{place[1]}")
        knocks.send(b"let me in")
        with socket.create_connection(place, 5) as browser, suppress(ConnectionResetError):
            browser.sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n" + b"\0" * 64)
            assert b"HTTP" not in browser.recv(100)
        until(lambda: refused(gang), f"the chief's output says who was refused:\n{gang.story()}")
        gate.touch()
        gang.ended()
    assert gang.losses() == calm.losses()
    assert gang.trial.restarts == 0


def refused(gang: Gang) -> list[str]:
    return [line for line in gang.output() if "clutch: " in line and ("refused" in line or "introduce" in line)]
