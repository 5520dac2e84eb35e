"""Tasks over HTTP: submitted, listed, looked at, moved, explained."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any, Literal, cast

import msgspec
from litestar import get, post, put
from litestar.di import Provide
from litestar.params import Parameter

from clutch.master.access.caller import Caller
from clutch.master.api.code import share_code
from clutch.master.api.paging import After, Limit, StateWord, Word, check_cursor, paged, words
from clutch.master.details import member_detail, use_of, waiting_of, whereabouts
from clutch.master.finding import find_task
from clutch.master.history import History
from clutch.master.sentences import awaited, of_ended, of_live
from clutch.master.services import Services
from clutch.master.submission import key_of, spec_of, task_id
from clutch.wire import events as e
from clutch.wire.access import Needs
from clutch.wire.api import (
    API,
    Moved,
    MovedTasks,
    Page,
    SetCount,
    SetPriority,
    SubmitTask,
    Submitted,
    TaskDetail,
    TaskIds,
    TaskStory,
    WhyTask,
)
from clutch.wire.errors import BadRequest, ClutchError, Conflict, IllegalMove, NotFound
from clutch.wire.ids import TaskId
from clutch.wire.outcomes import TaskState
from clutch.wire.programs import Program, program_in
from clutch.wire.resources import ANY, usual_kind
from clutch.wire.views import AllocationView, TaskView

TASKS = f"{API}/tasks"
TASK = f"{TASKS}/{{task:str}}"
LIVE = tuple(str(state) for state in TaskState if state is not TaskState.ENDED)
ALLOCATIONS_SHOWN = 100
BULK_MAX = 1_000
TRIES = 3
NUMBER_MAX = 2**31
FOREVER = float("inf")

Name = Annotated[str, Parameter(max_length=128, description="Its id, a unique beginning of it, or its name.")]
Order = Literal[
    "submitted_at", "-submitted_at", "ended_at", "-ended_at", "priority", "-priority", "name", "-name", "key", "-key"
]


# -- submitting ---------------------------------------------------------------------------------------------------


@post(TASKS, operation_id="submit_task", tags=["tasks"], opt={"needs": Needs.EDITOR})
async def submit_task(services: Services, caller: Caller, data: SubmitTask) -> Submitted:
    """Submit a task. The same key gives the same task, so it is safe to repeat."""
    caller.require(data.workspace, f"workspace {data.workspace}")
    data = with_kind(services, data)
    key = key_of(caller.name, data.key)
    for left in reversed(range(TRIES)):
        task = task_id(data.kind or "task", secrets.token_bytes(8))
        spec = spec_of(data, task, caller.name)
        await check_place(services, data.workspace, data.project)
        await share_code(services, caller, data.program.code, data.workspace)
        try:
            known = await services.loop.ask(e.Submit(cause=f"api:{caller.name}", task=task, spec=spec, key=key))
        except Conflict as error:
            if error.object != f"task {task}" or not left:
                raise
            continue  # the id is taken: another one
        return Submitted(task=known, name=data.name or known)
    raise AssertionError("the last try returns or raises")


def with_kind(services: Services, wish: SubmitTask) -> SubmitTask:
    """Slots of no kind are of that which the pool has, so that a laptop without a GPU runs what asks for a slot. While
    the pool has none, the kind stays open."""
    if wish.resources.kind not in ("", ANY):
        return wish
    nodes = [node for node in services.loop.state.nodes.values() if node.pool == wish.pool]
    kind = usual_kind({slot.kind for node in nodes for slot in node.capacity.slots})
    return msgspec.structs.replace(wish, resources=msgspec.structs.replace(wish.resources, kind=kind))


async def check_place(services: Services, workspace: str, project: str) -> None:
    """A role over the cluster holds in workspaces that do not exist, too: a task must be in one that does."""
    places = services.access.store
    if (await places.workspaces.get(workspace)).archived:
        raise Conflict("it is archived and takes nothing new", object=f"workspace {workspace}")
    if project and (await places.projects.get(workspace, project)).archived:
        raise Conflict("it is archived and takes nothing new", object=f"project {workspace}/{project}")


# -- looking ------------------------------------------------------------------------------------------------------


class Window(msgspec.Struct, frozen=True):
    """Which part of a list, in which order."""

    limit: int
    after: str
    order: str


async def give_window(limit: Limit = 100, after: After = "", order: Order = "-submitted_at") -> Window:
    return Window(limit, check_cursor(after), order)


async def give_filters(
    states: StateWord = "", owner: Word = "", pool: Word = "", kind: Word = "", project: Word = "", name: Word = ""
) -> dict[str, tuple[str, ...]]:
    """What the tasks of a list must match, by column."""
    given = {"state": states, "owner": owner, "pool": pool, "kind": kind, "project": project, "name": name}
    return {column: words(value, column) for column, value in given.items() if value}


@get(
    TASKS,
    operation_id="list_tasks",
    tags=["tasks"],
    opt={"needs": Needs.VIEWER},
    dependencies={"window": Provide(give_window), "filters": Provide(give_filters)},
)
async def list_tasks(
    services: Services,
    caller: Caller,
    window: Window,
    filters: dict[str, tuple[str, ...]],
    workspace: Word = "",
    live: bool = False,
) -> Page[TaskView]:
    """Tasks of the workspaces you may read, the newest first unless told otherwise."""
    visible = caller.filters()
    where: dict[str, str | int | tuple[str, ...]] = dict(filters)
    states = filters.get("state", ())
    if live or (states and all(state in LIVE for state in states)):
        where["ended_at"] = 0  # there is an index of those who live
    asked = words(workspace, "workspace")
    if visible is not None:
        asked = tuple(name for name in visible if not asked or name in asked)
    if asked or visible is not None:
        where["workspace"] = asked
    found = await services.journal.page(TaskView.table, where, window.order, window.after, window.limit + 1)
    state = services.loop.state
    shown = [whereabouts(state, cast(TaskView, view), services.monitor) for view in found]
    return paged(shown, window.limit, lambda view: view.key)


@get(TASK, operation_id="get_task", tags=["tasks"], opt={"needs": Needs.VIEWER})
async def get_task(services: Services, caller: Caller, task: Name) -> TaskDetail:
    """Everything about a task: its program, where its members are and what they use, its runs."""
    view = await find_task(services, caller, task)
    allocations = await _allocations(services, view.key)
    state = await services.loop.settled()
    live = state.tasks.get(TaskId(view.key))
    if live is None:
        return TaskDetail(
            task=view,
            project=view.project,
            program=await _program_of_ended(services, view),
            exit_code=_exit_code(allocations),
            allocations=allocations,
        )
    return TaskDetail(
        task=view,
        project=view.project,
        program=program_in(live.spec.payload),
        waiting=waiting_of(state, services.loop.plans, live.task),
        members=tuple(member_detail(state, each, services.monitor) for each in state.members_of(live.task)),
        allocations=allocations,
    )


async def _allocations(services: Services, task: str) -> tuple[AllocationView, ...]:
    """Its runs, oldest first; of very many the last."""
    page = await services.journal.page(AllocationView.table, {"task": task}, "-epoch", "", ALLOCATIONS_SHOWN)
    return tuple(reversed(cast(list[AllocationView], page)))


def _exit_code(allocations: tuple[AllocationView, ...]) -> int | None:
    return int(allocations[-1].exit_code) if allocations and allocations[-1].exit_code else None


async def _program_of_ended(services: Services, view: TaskView) -> Program | None:
    spec = await History(services.journal, services.loop.state.index).spec(view.key, view.submitted_at)
    return program_in(spec.payload) if spec is not None else None


@get(f"{TASK}/story", operation_id="get_task_story", tags=["tasks"], opt={"needs": Needs.VIEWER})
async def get_task_story(services: Services, caller: Caller, task: Name) -> TaskStory:
    """What happened to a task, line by line, with causes."""
    view = await find_task(services, caller, task)
    return TaskStory(task=view.key, lines=await _story(services, view))


async def _story(services: Services, view: TaskView) -> tuple[str, ...]:
    history = History(services.journal, (await services.loop.settled()).index)
    return tuple(await history.story(view.key, view.submitted_at, view.ended_at or FOREVER))


@get(f"{TASK}/why", operation_id="why_task", tags=["tasks"], opt={"needs": Needs.VIEWER})
async def why_task(services: Services, caller: Caller, task: Name) -> WhyTask:
    """Where a task stands, in one sentence, and how it came to that."""
    view = await find_task(services, caller, task)
    allocations = await _allocations(services, view.key)
    story = await _story(services, view)
    state = await services.loop.settled()
    live = state.tasks.get(TaskId(view.key))
    if live is None:
        ended = await services.journal.view(TaskView.table, view.key)
        view = ended if isinstance(ended, TaskView) else view
        sentence = of_ended(view, allocations[-1] if allocations else None)
        return WhyTask(task=view.key, state=view.state, sentence=sentence, story=story)
    members = list(state.members_of(live.task))
    uses = {str(m.member): use for m in members if (use := use_of(state, m, services.monitor)) is not None}
    waiting = waiting_of(state, services.loop.plans, live.task)
    allocation = state.allocations.get(live.task)
    now = services.clock.now()
    sentence = of_live(live, allocation, members, waiting, uses, now) + awaited(state, live.task, now)
    return WhyTask(task=view.key, state=live.state, sentence=sentence, waiting=waiting, story=story)


# -- moving -------------------------------------------------------------------------------------------------------


async def _move(services: Services, view: TaskView, event: e.Event) -> None:
    """What was asked for is durable. ``IllegalMove`` for a task that has ended, whenever it did."""
    try:
        if view.ended_at:
            raise NotFound("it has ended")
        await services.loop.ask(event)
    except NotFound as error:
        ended = await services.journal.view(TaskView.table, view.key)
        if not isinstance(ended, TaskView) or not ended.ended_at:
            raise
        raise IllegalMove(
            f"it has ended ({ended.reason})",
            object=f"task {view.key}",
            next_step="Submit it again to run it again.",
        ) from error


def _by(caller: Caller) -> str:
    return f"api:{caller.name}"


@post(f"{TASK}/stop", operation_id="stop_task", tags=["tasks"], opt={"needs": Needs.EDITOR}, status_code=204)
async def stop_task(services: Services, caller: Caller, task: Name) -> None:
    """Ask a task to leave, then end it: it may save its work within its window."""
    view = await find_task(services, caller, task)
    await _move(services, view, e.Cancel(cause=_by(caller), task=TaskId(view.key)))


@post(f"{TASK}/kill", operation_id="kill_task", tags=["tasks"], opt={"needs": Needs.EDITOR}, status_code=204)
async def kill_task(services: Services, caller: Caller, task: Name) -> None:
    """End a task now."""
    view = await find_task(services, caller, task)
    await _move(services, view, e.Kill(cause=_by(caller), task=TaskId(view.key)))


@post(f"{TASK}/pause", operation_id="pause_task", tags=["tasks"], opt={"needs": Needs.EDITOR}, status_code=204)
async def pause_task(services: Services, caller: Caller, task: Name) -> None:
    """Give a task's resources back until it is resumed."""
    view = await find_task(services, caller, task)
    await _move(services, view, e.Pause(cause=_by(caller), task=TaskId(view.key)))


