"""What may come through the door: specs are checked here once, and trusted from then on.

Every error says where (a path into the spec), why, and what would be right. Nothing is corrected silently.
"""

from __future__ import annotations

import math
import re

from clutch.wire.errors import BadRequest
from clutch.wire.events import AskLease
from clutch.wire.resources import ANY, DEVICE_KINDS, Resources
from clutch.wire.specs import PRIORITIES, Members, OnDeath, PoolSpec, RoleSpec, Spread, TaskSpec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MEMBERS_MAX = 100_000
SLOTS_MAX = 100_000


class _Checker:
    """Collects what is wrong, so that one answer names all of it."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.wrong: list[tuple[str, str, str]] = []

    def need(self, holds: bool, path: str, cause: str, hint: str) -> None:
        if not holds:
            self.wrong.append((path, cause, hint))

    def whole(self, value: int, least: int, path: str, most: int = 2**62) -> None:
        right = type(value) is int and least <= value <= most
        self.need(
            right, path, f"{value!r} is not a whole number from {least} to {most}", "Give a number in that range."
        )

    def seconds(self, value: float, path: str) -> None:
        right = type(value) in (int, float) and math.isfinite(value) and value >= 0
        self.need(right, path, f"{value!r} is not a number of seconds", "Give a finite number, at least 0.")

    def close(self) -> None:
        if not self.wrong:
            return
        path, cause, hint = self.wrong[0]
        more = [f"{p}: {c}" for p, c, _ in self.wrong[1:]]
        if more:
            cause = f"{cause}; and also {'; '.join(more)}"
        raise BadRequest(cause, object=self.subject, path=path, next_step=hint)


def check_task(spec: TaskSpec) -> None:
    """Raises ``BadRequest``, naming everything that is wrong with the spec."""
    check = _Checker(f"task {spec.name!r}")
    check.need(bool(NAME.fullmatch(spec.name)), "name", "it is not a name", "Use letters, digits, '.', '_' and '-'.")
    check.need(bool(spec.kind), "kind", "it is empty", "Say what it is: trial, notebook, rl, command...")
    in_project = not spec.project or bool(NAME.fullmatch(spec.project))
    check.need(in_project, "project", "it is not a name", "Use letters, digits, '.', '_' and '-', or leave it out.")
    in_range = spec.priority in PRIORITIES
    check.need(in_range, "priority", f"{spec.priority} is not from 1 to 99", "1 is the most important, 42 the default.")
    weight_ok = math.isfinite(spec.weight) and spec.weight > 0
    check.need(weight_ok, "weight", f"{spec.weight} is not above 0", "Give a positive weight; 1 is the default.")
    check.whole(spec.max_slots, 0, "max_slots", SLOTS_MAX)
    check.whole(spec.max_restarts, 0, "max_restarts", 10_000)
    check.seconds(spec.leave_within_s, "leave_within_s")
    check.seconds(spec.data_wait_s, "data_wait_s")
    check.seconds(spec.flush_deadline_s, "flush_deadline_s")
    check.need(bool(spec.roles), "roles", "there are none", "A task has at least one role.")
    names = [role.name for role in spec.roles]
    check.need(len(names) == len(dict.fromkeys(names)), "roles", "two roles share a name", "Name each role once.")
    for number, role in enumerate(spec.roles):
        _check_role(check, role, f"roles[{number}]")
    if spec.max_slots:
        asked = sum(slots_of(role) for role in spec.roles)
        fits = asked <= spec.max_slots
        check.need(fits, "max_slots", f"its roles need {asked} slots at once", "Raise max_slots or ask for less.")
    check.close()


def slots_of(role: RoleSpec) -> int:
    """The slots a role holds while it runs at its submitted size."""
    return role.shape.count * role.shape.each.slots if isinstance(role.shape, Members) else role.shape.slots


def _check_role(check: _Checker, role: RoleSpec, path: str) -> None:
    named = bool(NAME.fullmatch(role.name)) and role.name != "cell"
    check.need(named, f"{path}.name", f"{role.name!r} is not a role's name", "Use letters, digits, '.', '_', '-'.")
    if isinstance(role.shape, Members):
        check.whole(role.shape.count, 1, f"{path}.shape.count", MEMBERS_MAX)
        _check_resources(check, role.shape.each, f"{path}.shape.each")
    else:
        shape = role.shape
        check.whole(shape.slots, 1, f"{path}.shape.slots", SLOTS_MAX)
        check.whole(shape.millicpus_per_slot, 0, f"{path}.shape.millicpus_per_slot")
        check.whole(shape.memory_bytes_per_slot, 0, f"{path}.shape.memory_bytes_per_slot")
        check.whole(shape.max_nodes, 0, f"{path}.shape.max_nodes", MEMBERS_MAX)
        if shape.kind != ANY:
            _check_kind(check, shape.kind, f"{path}.shape.kind")
        ends = role.on_death is OnDeath.END
        check.need(ends, f"{path}.on_death", "a split role cannot respawn members", "Use 'members', or on_death 'end'.")
        plain = role.spread is Spread.NONE and role.subscribes is None
        check.need(plain, path, "a split role has no spread or subscription", "Use 'members' for that.")
    if role.subscribes is not None:
        check.whole(role.subscribes.slots, 1, f"{path}.subscribes.slots", SLOTS_MAX)
        _check_kind(check, role.subscribes.kind, f"{path}.subscribes.kind")
    _check_bounds(check, role, path)


def _check_bounds(check: _Checker, role: RoleSpec, path: str) -> None:
    check.whole(role.count_min, 0, f"{path}.count_min", MEMBERS_MAX)
    check.whole(role.count_max, 0, f"{path}.count_max", MEMBERS_MAX)
    if not role.count_max:
        return
    resizable = isinstance(role.shape, Members) and role.count_min <= role.shape.count <= role.count_max
    cause = f"its size is not between count_min {role.count_min} and count_max {role.count_max}"
    check.need(resizable, f"{path}.count_max", cause, "Start it at a size it may have.")


def _check_resources(check: _Checker, each: Resources, path: str) -> None:
    check.whole(each.slots, 0, f"{path}.slots", SLOTS_MAX)
    check.whole(each.millicpus, 0, f"{path}.millicpus")
    check.whole(each.memory_bytes, 0, f"{path}.memory_bytes")
    if each.slots and each.kind != ANY:
        _check_kind(check, each.kind, f"{path}.kind")


def _check_kind(check: _Checker, kind: str, path: str) -> None:
    check.need(kind in DEVICE_KINDS, path, f"{kind!r} is not a device kind", f"Kinds: {', '.join(DEVICE_KINDS)}.")


def check_name(name: str, subject: str) -> None:
    """Raises ``BadRequest`` unless a name is one: others are made of it (requests, members), and must stay distinct."""
    check = _Checker(f"{subject} {name!r}")
    check.need(bool(NAME.fullmatch(name)), "id", "it is not a name", "Use letters, digits, '.', '_' and '-'.")
    check.close()


def check_ask(ask: AskLease) -> None:
    """Raises ``BadRequest``, naming everything that is wrong with a cell's wish for slots, whoever it is from."""
    check = _Checker(f"lease {ask.lease!r}")
    check.need(bool(ask.lease), "lease", "it has no name", "Name it after its session and cell.")
    check.whole(ask.cell, 1, "cell")
    check.whole(ask.slots, 1, "slots", SLOTS_MAX)
    check.seconds(ask.wait_limit_s, "wait_limit_s")
    check.seconds(ask.linger_s, "linger_s")
    check.need(bool(ask.members), "members", "no replica is named that could hold it", "Name at least one.")
    check.close()


