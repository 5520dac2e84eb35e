"""The tables: every arrow that is drawn is allowed, every other is refused with its subject and the legal targets."""

from __future__ import annotations

from itertools import product

import pytest
from house import trial_spec

from clutch.core import allocation, lease, machines, member, node, task
from clutch.core.machine import Table
from clutch.core.task import Next, Task, after_allocation
from clutch.wire.errors import IllegalMove
from clutch.wire.ids import TaskId
from clutch.wire.outcomes import (
    AllocationState,
    EndReason,
    LeaseState,
    MachineState,
    MemberState,
    NodeState,
    TaskState,
    TaskWish,
    Verdict,
)

MACHINES = {
    "node": (node.TABLE, NodeState),
    "machine": (machines.TABLE, MachineState),
    "task": (task.TABLE, TaskState),
    "allocation": (allocation.TABLE, AllocationState),
    "member": (member.TABLE, MemberState),
    "lease": (lease.TABLE, LeaseState),
}

# The arrows, written a second time by hand: whoever changes a table must change this picture too.
ARROWS = {
    "node": """
        unreported: unreported ready draining suspect lost
        ready: unreported ready draining suspect
        suspect: unreported ready draining lost
        lost: unreported ready draining
        draining: unreported ready draining suspect""",
    "machine": """
        asked: launched serving stopping
        launched: serving stopping gone
        serving: asked launched stopping gone
        stopping: gone
        gone:""",
    "task": """
        queued: running paused ended
        running: queued resting paused ended
        resting: queued paused ended
        paused: queued ended
        ended:""",
    "allocation": """
        placed: running ending
        running: leaving ending
        leaving: ending
        ending: flushing ended
        flushing: ended
        ended:""",
    "member": """
        resting: wanted lost
        wanted: placed lost
        placed: starting running leaving ending exited lost
        starting: running leaving ending exited lost
        running: leaving ending exited lost
        leaving: ending exited lost
        ending: exited lost
        exited: wanted resting
        lost: wanted resting""",
    "lease": """
        wanted: held ended
        held: lingering reclaiming ended
        lingering: held reclaiming ended
        reclaiming: ended
        ended:""",
}


def drawn(name: str) -> dict[str, list[str]]:
    rows = (line.split(":") for line in ARROWS[name].strip().splitlines())
    return {source.strip(): targets.split() for source, targets in rows}


@pytest.mark.parametrize("name", MACHINES)
def test_each_state_has_a_row(name: str) -> None:
    table, states = MACHINES[name]
    assert list(table.arrows) and set(table.arrows) == set(states)
    assert {str(s): sorted(t) for s, t in table.arrows.items()} == {s: sorted(t) for s, t in drawn(name).items()}


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [(name, a, b) for name, (_, states) in MACHINES.items() for a, b in product(states, states)],
)
def test_arrows(name: str, source: str, target: str) -> None:
    table: Table = MACHINES[name][0]  # type: ignore[type-arg]
    legal = drawn(name)[source]
    if target in legal:
        assert table.allows(source, target)
        assert table.move(source, target, "thing x") is target
        return
    assert not table.allows(source, target)
    with pytest.raises(IllegalMove) as caught:
        table.move(source, target, "thing x")
    assert caught.value.object == "thing x"
    assert f"a {name} cannot go from {source} to {target}" in caught.value.cause
    for state in legal:
        assert state in caught.value.next_step
    if not legal:
        assert "the end" in caught.value.next_step


@pytest.mark.parametrize("name", MACHINES)
def test_the_diagram_has_every_arrow_once(name: str) -> None:
    lines = MACHINES[name][0].diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert sorted(line.strip() for line in lines[1:]) == sorted(
        f"{source} --> {target}" for source, targets in drawn(name).items() for target in targets
    )


def test_states_of_members_are_present_or_gone_or_wanted() -> None:
    assert {*member.PRESENT, *member.GONE, *member.ABSENT} == set(MemberState)
    assert not set(member.PRESENT) & set(member.GONE)


# -- exit rules (DESIGN section 4) --------------------------------------------------------------------------------

END = {TaskWish.STOP: "stopped", TaskWish.CANCEL: "cancelled", TaskWish.KILL: "killed"}


@pytest.mark.parametrize(("verdict", "wish", "failures"), list(product(Verdict, TaskWish, [0, 4, 5])))
def test_what_becomes_of_a_task(verdict: Verdict, wish: TaskWish, failures: int) -> None:
    """Every verdict under every wish, with restarts left, with the last one left, and with none left (of 5)."""
    one = Task(
        task=TaskId("t"), spec=trial_spec("t", max_restarts=5), order=1, submitted_at=0.0, wish=wish, failures=failures
    )
    counted = failures + 1 if verdict is Verdict.FAILED else failures
    after = after_allocation(one, verdict)
    assert after.failures == counted, "only a failure of the program counts"
    if verdict is Verdict.DONE:
        expected = Next(TaskState.ENDED, counted, EndReason.DONE)
    elif wish in END:
        expected = Next(TaskState.ENDED, counted, EndReason(END[wish]))
    elif counted == 6:
        expected = Next(TaskState.ENDED, counted, EndReason.FAILED)
    elif wish is TaskWish.PAUSE:
        expected = Next(TaskState.PAUSED, counted)
    else:
        expected = Next(TaskState.QUEUED, counted)
    assert after == expected
