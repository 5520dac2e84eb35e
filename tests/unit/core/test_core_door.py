"""What is refused at the door: everything wrong is named with its path, and nothing changes."""

from __future__ import annotations

import math

import msgspec
import pytest
from house import House, trial_spec

from clutch.core.checks import check_pool, check_task
from clutch.wire import events as e
from clutch.wire.errors import BadRequest, NotFound
from clutch.wire.ids import PoolName, TaskId
from clutch.wire.resources import Resources
from clutch.wire.specs import Autoscale, Members, PoolSpec, Quota, RoleSpec, Split, Subscription, TaskSpec

T = TaskId("t")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"kind": ""}, "kind"),
        ({"priority": 0}, "priority"),
        ({"priority": 100}, "priority"),
        ({"weight": 0.0}, "weight"),
        ({"weight": -1.0}, "weight"),
        ({"weight": math.nan}, "weight"),
        ({"weight": math.inf}, "weight"),
        ({"max_slots": -1}, "max_slots"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"leave_within_s": -0.1}, "leave_within_s"),
        ({"leave_within_s": math.nan}, "leave_within_s"),
        ({"flush_deadline_s": math.inf}, "flush_deadline_s"),
        ({"roles": ()}, "roles"),
        ({"shape": Members(0, Resources(slots=1))}, "roles[0].shape.count"),
        ({"shape": Members(-1, Resources(slots=1))}, "roles[0].shape.count"),
        ({"shape": Members(True, Resources(slots=1))}, "roles[0].shape.count"),
        ({"shape": Members(1, Resources(slots=-1))}, "roles[0].shape.each.slots"),
        ({"shape": Members(1, Resources(slots=1, kind="tpu"))}, "roles[0].shape.each.kind"),
        ({"shape": Members(1, Resources(millicpus=-5))}, "roles[0].shape.each.millicpus"),
        ({"shape": Members(1, Resources(memory_bytes=2**63))}, "roles[0].shape.each.memory_bytes"),
        ({"shape": Split(0)}, "roles[0].shape.slots"),
        ({"shape": Split(4, kind="tpu")}, "roles[0].shape.kind"),
        ({"shape": Split(4, max_nodes=-1)}, "roles[0].shape.max_nodes"),
        ({"count_max": 1, "ranks": 2}, "roles[0].count_max"),
        ({"max_slots": 1, "slots": 2}, "max_slots"),
    ],
)
def test_one_thing_wrong(change: dict[str, object], path: str) -> None:
    house = House().nodes(1)
    spec = trial_spec(**{"name": "t", **change})  # type: ignore[arg-type]
    error = house.refused(e.Submit(task=T, spec=spec), BadRequest)
    assert error.path == path
    assert error.cause and error.next_step and error.object.startswith("task ")


def test_everything_wrong_at_once() -> None:
    role = RoleSpec("cell", Members(-1, Resources(slots=-2)), subscribes=Subscription(0, "tpu"))
    spec = TaskSpec(kind="", name="?", pool=PoolName("pool"), roles=(role,), priority=7000, weight=-1.0)
    with pytest.raises(BadRequest) as caught:
        check_task(spec)
    said = f"{caught.value.path}: {caught.value.cause}"
    for path in (
        "name", "kind", "priority", "weight", "roles[0].name", "roles[0].shape.count", "roles[0].shape.each.slots",
        "roles[0].subscribes.slots", "roles[0].subscribes.kind",
    ):  # fmt: skip
        assert f"{path}: " in said, path


@pytest.mark.parametrize("task", ["", "lease:x", "a/b.0", "with space", "ü", "x" * 129])
def test_ids_are_names(task: str) -> None:
    """Requests of members and leases are named ``TASK/ROLE.RANK`` and ``lease:ID``: a task must not look like one."""
    error = House().refused(e.Submit(task=TaskId(task), spec=trial_spec("t")), BadRequest)
    assert error.path == "id"