def check_pool(pool: PoolSpec) -> None:
    """Raises ``BadRequest``, naming everything that is wrong with the pool."""
    check = _Checker(f"pool {pool.name!r}")
    check.need(bool(NAME.fullmatch(pool.name)), "name", "it is not a name", "Use letters, digits, '.', '_' and '-'.")
    check.whole(pool.interactive_headroom, 0, "interactive_headroom", SLOTS_MAX)
    for field in ("min_run_s", "node_lost_after_s", "resident_lost_after_s"):
        check.seconds(getattr(pool, field), field)
    bounded = math.isfinite(pool.max_subscription) and pool.max_subscription >= 0
    check.need(bounded, "max_subscription", f"{pool.max_subscription} is not a ratio", "Give a number, at least 0.")
    scale = pool.autoscale
    if scale is not None:
        check.whole(scale.nodes_min, 0, "autoscale.nodes_min")
        check.whole(scale.nodes_max, 1, "autoscale.nodes_max")
        ordered = scale.nodes_min <= scale.nodes_max
        check.need(ordered, "autoscale.nodes_min", "it is above nodes_max", "Swap them or raise nodes_max.")
        check.whole(scale.slots_per_node, 0, "autoscale.slots_per_node", SLOTS_MAX)
        for field in ("idle_s", "starting_s", "disconnected_s"):
            check.seconds(getattr(scale, field), f"autoscale.{field}")
        for field in ("millicpus_per_node", "memory_bytes_per_node"):
            check.whole(getattr(scale, field), 0, f"autoscale.{field}")
        _check_kind(check, scale.kind, "autoscale.kind")
    check.close()
