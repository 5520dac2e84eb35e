"""Machines: as many as the waiting work can really use, never a busy one fewer."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent / "scheduling"))
from yard import Yard, members, request, room

from clutch.core.autoscale import Machine, Standing, autoscale
from clutch.wire.ids import NodeId
from clutch.wire.machines import StopReason
from clutch.wire.specs import Autoscale, Split, Spread

SCALE = Autoscale(nodes_min=0, nodes_max=4, slots_per_node=8, millicpus_per_node=32_000, idle_s=100.0)


def pool(nodes: int = 0, scale: Autoscale = SCALE, **more: object) -> Yard:
    return Yard([room(f"n{i}", 8, cpus=32) for i in range(nodes)], autoscale=scale, **more)


def running(number: int, idle_since: float | None = None) -> Machine:
    return Machine(f"m{number}", Standing.RUNNING, 0.0, NodeId(f"n{number}"), idle_since)


@pytest.mark.parametrize(
    ("wanted", "launch"),
    [
        ([], 0),
        ([request("r", 1)], 1),
        ([request(f"r{i}", 4, i) for i in range(5)], 3),
        ([request("r", Split(24))], 3),
        ([request("r", members(2, 5))], 2),  # ten slots, but not two members on one machine
        ([request("r", members(3, 1), spread=Spread.HARD)], 3),
        ([request("r", 9)], 0),  # the anchor launched for work no machine could ever hold
        ([request("r", Split(40))], 0),  # nor is anything launched for a gang beyond the pool's bound
        ([request("r", 9, 0), request("s", 1, 1)], 1),
        ([request("r", members(1, 0, cpus=33))], 0),
        ([request(f"r{i}", members(1, 1, cpus=20), i) for i in range(2)], 2),
        ([request(f"r{i}", 8, i) for i in range(9)], 4),
    ],
)
def test_as_many_as_the_waiting_work_can_use(wanted, launch: int) -> None:  # type: ignore[no-untyped-def]
    assert autoscale(pool().want(*wanted).ledger, [], 0, 0.0).launch == launch


def test_free_room_starting_machines_and_unlisted_launches_count() -> None:
    yard = pool(1).run(request("a", 6)).want(request("fits", 2, 1), request("new", 8, 2))
    assert autoscale(yard.ledger, [running(0)], 0, 0.0).launch == 1
    starting = Machine("m1", Standing.STARTING, 0.0)
    assert autoscale(yard.ledger, [running(0), starting], 0, 0.0).launch == 0
    assert autoscale(yard.ledger, [running(0)], 1, 0.0).launch == 0


def test_quotas_caps_and_headroom_are_the_schedulers() -> None:
    yard = pool(quotas={"user:ada": 8}).want(*[request(f"r{i}", 8, i, owner="ada") for i in range(3)])
    assert autoscale(yard.ledger, [], 0, 0.0).launch == 1
    kept = pool(1, interactive_headroom=4).want(request("r", 8))
    assert autoscale(kept.ledger, [running(0)], 0, 0.0).launch == 1


def test_idle_machines_go_longest_idle_first_down_to_the_minimum() -> None:
    scale = Autoscale(nodes_min=1, nodes_max=4, idle_s=100.0)
    machines = [running(0, 50.0), running(1, 20.0), running(2, 90.0), running(3)]
    made = autoscale(pool(4, scale).ledger, machines, 0, 155.0)
    assert [(stop.machine, stop.reason) for stop in made.terminate] == [("m1", "idle"), ("m0", "idle")]
    assert made.look_again_at == 190.0
    only = autoscale(pool(2, scale).ledger, machines[:2], 0, 500.0)
    assert [stop.machine for stop in only.terminate] == ["m1"]


def test_an_idle_machine_that_waiting_work_will_use_stays() -> None:
    yard = pool(2).want(request("r", 8))
    made = autoscale(yard.ledger, [running(0, 0.0), running(1, 0.0)], 0, 500.0)
    assert [stop.machine for stop in made.terminate] == ["m1"]


def test_graces_of_starting_and_disconnected_machines() -> None:
    machines = [
        Machine("m0", Standing.STARTING, 0.0),
        Machine("m1", Standing.DISCONNECTED, 0.0, NodeId("n1"), 0.0),
        Machine("m2", Standing.DISCONNECTED, 0.0, NodeId("n2"), None),
        Machine("m3", Standing.STOPPED, 0.0),
    ]
    early = autoscale(pool().ledger, machines, 0, 599.0)
    assert [stop.machine for stop in early.terminate] == ["m3"] and early.look_again_at == 600.0
    late = {stop.machine: stop.reason for stop in autoscale(pool().ledger, machines, 0, 1200.0).terminate}
    assert late == {"m0": StopReason.NEVER_CAME, "m1": StopReason.DISCONNECTED, "m3": StopReason.STOPPED}


def test_too_many_machines_are_trimmed_but_never_a_busy_one() -> None:
    scale = Autoscale(nodes_max=2, idle_s=1000.0)
    machines = [running(0), running(1), running(2), running(3, 5.0), Machine("m4", Standing.STARTING, 0.0)]
    stops = autoscale(pool(4, scale).ledger, machines, 0, 10.0).terminate
    assert [(stop.machine, stop.reason) for stop in stops] == [("m4", "over_max"), ("m3", "over_max")]


def test_a_pool_without_autoscale_is_left_alone() -> None:
    yard = Yard([]).want(request("r", 1))
    assert autoscale(yard.ledger, [], 0, 0.0) == type(autoscale(yard.ledger, [], 0, 0.0))()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), minimum=st.integers(0, 2), lag=st.integers(0, 3))
def test_it_converges_with_a_provider_that_lists_late(seed: int, minimum: int, lag: int) -> None:
    """Work comes and goes, machines start late and are listed later. Always within bounds; busy ones live; at the end
    of all work the minimum remains, and all work was done."""
    chance = Random(seed)
    scale = Autoscale(nodes_min=minimum, nodes_max=4, slots_per_node=8, millicpus_per_node=32_000, idle_s=30.0)
    yard = Yard([], autoscale=scale)
    machines: dict[str, dict] = {}  # type: ignore[type-arg]
    total = 8
    submitted = done = 0
    ends: dict[str, float] = {}
    for tick in range(120):
        yard.later(10.0)
        if submitted < total and chance.random() < 0.5:
            yard.want(request(f"r{submitted}", chance.choice([1, 4, 8, Split(16)]), submitted))
            submitted += 1
        for name, machine in machines.items():
            if machine["up_at"] <= tick and not machine["node"]:
                machine["node"] = NodeId(name)
                machine["idle"] = yard.now
                yard.ledger.put_room(room(name, 8, cpus=32))
        for name in [n for n, at in ends.items() if at <= yard.now]:
            del ends[name]
            yard.end(name)
            done += 1
        for grant in yard.step().grants:
            ends[grant.request] = yard.now + chance.uniform(10, 60)
        for machine in machines.values():
            busy = machine["node"] and yard.ledger.tenants[machine["node"]]
            machine["idle"] = None if busy else (machine["idle"] or yard.now)
        listed = [
            Machine(
                name,
                Standing.RUNNING if m["node"] else Standing.STARTING,
                m["at"],
                m["node"] or None,
                m["idle"],
            )
            for name, m in machines.items()
            if m["born"] + lag <= tick or m["node"]
        ]
        made = autoscale(yard.ledger, listed, len(machines) - len(listed), yard.now)
        for stop in made.terminate:
            machine = machines.pop(stop.machine)
            if machine["node"]:
                assert not yard.ledger.tenants[machine["node"]], "a busy machine was terminated"
                yard.ledger.drop_room(machine["node"])
        for number in range(made.launch):
            up = tick + chance.randint(1, 4)
            machines[f"m{tick:03d}-{number}"] = {"born": tick, "up_at": up, "node": "", "idle": None, "at": yard.now}
        assert minimum <= len(machines) <= 4
    assert submitted == done == total
    assert len(machines) == minimum
