"""Pause, resume, stop, cancel and kill: from every state, and again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from house import House, names, trial_spec

from clutch.core.state import KEYS_REMEMBERED
from clutch.wire import events as e
from clutch.wire.errors import BadRequest, Conflict, IllegalMove, NotFound, QuotaExceeded
from clutch.wire.ids import NodeId, TaskId
from clutch.wire.outcomes import AllocationState, TaskState, TaskWish
from clutch.wire.schedule import PreemptReason
from clutch.wire.specs import Quota

T = TaskId("t")


def queued(house: House) -> None:
    house.submit(trial_spec("t", slots=9))


def placed(house: House) -> None:
    house.submit(trial_spec("t"))


def running(house: House) -> None:
    house.running(trial_spec("t"))


def leaving(house: House) -> None:
    running(house)
    house.do(e.DrainNode(node=NodeId("n0")))


def ending(house: House) -> None:
    """Its verdict is 'failed' and its process will not go."""
    house.running(trial_spec("t", ranks=2))
    house.machines[NodeId("n0")].obedient = False
    house.leaves(T, rank=1, code=1)


def flushing(house: House) -> None:
    running(house)
    house.leaves(T, code=1, output_offset=10)


def paused(house: House) -> None:
    queued(house)
    house.do(e.Pause(task=T))


def resting(house: House) -> None:
    """Its machine failed it twice in a row."""
    house.running(trial_spec("t"))
    for _ in range(2):
        house.up(T)
        house.breaks(T)
    assert house.state_of(T) is TaskState.RESTING


ALLOCATION = {
    placed: AllocationState.PLACED,
    running: AllocationState.RUNNING,
    leaving: AllocationState.LEAVING,
    ending: AllocationState.ENDING,
    flushing: AllocationState.FLUSHING,
}
STATES: list[Callable[[House], None]] = [queued, paused, resting, *ALLOCATION]
WISHES: dict[str, tuple[e.Event, TaskWish]] = {
    "pause": (e.Pause(cause="api", task=T), TaskWish.PAUSE),
    "resume": (e.Resume(cause="api", task=T), TaskWish.RUN),
    "stop": (e.Cancel(cause="api", task=T, reason=PreemptReason.STOPPED), TaskWish.STOP),
    "cancel": (e.Cancel(cause="api", task=T), TaskWish.CANCEL),
    "kill": (e.Kill(cause="api", task=T), TaskWish.KILL),
}


def in_state(make: Callable[[House], None]) -> House:
    house = House().nodes(4)
    make(house)
    assert (
        house.state.allocations[T].state is ALLOCATION[make] if make in ALLOCATION else T not in house.state.allocations
    )
    return house


def finish(house: House) -> None:
    """Let whatever it is come to its end, without any success."""
    house.machines[NodeId("n0")].obedient = True
    house.beat("n0")
    for _ in range(3):
        house.pass_time(700.0)


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("make", STATES)
def test_every_wish_in_every_state(make: Callable[[House], None], wish: str) -> None:
    house = in_state(make)
    before = house.state.tasks[T].wish
    event, wished = WISHES[wish]
    house.do(event)
    if T in house.state.tasks:
        assert house.state.tasks[T].wish is wished
        assert house.do(event) == [], "said again it changes nothing"
    house.do(e.DrainNode(node=NodeId("n0")))  # so that a queued task stays queued
    finish(house)
    if wish == "pause":
        assert house.state_of(T) is TaskState.PAUSED
    elif wish == "resume":
        assert house.state_of(T) is TaskState.QUEUED
    else:
        assert house.ended_as(T) == {"stop": "stopped", "cancel": "cancelled", "kill": "killed"}[wish]
        house.refused(event, NotFound)
    assert before in TaskWish
    house.sound()


@pytest.mark.parametrize("make", [placed, running, leaving])
def test_kill_gives_no_window(make: Callable[[House], None]) -> None:
    house = in_state(make)
    facts = names(house.do(e.Kill(task=T)))
    assert "LeaveAsked" not in facts and facts[-1] == "TaskEnded"


@pytest.mark.parametrize(
    ("first", "then", "outcome"),
    [
        ("stop", "stop", "same"),
        ("stop", "cancel", "harsher"),
        ("stop", "kill", "harsher"),
        ("cancel", "stop", "same"),
        ("cancel", "cancel", "same"),
        ("cancel", "kill", "harsher"),
        ("stop", "pause", "refused"),
        ("stop", "resume", "refused"),
        ("cancel", "pause", "refused"),
        ("cancel", "resume", "refused"),
        ("pause", "resume", "undone"),
        ("pause", "stop", "harsher"),
    ],
)
def test_an_end_once_wished_for_can_only_become_harsher(first: str, then: str, outcome: str) -> None:
    house = in_state(running)
    house.do(WISHES[first][0])
    event, wished = WISHES[then]
    if outcome == "refused":
        error = house.refused(event, IllegalMove)
        assert error.object == "task t" and error.next_step
    elif outcome == "same":
        assert house.do(event) == []
    else:
        assert "TaskWished" in names(house.do(event))
        assert T not in house.state.tasks or house.state.tasks[T].wish is wished


def test_resumed_while_it_leaves_for_a_pause_it_comes_back() -> None:
    house = in_state(running)
    house.do(e.Pause(task=T))
    house.do(e.Resume(task=T))
    house.ack(T)
    house.leaves(T)
    assert house.state_of(T) is TaskState.RUNNING and house.state.tasks[T].epoch == 2


def test_unknown_names_are_not_found() -> None:
    house = House().nodes(1)
    for event, _ in WISHES.values():
        assert house.refused(event, NotFound).object == "task t"
    for event in (e.DrainNode(node=NodeId("x")), e.OpenNode(node=NodeId("x")), e.RemoveNode(node=NodeId("x"))):
        assert house.refused(event, NotFound).object == "node x"


# -- submission ---------------------------------------------------------------------------------------------------


def test_the_same_key_is_the_same_task() -> None:
    house = House()
    spec = trial_spec("t")
    assert names(house.tell(e.Submit(task=T, spec=spec, key="k"))) == ["TaskSubmitted"]
    assert house.tell(e.Submit(task=TaskId("other"), spec=spec, key="k")) == []
    assert house.state.keys == {"k": T}
    house.do(e.Kill(task=T))
    assert house.tell(e.Submit(task=TaskId("again"), spec=spec, key="k")) == [], "also when the task has ended"


def test_so_many_keys_are_remembered_and_no_more() -> None:
    house = House()
    for number in range(KEYS_REMEMBERED + 1):
        task = TaskId(f"t{number}")
        house.tell(e.Submit(task=task, spec=trial_spec("t"), key=f"k{number}"))
        house.tell(e.Kill(task=task))
    assert len(house.state.keys) == KEYS_REMEMBERED
    assert "k0" not in house.state.keys and "k1" in house.state.keys


def test_the_same_id_with_another_key_is_a_conflict() -> None:
    house = House()
    house.submit(trial_spec("t"), key="k")
    house.refused(e.Submit(task=T, spec=trial_spec("t"), key="l"), Conflict)
    house.refused(e.Submit(task=T, spec=trial_spec("t")), Conflict)


@pytest.mark.parametrize("scope", ["user:ada", "workspace:vision"])
def test_what_could_never_run_under_its_quota_is_refused(scope: str) -> None:
    house = House().nodes(8)
    house.do(e.SetQuota(quota=Quota(scope, 4)))
    spec = trial_spec("t", slots=2, ranks=3, owner="ada", workspace="vision")
    error = house.refused(e.Submit(task=T, spec=spec), QuotaExceeded)
    assert "6 slots" in error.cause and scope in error.cause
    fits = trial_spec("fits", slots=2, ranks=2, owner="ada", workspace="vision")
    waits = trial_spec("waits", slots=1, owner="ada", workspace="vision")
    house.running(fits)
    house.submit(waits)
    assert house.plans["pool"].why("waits").code == "quota"
    house.leaves(TaskId("fits"), rank=0)
    house.leaves(TaskId("fits"), rank=1)
    assert house.state_of(TaskId("waits")) is TaskState.RUNNING


def test_a_quota_that_is_removed_bounds_nobody() -> None:
    house = House().nodes(8)
    house.do(e.SetQuota(quota=Quota("user:ada", 1)))
    house.refused(e.Submit(task=T, spec=trial_spec("t", slots=2, owner="ada")), QuotaExceeded)
    house.running(trial_spec("holds", slots=1, owner="ada"))
    house.submit(trial_spec("waits", slots=1, owner="ada"))
    assert house.state_of(TaskId("waits")) is TaskState.QUEUED
    house.do(e.RemoveQuota(scope="user:ada"))
    house.do(e.RemoveQuota(scope="user:ada"))
    assert house.state_of(TaskId("waits")) is TaskState.RUNNING
    assert not house.state.quotas


def test_priority_of_a_waiting_and_of_a_running_task() -> None:
    house = House().nodes(1)
    house.now += 1000
    one = house.running(trial_spec("one"))
    two = house.submit(trial_spec("two"))
    assert names(house.do(e.SetPriority(task=two, priority=42))) == [], "it has it already"
    facts = house.do(e.SetPriority(task=two, priority=1))
    assert names(facts) == ["PrioritySet"] or "LeaveAsked" in names(facts)
    house.pass_time(61.0)
    assert house.state.allocations[one].state is AllocationState.LEAVING
    for wrong in (0, 100, -1):
        house.refused(e.SetPriority(task=two, priority=wrong), BadRequest)


# -- exclusion ----------------------------------------------------------------------------------------------------


def test_an_excluded_node_is_never_used_again() -> None:
    house = House().nodes(2, 2)
    task = house.running(trial_spec("t", excluded_nodes=(NodeId("n0"),)))
    assert house.node_of(task) == "n1"
    house.do(e.ExcludeNode(task=task, node=NodeId("n1")))
    assert house.do(e.ExcludeNode(task=task, node=NodeId("n1"))) == []
    assert house.do(e.ExcludeNode(task=task, node=NodeId("n0"))) == [], "its spec said so"
    house.add_node("n2", 1)
    house.running(trial_spec("other", excluded_nodes=(NodeId("n0"), NodeId("n1"))))
    house.leaves(task, code=1)
    assert house.state_of(task) is TaskState.QUEUED
    assert house.plans["pool"].why(task).code == "excluded"
    house.add_node("n3")
    assert house.node_of(task) == "n3"
    house.refused(e.ExcludeNode(task=task, node=NodeId("nowhere")), NotFound)


# -- gangs --------------------------------------------------------------------------------------------------------


def test_a_gang_gets_all_or_nothing() -> None:
    house = House().nodes(2, 2)
    house.running(trial_spec("small"))
    gang = house.submit(trial_spec("gang", slots=2, ranks=2))
    assert house.state_of(gang) is TaskState.QUEUED
    assert not [m for m in house.state.members if m.task == gang]
    house.leaves(TaskId("small"))
    assert house.state_of(gang) is TaskState.RUNNING
    assert {house.node_of(gang, rank=0), house.node_of(gang, rank=1)} == {"n0", "n1"}
    assert house.state.allocations[gang].state is AllocationState.PLACED
    house.run(house.m(gang, rank=1))
    assert house.state.allocations[gang].state is AllocationState.PLACED, "it runs when every member does"
    house.run(house.m(gang, rank=0))
    assert house.state.allocations[gang].state is AllocationState.RUNNING
