"""Controllers: what they wish, what they are told, what they remember, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest
from house import House, names, trial_spec, workers_spec

from clutch.core import controller as c
from clutch.core.freezing import freeze, thaw
from clutch.wire import events as e
from clutch.wire.errors import BadRequest, Conflict, NotFound
from clutch.wire.ids import TaskId
from clutch.wire.outcomes import TaskState
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import TaskSpec

Wishes = list[c.Create | c.Stop | c.SetCount | c.Note | c.Wake | c.Close]
_wishes = msgspec.msgpack.Decoder(Wishes)


class Puppet:
    """Wishes exactly what it is told to wish; notes everything it hears."""

    kind = "puppet"

    def open(self, controller: str, spec: bytes) -> tuple[str, ...]:
        if spec == b"bad":
            raise BadRequest("not a puppet's spec", object=controller)
        return ()

    def decide(self, own: Any, happening: c.Happening, now: float, rng: Random) -> Iterator[c.Wish]:
        yield c.Note(f"{type(happening).__name__} {getattr(happening, 'task', '')}".strip().encode())
        if isinstance(happening, c.Told):
            yield from _wishes.decode(happening.payload)
        if isinstance(happening, c.Woken):
            yield c.Note(f"at {now:g}".encode())

    def apply(self, own: Any, note: bytes) -> tuple[str, ...]:
        return (*own, note.decode())

    def rows(self, own: Any, notes: Any) -> tuple[()]:
        return ()

    def dump(self, own: Any) -> bytes:
        return msgspec.msgpack.encode(own)

    def load(self, payload: bytes) -> tuple[str, ...]:
        return msgspec.msgpack.decode(payload, type=tuple[str, ...])


@pytest.fixture
def house() -> House:
    house = House({"puppet": Puppet()}).nodes(4)
    house.do(e.OpenController(cause="api", controller="c", kind="puppet", spec=b""))
    return house


def wish(house: House, *wishes: c.Wish) -> list[str]:
    payload = msgspec.msgpack.encode(list(wishes))
    return names(house.do(e.TellController(cause="api", controller="c", payload=payload)))


def heard(house: House) -> tuple[str, ...]:
    own: tuple[str, ...] = house.state.workloads["c"].own
    return own


def test_it_is_opened_once_and_its_spec_is_checked_first(house: House) -> None:
    assert heard(house) == ("Opened",)
    house.refused(e.OpenController(controller="c", kind="puppet", spec=b""), Conflict)
    house.refused(e.OpenController(controller="d", kind="puppet", spec=b"bad"), BadRequest)
    error = house.refused(e.OpenController(controller="d", kind="ghost", spec=b""), BadRequest)
    assert "puppet" in error.next_step
    house.refused(e.TellController(controller="d", payload=b""), NotFound)


def test_wishes_are_carried_out_in_order(house: House) -> None:
    facts = wish(house, c.Create(TaskId("c.1"), trial_spec("one")), c.Note(b"created"), c.Stop(TaskId("c.1")))
    assert facts[:6] == [
        "ControllerNoted", "TaskSubmitted", "ControllerNoted", "TaskWished", "TaskEnded", "ControllerNoted",
    ]  # fmt: skip
    assert heard(house) == ("Opened", "Told", "created", "TaskEnded c.1")
    house.sound()


def test_it_is_told_what_becomes_of_its_tasks(house: House) -> None:
    wish(house, c.Create(TaskId("c.1"), trial_spec("one")))
    assert house.state.tasks[TaskId("c.1")].controller == "c"
    house.up(TaskId("c.1"))
    house.leaves(TaskId("c.1"))
    assert heard(house)[-1] == "TaskEnded c.1"
    house.running(trial_spec("somebody-elses"))
    house.leaves(TaskId("somebody-elses"))
    assert heard(house)[-1] == "TaskEnded c.1"


def test_a_stop_lets_the_task_leave(house: House) -> None:
    wish(house, c.Create(TaskId("t"), trial_spec("t")))
    house.up(TaskId("t"))
    wish(house, c.Stop(TaskId("t")))
    leave = house.state.allocations[TaskId("t")].leave
    assert leave is not None and leave.reason is PreemptReason.STOPPED
    house.ack(TaskId("t"))
    house.leaves(TaskId("t"))
    assert house.ended_as(TaskId("t")) == "stopped"
    assert "TaskEnded" not in wish(house, c.Stop(TaskId("t"))), "what has ended cannot be stopped, and that is no error"


@pytest.mark.parametrize(
    "spec", [trial_spec("t", priority=0), msgspec.structs.replace(trial_spec("t"), pool="nowhere")], ids=["bad", "pool"]
)
def test_a_refused_task_does_not_stop_the_others(house: House, spec: TaskSpec) -> None:
    wish(house, c.Create(TaskId("bad"), spec), c.Create(TaskId("good"), trial_spec("t")))
    assert house.state_of(TaskId("good")) is TaskState.RUNNING
    assert heard(house) == ("Opened", "Told", "Refused bad", "RunBegan good")


def test_a_refused_size_does_not_stop_the_others(house: House) -> None:
    """It comes after facts: an error here would have ended the master."""
    wish(house, c.Create(TaskId("w"), workers_spec("w", workers=1)))
    facts = wish(house, c.SetCount(TaskId("w"), "worker", 99), c.SetCount(TaskId("w"), "ghost", 1), c.Note(b"on"))
    assert "RoleResized" not in facts
    assert heard(house)[2:] == ("RunBegan w", "Told", "on", "Refused w", "Refused w")
    assert "RoleResized" in wish(house, c.SetCount(TaskId("w"), "worker", 2))
    wish(house, c.SetCount(TaskId("ended"), "worker", 2))
    assert heard(house)[-1] == "Told"


def test_it_hears_of_members_that_live_one_by_one(house: House) -> None:
    wish(house, c.Create(TaskId("w"), workers_spec("w", workers=1)), c.Create(TaskId("t"), trial_spec("t")))
    house.up(TaskId("w"))
    house.up(TaskId("t"))
    house.leaves(TaskId("w"), "worker", code=1)
    assert heard(house)[-1] == "MemberGone"
    house.leaves(TaskId("t"), code=1)
    assert "MemberGone" not in heard(house)[-1], "a trial's members are its allocation's business"


def test_an_alarm_goes_off_once(house: House) -> None:
    wish(house, c.Wake(house.now + 10.0))
    wish(house, c.Wake(house.now + 20.0))
    assert house.pass_time(19.0) == [], "a later wish replaces an earlier one"
    assert names(house.pass_time(1.0)) == ["ControllerAlarmed", "ControllerNoted", "ControllerNoted"]
    assert heard(house)[-2:] == ("Woken", f"at {house.now:g}")
    assert house.pass_time(100.0) == []
    wish(house, c.Wake(house.now + 5.0), c.Wake(0.0))
    assert house.pass_time(100.0) == [], "0 clears it"


def test_an_alarm_survives_a_snapshot_and_a_new_master(house: House) -> None:
    wish(house, c.Wake(house.now + 10.0))
    thawed = thaw(freeze(house.state), house.controllers)
    assert thawed.deadlines == house.state.deadlines
    assert thawed.workloads == house.state.workloads
    house.new_master()
    house.pass_time(10.0)
    assert "Woken" in heard(house)
    house.sound()


def test_closed_it_is_told_nothing_more(house: House) -> None:
    wish(house, c.Create(TaskId("t"), trial_spec("t")), c.Wake(house.now + 10.0))
    facts = wish(house, c.Close("enough"), c.Note(b"never carried out"))
    assert facts[-1] == "ControllerClosed"
    assert "c" not in house.state.workloads
    assert house.pass_time(20.0) == []
    house.up(TaskId("t"))
    assert "ControllerNoted" not in names(house.leaves(TaskId("t")))
    house.refused(e.TellController(controller="c", payload=b""), NotFound)
    house.sound()
