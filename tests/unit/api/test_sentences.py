"""One sentence for every state of a task."""

from __future__ import annotations

import msgspec
import pytest

from clutch.core.allocation import Allocation, Leave
from clutch.core.member import Member
from clutch.core.task import Bar, Task
from clutch.master.sentences import of_ended, of_live, seconds
from clutch.wire.api import WhyWaiting
from clutch.wire.ids import Fence, MemberId, NodeId, PoolName, TaskId
from clutch.wire.link import MemberUse
from clutch.wire.outcomes import AllocationState, EndReason, MemberState, TaskState, TaskWish, Verdict
from clutch.wire.resources import Resources
from clutch.wire.schedule import Placement, PreemptReason
from clutch.wire.specs import Members, RoleSpec, TaskSpec
from clutch.wire.views import AllocationView, TaskView

T = TaskId("c-1")
SPEC = TaskSpec(kind="command", name="t", pool=PoolName("p"), roles=(RoleSpec("main", Members(1, Resources())),))
TASK = Task(task=T, spec=SPEC, order=1, submitted_at=0.0)
M = MemberId(T, "main", 0)
MEMBER = Member(
    member=M, epoch=1, incarnation=1, state=MemberState.RUNNING, placement=Placement("main", 0, NodeId("n1"))
)
RUN = Allocation(task=T, epoch=2, state=AllocationState.RUNNING, members=(M,), began_at=100.0)
USES = {str(M): MemberUse(M, Fence(1, 1, 1), "docker 27", doing="pulling an image")}
replace = msgspec.structs.replace


def said(task: Task = TASK, run: Allocation | None = None, waiting: WhyWaiting | None = None) -> str:
    return of_live(task, run, [MEMBER] if run is not None else [], waiting, USES if run is not None else {}, 160.0)


def test_what_waits() -> None:
    why = WhyWaiting(code="no_room", detail="wants 8 slots, which is not free", position=3, blockers=("c-9",))
    sentence = said(waiting=why)
    assert sentence == "It is queued: wants 8 slots, which is not free; 3 are ahead of it, and waits for c-9."
    assert "in a moment" in said()
    assert said(replace(TASK, state=TaskState.PAUSED)) == "It is paused: it waits until it is resumed."
    resting = replace(TASK, state=TaskState.RESTING, setbacks=4, rest_until=400.0)
    assert "4 times in a row" in said(resting) and "in 4 min" in said(resting)


def test_what_hindered_its_last_run_is_said_until_it_runs() -> None:
    setback = "c-1/main.0 was not started on node n1 (never_started): its image r/x could not be pulled: refused."
    hindered = replace(TASK, setback=setback, setbacks=2, epoch=1)
    waiting = WhyWaiting(code="no_room", detail="wants 1 slot", position=0)
    placed, flushing = (replace(RUN, state=state) for state in (AllocationState.PLACED, AllocationState.FLUSHING))
    over = replace(flushing, verdict=Verdict.INFRASTRUCTURE, detail=setback)
    running = replace(hindered, state=TaskState.RUNNING)
    for sentence in (
        said(replace(hindered, state=TaskState.RESTING, rest_until=400.0)),
        said(hindered, waiting=waiting),
        said(hindered),
        said(running, placed),
        said(running, over),
    ):
        assert setback.rstrip(".") in sentence and sentence.endswith(".") and ".." not in sentence
    assert setback not in said(running, RUN)
    barred = (Bar(NodeId("n1"), 500.0, "/mnt/set is not there on node n1"),)
    lacking = said(replace(hindered, state=TaskState.RESTING, barred=barred))
    assert lacking.endswith("Not tried on n1 for now: /mnt/set is not there on node n1."), "said once"


def test_a_member_that_is_wanted_again_says_what_hindered_it() -> None:
    setback = "c-1/main.0 was not started on node n1 (never_started): no image"
    absent = replace(MEMBER, placement=None, setback=setback)
    resting = replace(absent, state=MemberState.RESTING, rest_until=164.0)
    waiting = replace(absent, state=MemberState.WANTED)
    task = replace(TASK, state=TaskState.RUNNING)
    for run in (RUN, replace(RUN, state=AllocationState.PLACED)):
        assert f"c-1/main.0 rests for 4 s; before: {setback}." in of_live(task, run, [resting], None, {}, 160.0)
        assert f"c-1/main.0 waits for a place; before: {setback}." in of_live(task, run, [waiting], None, {}, 160.0)


@pytest.mark.parametrize("state", list(AllocationState))
def test_every_state_of_a_run_has_its_sentence(state: AllocationState) -> None:
    task = replace(TASK, state=TaskState.RUNNING, wish=TaskWish.RUN)
    leave = Leave(PreemptReason.PREEMPTED, 190.0, acked=True)
    run = replace(RUN, state=state, leave=leave, verdict=Verdict.FAILED, detail="main.0 exited", flush_deadline=170.0)
    sentence = said(task, run)
    expected = {
        AllocationState.PLACED: "starting on n1 with docker 27 (run 2): c-1/main.0 is pulling an image",
        AllocationState.RUNNING: "It runs on n1 with docker 27 since 60 s (run 2)",
        AllocationState.LEAVING: "asked to leave on n1 (preempted) within 30 s, and has said that it will",
        AllocationState.ENDING: "Run 2 is over (failed): main.0 exited; what still runs on n1 is being ended",
        AllocationState.FLUSHING: "its last output and metrics are being stored, for at most 10 s",
        AllocationState.ENDED: "n1",
    }
    assert expected[state] in sentence and sentence.endswith(".")


@pytest.mark.parametrize("reason", list(EndReason))
def test_every_end_has_its_sentence(reason: EndReason) -> None:
    task = TaskView(
        key="c-1", kind="command", name="t", pool="p", owner="ada", workspace="w", state="ended", reason=reason,
        detail="why so", priority=42, epoch=1, restarts=1, slots=0, submitted_at=0.0, ended_at=300.0,
    )  # fmt: skip
    run = AllocationView(
        key="c-1:1", task="c-1", epoch=1, state="ended", slots=1, nodes="n1,n2", exit="failed", began_at=100.0,
        ended_at=300.0, exit_code="7",
    )  # fmt: skip
    sentence = of_ended(task, run)
    assert "why so" in sentence and "exit code 7" in sentence and "n1, n2" in sentence and "3 min" in sentence
    assert of_ended(task, None).endswith("it never ran.")


def test_times_as_people_say_them() -> None:
    assert [seconds(value) for value in (-5, 0, 119, 600, 7260, 400_000)] == [
        "0 s",
        "0 s",
        "119 s",
        "10 min",
        "2 h 1 min",
        "4 days",
    ]
