"""Every operation on tasks, nodes, pools, events, code and the master, as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from clutch.sdk.call import Call, delete, get, pairs, path, post, put
from clutch.wire.api import (
    EventView,
    Health,
    MasterInfo,
    NodeDetail,
    Page,
    PoolDetail,
    ProxyAddress,
    QueueEntry,
    SetCount,
    SetPriority,
    SetSlots,
    SubmitTask,
    Submitted,
    TaskDetail,
    WhyTask,
)
from clutch.wire.metrics import Series
from clutch.wire.output import OutputLine, OutputPage, OutputQuery
from clutch.wire.specs import PoolSpec
from clutch.wire.views import NodeView, TaskView

UPLOAD_S = 600.0

# -- tasks --------------------------------------------------------------------------------------------------------


def submit(task: SubmitTask) -> Call[Submitted]:
    """Repeatable because of its key: the same key gives the same task."""
    return post(("tasks",), Submitted, task, repeatable=bool(task.key))


def list_tasks(**filters: Any) -> Call[Page[TaskView]]:
    """Filters: ``state``, ``owner``, ``workspace``, ``pool``, ``kind``, ``name``; and ``limit``, ``after``."""
    return get(("tasks",), Page[TaskView], filters)


def get_task(task: str) -> Call[TaskDetail]:
    return get(("tasks", task), TaskDetail)


def why_task(task: str) -> Call[WhyTask]:
    return get(("tasks", task, "why"), WhyTask)


def task_metrics(task: str, **fields: Any) -> Call[Page[Series]]:
    """``group``, ``name``, ``points``; with ``exact`` every point, by pages (``after``, ``limit``)."""
    return get(("tasks", task, "metrics"), Page[Series], asked_metrics(fields))


def asked_metrics(fields: dict[str, Any]) -> dict[str, Any]:
    """``superseded`` is true unless it is denied, so a False must be said: other flags are left out then."""
    return {**fields, "superseded": "false"} if fields.get("superseded") is False else fields


def move_task(task: str, move: str) -> Call[None]:
    """``stop``, ``kill``, ``pause`` or ``resume``: asking twice is the same as asking once."""
    return Call(method="POST", path=path("tasks", task, move), repeatable=True)


def set_priority(task: str, priority: int) -> Call[None]:
    return put(("tasks", task, "priority"), None, SetPriority(priority))  # type: ignore[arg-type]  # no answer


def set_count(task: str, role: str, count: int) -> Call[None]:
    return put(("tasks", task, "count"), None, SetCount(role, count))  # type: ignore[arg-type]  # no answer


def make_ticket(task: str, port: int) -> Call[ProxyAddress]:
    """An address that opens a port of a task in a browser."""
    return post(("tasks", task, "ports", str(port), "ticket"), ProxyAddress, repeatable=True)


def list_queue(**filters: Any) -> Call[Page[QueueEntry]]:
    return get(("queue",), Page[QueueEntry], filters)


def read_output(query: OutputQuery) -> Call[OutputPage]:
    """One page of lines."""
    return get(("tasks", query.task, "output"), OutputPage, output_fields(query))


def follow_output(query: OutputQuery) -> Call[None]:
    """Lines as they come, one JSON object a line, until the task has ended and everything was said."""
    fields = output_fields(query) | {"follow": True}
    return Call(method="GET", path=path("tasks", query.task, "output"), query=pairs(fields), repeatable=True)


def raw_output(line: OutputLine, start: int, stop: int) -> Call[None]:
    """The exact bytes of a line's stream, from an offset to an offset. Read as they come."""
    fields = {
        "role": line.member.role, "rank": line.member.rank, "epoch": line.fence.epoch,
        "incarnation": line.fence.incarnation, "stream": line.stream, "start": start, "stop": stop,
    }  # fmt: skip
    return raw_stream(line.member.task, fields)


def raw_stream(task: str, fields: Mapping[str, Any]) -> Call[None]:
    """The exact bytes of one stream of a member: ``role``, ``rank``, ``epoch``, ``incarnation``, ``stream``."""
    return Call(method="GET", path=path("tasks", task, "output", "raw"), query=pairs(fields), repeatable=True)


def output_fields(query: OutputQuery) -> dict[str, Any]:
    """The fields of a query that differ from their defaults, but for the task, which is in the path."""
    plain = OutputQuery(task=query.task)
    names = [field for field in msgspec.structs.fields(OutputQuery) if field.name != "task"]
    return {
        field.name: getattr(query, field.name)
        for field in names
        if getattr(query, field.name) != getattr(plain, field.name)
    }


# -- nodes and pools ----------------------------------------------------------------------------------------------


def list_nodes(**filters: Any) -> Call[Page[NodeView]]:
    """Filters: ``pool``, ``state``; and ``limit``, ``after``."""
    return get(("nodes",), Page[NodeView], filters)


def get_node(node: str) -> Call[NodeDetail]:
    return get(("nodes", node), NodeDetail)


def move_node(node: str, move: str) -> Call[None]:
    """``drain`` or ``open``."""
    return Call(method="POST", path=path("nodes", node, move), repeatable=True)


def remove_node(node: str) -> Call[None]:
    return delete(("nodes", node))


def set_slots(node: str, disabled: tuple[int, ...]) -> Call[None]:
    return put(("nodes", node, "slots"), None, SetSlots(disabled))  # type: ignore[arg-type]  # no answer


def list_pools() -> Call[Page[PoolDetail]]:
    return get(("pools",), Page[PoolDetail])


def get_pool(pool: str) -> Call[PoolDetail]:
    return get(("pools", pool), PoolDetail)


def put_pool(pool: PoolSpec) -> Call[PoolDetail]:
    return put(("pools", pool.name), PoolDetail, pool)


# -- events, code, master -----------------------------------------------------------------------------------------


def list_events(**filters: Any) -> Call[Page[EventView]]:
    return get(("events",), Page[EventView], filters)


def follow_events(after: str = "", **filters: Any) -> Call[None]:
    """Server-sent events, from the one after ``after`` on."""
    query = pairs({**filters, "after": after, "follow": True})
    return Call(method="GET", path=path("events"), query=query, repeatable=True)


def has_code(digest: str) -> Call[None]:
    """Answered with ``NotFound`` when the master does not have it."""
    return Call(method="HEAD", path=path("code", digest), repeatable=True)


def put_code(digest: str) -> Call[None]:
    """Its body is streamed by who performs it."""
    return Call(method="PUT", path=path("code", digest), repeatable=True, answer_s=UPLOAD_S)


def get_master() -> Call[MasterInfo]:
    return get(("master",), MasterInfo)


def get_health() -> Call[Health]:
    return Call(method="GET", path="/health", answer=Health, repeatable=True)