def test_unknown_pools_are_named() -> None:
    house = House()
    error = house.refused(e.Submit(task=T, spec=msgspec.structs.replace(trial_spec("t"), pool="nowhere")), NotFound)
    assert error.object == "pool nowhere" and "pool" in error.next_step


@pytest.mark.parametrize(
    "pool",
    [
        PoolSpec(PoolName("")),
        PoolSpec(PoolName("p"), interactive_headroom=-1),
        PoolSpec(PoolName("p"), min_run_s=-1.0),
        PoolSpec(PoolName("p"), node_lost_after_s=math.nan),
        PoolSpec(PoolName("p"), resident_lost_after_s=math.inf),
        PoolSpec(PoolName("p"), max_subscription=-1.0),
        PoolSpec(PoolName("p"), max_subscription=math.nan),
        PoolSpec(PoolName("p"), autoscale=Autoscale(nodes_min=3, nodes_max=2)),
        PoolSpec(PoolName("p"), autoscale=Autoscale(nodes_max=2, idle_s=-1.0)),
    ],
)
def test_bad_pools(pool: PoolSpec) -> None:
    house = House()
    house.refused(e.PutPool(pool=pool), BadRequest)
    with pytest.raises(BadRequest):
        check_pool(pool)


def test_a_pool_put_again_is_no_news_and_changes_apply() -> None:
    house = House()
    pool = house.state.pools["pool"]
    assert house.tell(e.PutPool(pool=pool)) == []
    changed = msgspec.structs.replace(pool, min_run_s=5.0)
    assert len(house.tell(e.PutPool(pool=changed))) == 1
    assert house.state.ledgers["pool"].pool is changed


@pytest.mark.parametrize(
    "quota", [Quota("ada", 1), Quota("user:", 1), Quota("group:x", 1), Quota("user:ada", -1), Quota("", 1)]
)
def test_bad_quotas(quota: Quota) -> None:
    House().refused(e.SetQuota(quota=quota), BadRequest)


@pytest.mark.parametrize(("checkpoint", "step"), [("", 5), ("a", -1)])
def test_bad_checkpoints(checkpoint: str, step: int) -> None:
    house = House().nodes(1)
    task = house.running(trial_spec("t"))
    commit = e.CommitCheckpoint(
        task=task, member=house.m(task), fence=house.fence(task), checkpoint=checkpoint, step=step
    )
    house.refused(commit, BadRequest)


# -- what does not even decode ------------------------------------------------------------------------------------

GOOD = msgspec.to_builtins(trial_spec("t"))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("colour",), "red", "unknown field"),
        (("roles", 0, "colour"), "red", "unknown field"),
        (("roles", 0, "shape", "colour"), "red", "unknown field"),
        (("roles", 0, "shape", "each", "gpus"), 1, "unknown field"),
        (("priority",), "high", "Expected `int`"),
        (("priority",), 1.5, "Expected `int`"),
        (("roles",), "main", "Expected `array`"),
        (("roles", 0, "shape", "type"), "triangle", "Invalid value 'triangle'"),
        (("roles", 0, "on_death"), "cry", "Invalid enum value"),
        (("payload",), 5, "Expected `bytes`"),
    ],
)
def test_unknown_keys_and_wrong_types_do_not_decode(path: tuple[object, ...], value: object, says: str) -> None:
    raw = msgspec.json.decode(msgspec.json.encode(GOOD))
    assert msgspec.convert(raw, TaskSpec) == trial_spec("t")
    inner = raw
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(msgspec.ValidationError, match=says) as caught:
        msgspec.convert(raw, TaskSpec)
    if len(path) > 1:
        assert "$.roles[0]" in str(caught.value)


def test_missing_keys_do_not_decode() -> None:
    for key in ("kind", "name", "pool", "roles"):
        raw = {k: v for k, v in GOOD.items() if k != key}
        with pytest.raises(msgspec.ValidationError, match=f"missing required field `{key}`"):
            msgspec.convert(raw, TaskSpec)