@post(f"{TASK}/resume", operation_id="resume_task", tags=["tasks"], opt={"needs": Needs.EDITOR}, status_code=204)
async def resume_task(services: Services, caller: Caller, task: Name) -> None:
    """Queue a paused task again."""
    view = await find_task(services, caller, task)
    await _move(services, view, e.Resume(cause=_by(caller), task=TaskId(view.key)))


@put(f"{TASK}/priority", operation_id="set_task_priority", tags=["tasks"], opt={"needs": Needs.EDITOR}, status_code=204)
async def set_task_priority(services: Services, caller: Caller, task: Name, data: SetPriority) -> None:
    """Change a task's priority; 1 is the most important."""
    view = await find_task(services, caller, task)
    await _move(services, view, e.SetPriority(cause=_by(caller), task=TaskId(view.key), priority=data.priority))


@put(f"{TASK}/count", operation_id="set_task_count", tags=["tasks"], opt={"needs": Needs.EDITOR}, status_code=204)
async def set_task_count(services: Services, caller: Caller, task: Name, data: SetCount) -> None:
    """Change how many members a role has."""
    view = await find_task(services, caller, task)
    if not 0 <= data.count < NUMBER_MAX:
        raise BadRequest(f"{data.count} is not a number of members", object=f"task {view.key}", path="count")
    wish = e.Resize(cause=_by(caller), task=TaskId(view.key), role=data.role, count=data.count)
    await _move(services, view, wish)


@post(f"{TASKS}/stop", operation_id="stop_tasks", tags=["tasks"], opt={"needs": Needs.EDITOR}, status_code=200)
async def stop_tasks(services: Services, caller: Caller, data: TaskIds) -> MovedTasks:
    """Stop several tasks; each is answered for by itself."""
    caller.filters()
    if len(data.tasks) > BULK_MAX:
        raise BadRequest(f"at most {BULK_MAX} at once", object="tasks", path="tasks")

    async def one(wanted: str) -> Moved:
        key = wanted
        try:
            view = await find_task(services, caller, wanted)
            key = view.key
            await _move(services, view, e.Cancel(cause=_by(caller), task=TaskId(view.key)))
        except ClutchError as error:
            return Moved(task=key, error=str(error))
        return Moved(task=key)

    return MovedTasks(tuple(await asyncio.gather(*(one(wanted) for wanted in data.tasks))))


ROUTES: list[Any] = [
    submit_task, list_tasks, get_task, get_task_story, why_task, stop_task, kill_task, pause_task, resume_task,
    set_task_priority, set_task_count, stop_tasks,
]  # fmt: skip
