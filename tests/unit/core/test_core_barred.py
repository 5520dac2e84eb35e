"""A node that lacks a task's data is not tried again for a while; others are. What no node has is not waited for for
ever."""

from __future__ import annotations

from house import House, names, trial_spec
from msgspec.structs import replace

from clutch.core.decisions.members import BARRED_S
from clutch.core.freezing import freeze, thaw
from clutch.master.sentences import of_live
from clutch.testing.stage import POOL
from clutch.wire import events as e
from clutch.wire.api import WhyWaiting
from clutch.wire.ids import TaskId
from clutch.wire.messages import ExitCause
from clutch.wire.outcomes import TaskState
from clutch.wire.specs import Autoscale

MISSING = "/data/images is not there on node n"


def lacks_data(house: House, task: TaskId) -> list[str]:
    return names(house.leaves(task, code=127, cause=ExitCause.NO_DATA, reason=MISSING))


def test_it_goes_to_another_node_at_once() -> None:
    house = House().nodes(1, 1)
    task = house.running(trial_spec("t", max_restarts=0))
    first = house.node_of(task)
    assert "NodeBarred" in lacks_data(house, task)
    assert house.state_of(task) is TaskState.RUNNING
    assert house.node_of(task) != first
    assert house.state.tasks[task].failures == 0, "it is not its own failure"
    house.sound()


def test_where_no_node_has_it_the_task_waits_and_says_where_what_is_missing() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    lacks_data(house, task)
    assert house.state_of(task) is TaskState.QUEUED
    waits = WhyWaiting(code="excluded", detail="no node will do", position=0)
    assert MISSING in of_live(house.state.tasks[task], None, [], waits, {}, house.now)
    bar = house.state.tasks[task].barred[0]
    assert bar.detail == MISSING and bar.until == house.now + BARRED_S
    house.pass_time(BARRED_S - 1)
    assert house.state_of(task) is TaskState.QUEUED
    house.pass_time(2)
    assert house.state_of(task) is TaskState.RUNNING, "by then it may be there"
    assert not house.state.tasks[task].barred
    house.sound()


def test_a_bar_outlives_its_master_and_ends_with_its_task() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    lacks_data(house, task)
    thawed = thaw(freeze(house.state), {})
    assert thawed.tasks[task].barred == house.state.tasks[task].barred
    assert thawed.deadlines.next_at() is not None
    house.do(e.Cancel(task=task))
    assert house.ended_as(task) == "cancelled"
    house.pass_time(BARRED_S + 1)
    house.sound()


def test_the_same_node_again_moves_its_bar() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    lacks_data(house, task)
    house.pass_time(BARRED_S + 1)
    house.up(task)
    lacks_data(house, task)
    assert [bar.until for bar in house.state.tasks[task].barred] == [house.now + BARRED_S]


def test_one_that_never_ran_fails_when_every_node_was_tried() -> None:
    house = House().nodes(1, 1)
    task = house.submit(trial_spec("t", max_restarts=0))
    lacks_data(house, task)
    assert house.state_of(task) is TaskState.RUNNING, "there is another node"
    assert "TaskEnded" in lacks_data(house, task)
    assert house.ended_as(task) == "failed"
    detail = house.detail_of(task)
    assert "no node of pool" in detail and MISSING in detail
    house.sound()


WAITS = (TaskState.QUEUED, TaskState.RESTING)


def tried_again(house: House, task: TaskId) -> None:
    """Its bars are lifted and it has rested."""
    house.pass_time(BARRED_S + 1)
    while house.state_of(task) in WAITS:
        house.pass_time(10)


def test_one_that_never_ran_waits_where_the_pool_may_grow_or_a_node_was_not_tried() -> None:
    house = House().nodes(1, 1)
    task = house.submit(trial_spec("t"))
    house.cut("n1" if house.node_of(task) == "n0" else "n0")
    lacks_data(house, task)
    assert house.state_of(task) in WAITS, "the silent node may have it"
    house = House().nodes(1)
    house.do(e.PutPool(cause="api", pool=replace(house.state.pools[POOL], autoscale=Autoscale(nodes_max=4))))
    task = house.submit(trial_spec("t", data_wait_s=1.5 * BARRED_S))
    lacks_data(house, task)
    assert house.state_of(task) in WAITS, "the next node may have it"
    tried_again(house, task)
    lacks_data(house, task)
    assert house.state_of(task) in WAITS
    tried_again(house, task)
    lacks_data(house, task)
    assert house.ended_as(task) == "failed", "it has waited for longer than it may"
    assert "more than 180 s" in house.detail_of(task)


def test_one_that_has_run_gets_its_time_and_running_again_begins_it_anew() -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t", data_wait_s=1.5 * BARRED_S))
    for _ in range(3):
        lacks_data(house, task)
        assert house.state_of(task) in WAITS
        tried_again(house, task)
        house.up(task)  # it was there again
    lacks_data(house, task)
    for _ in range(2):
        assert house.state_of(task) in WAITS
        tried_again(house, task)
        lacks_data(house, task)
    assert house.ended_as(task) == "failed"
