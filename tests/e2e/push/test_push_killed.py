"""A master killed with -9 between any two words of its members: what it acknowledged is kept, and meetings complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from push_ground import DEADLINE_S, Master

from clutch.runtime.client import PushClient
from clutch.runtime.http import MasterConnection
from clutch.runtime.info import Info
from clutch.runtime.preempt import PreemptionWatch
from clutch.runtime.rendezvous import meet
from clutch.testing.ports import free_port
from clutch.wire.errors import Conflict, Unavailable
from clutch.wire.push import Announce, CheckpointFile, CommitManifest, Roster

HASH = "cd" * 32


class Talk:
    """A member's calls in a thread of its own: they go on through the death of the master."""

    def __init__(self, call: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> Any:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "it still waits"
        if self.error is not None:
            raise self.error
        return self.result


Speak = Callable[[str], PushClient]


@pytest.fixture
def speak(master: Master) -> Iterator[Speak]:
    """Clients with a member's token, all closed at the end. The first address of each never answers."""
    opened: list[PushClient] = []

    def open_one(token: str) -> PushClient:
        dead = f"http://127.0.0.1:{free_port()}"
        opened.append(PushClient(MasterConnection((dead, master.url), token), try_s=5.0))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def announce(address: str) -> Announce:
    return Announce(addresses=(address,), ports=(4000,), within_s=DEADLINE_S)


def addresses(roster: Roster) -> list[str]:
    return [peer.addresses[0] for peer in roster.peers]


def waiting(master: Master, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while master.do("waiting") < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_members_that_wait_repeat_themselves_to_the_next_master(master: Master, speak: Speak) -> None:
    tokens = master.do("submit", "t", 3, "end")
    clients = [speak(tokens[str(rank)]) for rank in range(3)]
    talks = [Talk(lambda c=c, n=n: meet(c, announce(f"10.0.0.{n}"))) for n, c in enumerate(clients[:2])]
    waiting(master, 2)
    master.kill()
    assert all(talk.goes_on for talk in talks)
    master.start()
    talks.append(Talk(lambda: meet(clients[2], announce("10.0.0.2"))))
    rosters = [talk.wait() for talk in talks]
    assert [roster.rank for roster in rosters] == [0, 1, 2]
    assert all(addresses(roster) == ["10.0.0.0", "10.0.0.1", "10.0.0.2"] for roster in rosters)


def test_a_meeting_that_opened_is_remembered_for_who_had_no_answer(master: Master, speak: Speak) -> None:
    """One member was answered and has gone on; the other's answer died with the master. It need not come again."""
    tokens = master.do("submit", "t", 2, "respawn")
    one, two = (speak(tokens[str(rank)]) for rank in range(2))
    assert not one.rendezvous(Announce(addresses=("10.0.0.1",), timeout_s=0)).ready
    first = two.rendezvous(Announce(addresses=("10.0.0.2",), timeout_s=0))
    assert first.ready
    gathered = Talk(lambda: one.all_gather(1, b"one"))
    assert two.all_gather(1, b"two") == gathered.wait() == (b"one", b"two")
    master.kill()
    master.start()
    again = meet(speak(tokens["0"]), announce("10.0.0.1"))
    assert addresses(again) == ["10.0.0.1", "10.0.0.2"]
    assert speak(tokens["0"]).all_gather(1, b"other", within_s=DEADLINE_S) == (b"one", b"two")
    master.do("exit", "t", 1, 1)
    reborn = speak(master.do("tokens", "t")["1"])
    late = meet(reborn, announce("10.0.0.9"))
    assert addresses(late) == ["10.0.0.1", "10.0.0.9"] and late.version > again.version


def test_every_acknowledged_checkpoint_is_there_after_kills_at_random_moments(master: Master, speak: Speak) -> None:
    token = master.do("submit", "t", 1, "end")["0"]
    chance, acknowledged, step = Random(3), [], 0
    manifest_files = (CheckpointFile("weights", 3, HASH),)
    for _ in range(3):
        voice = speak(token)

        def commit_on(voice: PushClient = voice) -> None:
            nonlocal step
            while True:
                step += 1
                try:
                    begun = voice.begin_checkpoint(step)
                    voice.commit_checkpoint(begun.id, CommitManifest(step=step, files=manifest_files))
                except (Unavailable, Conflict):
                    return
                acknowledged.append(begun.id)

        before = len(acknowledged)
        talk = Talk(commit_on)
        deadline = time.monotonic() + DEADLINE_S
        while len(acknowledged) < before + 3:
            assert time.monotonic() < deadline and talk.goes_on
            time.sleep(0.01)
        time.sleep(chance.random() * 0.02)  # anywhere inside a commit
        master.kill()
        voice.connection.abort()
        talk.wait()
        master.start()
        found = speak(token).checkpoints()
        listed = [view.id for view in found]
        assert set(acknowledged) <= set(listed), "an acknowledged checkpoint is gone"
        assert len(listed) <= len(acknowledged) + 1, "one may have been decided and not answered"
        assert [view.id for view in found if view.latest] == listed[-1:]
        assert speak(token).info().checkpoint == listed[-1]
        step = found[-1].step
        acknowledged[:] = listed


def test_names_and_their_tenures_outlive_the_master(master: Master) -> None:
    tokens = master.do("submit", "t", 2, "end")
    one, two = master.member(tokens["0"]), master.member(tokens["1"])
    held = one.post("/names", {"name": "server/0", "value": "AQ==", "ttl_s": 600}).json()
    kept = one.post("/names", {"name": "for-ever", "ttl_s": None}).json()
    gone = one.post("/names", {"name": "gone", "ttl_s": 600}).json()
    assert one.post("/names/remove", {"name": "gone", "token": gone["token"]}).status_code == 200
    short = one.post("/names", {"name": "short", "ttl_s": 0.01}).json()
    version = two.get("/names/watch", timeout_s=0).json()["version"]
    master.kill()
    master.start()
    assert two.get("/names/entry", name="server/0").json() == held
    assert two.get("/names/entry", name="for-ever").json() == kept
    assert two.get("/names/entry", name="gone").status_code == 404
    assert two.post("/names", {"name": "server/0", "ttl_s": 9}).status_code == 409, "its holder may believe in it"
    assert one.post("/names/renew", {"name": "server/0", "token": held["token"]}).json() == held
    news = two.get("/names/watch", after=version, timeout_s=0).json()
    assert news["whole"], "another master's version means nothing, so everything is said"
    taken = two.post("/names", {"name": "server/0", "ttl_s": 9, "replace": True}).json()
    assert taken["token"] > max(held["token"], kept["token"], short["token"])


def test_work_goes_on_without_a_master_and_hears_the_next_one(master: Master) -> None:
    token = master.do("submit", "t", 1, "end")["0"]
    info = Info(task="t", masters=(master.url,), token=token)
    with PreemptionWatch(info, poll_s=30.0) as watch:
        waiting(master, 1)
        assert not watch.should_stop()
        master.kill()
        assert not watch.wait(0.5), "no answer is not a reason to stop"
        master.start()
        assert not watch.should_stop()
        master.do("cancel", "t")
        assert watch.wait(DEADLINE_S) and watch.reason == "cancelled" and not watch.stale
        assert 10 < watch.remaining_s() <= 30


def test_an_incarnation_that_is_over_stops(master: Master) -> None:
    token = master.do("submit", "t", 1, "respawn")["0"]
    with PreemptionWatch(Info(task="t", masters=(master.url,), token=token), poll_s=30.0) as watch:
        waiting(master, 1)
        master.do("exit", "t", 0, 1)
        assert watch.wait(DEADLINE_S) and watch.stale and watch.reason is None


def test_what_is_over_leaves_nothing_behind(master: Master) -> None:
    """Also when the master was killed before it had tidied up."""
    token = master.do("submit", "t", 1, "end")["0"]
    one = master.member(token)
    assert one.post("/rendezvous", {"addresses": ["a"]}).json()["ready"]
    one.post("/names", {"name": "n"})
    assert len([key for key in master.do("blobs") if key.startswith("push/")]) == 2
    master.do("exit", "t", 0, 0)
    deadline = time.monotonic() + DEADLINE_S
    while master.do("state", "t")["state"] != "ended":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    master.kill()
    master.start()
    master.do("tidy")
    assert [key for key in master.do("blobs") if key.startswith("push/")] == []
