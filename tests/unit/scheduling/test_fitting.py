"""Where requests fit: the anchor's gaps as tables, and small pools against a search through everything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yard import Yard, could_fit, granted, members, request, room

from clutch.core.scheduling.demand import Demand
from clutch.core.scheduling.fitting import Rules, fit
from clutch.wire.ids import NodeId
from clutch.wire.schedule import Part, Room
from clutch.wire.specs import Fit, Split, Spread, Subscription


def sized(*free: int) -> list[Room]:
    return [room(f"n{i}", slots) for i, slots in enumerate(free)]


def shares(rooms: list[Room], wanted, fit: Fit = Fit.BEST) -> list[tuple[str, int]] | None:  # type: ignore[no-untyped-def]
    return granted(Yard(rooms, fit=fit).want(wanted).plan()).get("r")


@pytest.mark.parametrize(
    ("free", "slots", "expected"),
    [
        ((8, 6, 4), 12, [("n0", 8), ("n2", 4)]),  # greedy takes 8 and 4 of 6; the anchor finds nothing at all
        ((8, 7, 5), 12, [("n1", 7), ("n2", 5)]),
        ((8, 8, 8), 12, [("n0", 8), ("n1", 4)]),
        ((8, 3, 3, 2), 8, [("n0", 8)]),
        ((5, 4, 3), 4, [("n1", 4)]),
        ((3, 3, 3), 9, [("n0", 3), ("n1", 3), ("n2", 3)]),
        ((6, 5, 5, 4), 14, [("n1", 5), ("n2", 5), ("n3", 4)]),
        ((2, 2), 5, None),
    ],
)
def test_a_split_takes_the_fewest_nodes_and_leaves_least_over(free, slots, expected) -> None:  # type: ignore[no-untyped-def]
    assert shares(sized(*free), request("r", Split(slots))) == expected


@pytest.mark.parametrize(
    ("free", "split", "expected"),
    [
        ((8, 6, 6), Split(12, even=True), [("n1", 6), ("n2", 6)]),
        ((8, 4, 4, 4), Split(12, even=True), [("n1", 4), ("n2", 4), ("n3", 4)]),
        ((8, 6, 4), Split(14, even=True), None),
        ((8, 8, 8), Split(12, max_nodes=1), None),
        ((8, 12), Split(12, max_nodes=1), [("n1", 12)]),
        ((4, 4, 4), Split(12, max_nodes=2), None),
    ],
)
def test_even_and_bounded_splits(free, split, expected) -> None:  # type: ignore[no-untyped-def]
    assert shares(sized(*free), request("r", split)) == expected


def test_best_fit_fills_the_fullest_node_and_spread_the_emptiest() -> None:
    assert shares(sized(8, 3, 5), request("r", 2)) == [("n1", 2)]
    assert shares(sized(8, 3, 5), request("r", 2), Fit.SPREAD) == [("n0", 2)]


def test_cpus_and_memory_bound_members_and_splits() -> None:
    rooms = [room("n0", cpus=4), room("n1", cpus=16)]
    assert shares(rooms, request("r", members(1, 2, cpus=8))) == [("n1", 2)]
    assert shares(rooms, request("r", Split(8, millicpus_per_slot=2000))) == [("n1", 8)]
    assert shares(rooms, request("r", Split(10, millicpus_per_slot=2000))) == [("n1", 8), ("n0", 2)]
    assert shares([room("n0", memory=10)], request("r", members(1, 1, memory=11))) is None


def test_kinds_exclusion_disabled_and_unusable_nodes() -> None:
    rooms = [room("n0", kind="rocm"), room("n1", usable=False), room("n2", disabled_slots=(0, 1, 2)), room("n3")]
    assert shares(rooms, request("r", 5)) == [("n2", 5)]
    assert shares(rooms, request("r", 6)) == [("n3", 6)]
    assert shares(rooms, request("r", members(1, 2, kind="rocm"))) == [("n0", 2)]
    assert shares(rooms, request("r", 6, excluded_nodes=(NodeId("n3"),))) is None


def test_spread_soft_and_hard() -> None:
    three = request("r", members(3, 1), spread=Spread.HARD)
    assert shares(sized(8, 8), three) is None
    assert sorted(shares(sized(8, 8, 8), three) or []) == [("n0", 1), ("n1", 1), ("n2", 1)]
    soft = request("r", members(3, 1), spread=Spread.SOFT)
    assert sorted(shares(sized(8, 8), soft) or []) == [("n0", 1), ("n0", 1), ("n1", 1)]
    one_more = request("r", members(1, 1), spread=Spread.HARD, avoid=(NodeId("n0"),), first_rank=3)
    assert shares(sized(8, 8), one_more) == [("n1", 1)]
    assert shares(sized(8), one_more) is None
    assert shares(sized(8), request("r", members(1, 1), spread=Spread.SOFT, avoid=(NodeId("n0"),))) == [("n0", 1)]


def test_subscriptions_are_bounded_by_owned_slots() -> None:
    yard = Yard([room("n0", 2)], max_subscription=2.0)
    for number in range(2):
        yard.run(request(f"k{number}", members(1, 0, cpus=1), number, subscribes=Subscription(2)))
    yard.want(request("k2", members(1, 0, cpus=1), 2, subscribes=Subscription(2)))
    assert yard.why("k2").code == "no_subscription"
    yard.end("k0")
    assert granted(yard.plan()) == {"k2": [("n0", 0)]}


def test_replicas_go_where_subscriptions_are_fewest() -> None:
    yard = Yard(sized(4, 4, 4))
    for number in range(3):
        yard.run(request(f"k{number}", members(1, 0, cpus=1), number, subscribes=Subscription(4)))
    assert sorted(yard.nodes(f"k{n}")[0] for n in range(3)) == ["n0", "n1", "n2"]


def test_several_roles_are_placed_together_or_not_at_all() -> None:
    parts = (Part("trainer", members(1, 4)), Part("actor", members(6, 0, cpus=10)), Part("policy", members(2, 2)))
    both = request("r", parts=parts)
    made = Yard([room("n0", 4, cpus=32), room("n1", 4, cpus=32)]).want(both).plan()
    assert len(made.grants[0].placements) == 9
    assert not Yard([room("n0", 4, cpus=32), room("n1", 3, cpus=32)]).want(both).plan().grants
    assert not Yard([room("n0", 4, cpus=29), room("n1", 4, cpus=29)]).want(both).plan().grants


def test_a_gang_that_greedy_packing_misses_is_found() -> None:
    """Five and four fill nine; taking the larger node for the larger role first would leave the other out."""
    rooms = [room("n0", 6, cpus=2), room("n1", 4, cpus=8)]
    parts = (Part("a", members(2, 2, cpus=1)), Part("b", members(1, 4, cpus=2)), Part("c", members(1, 2, cpus=0)))
    assert Yard(rooms).want(request("r", parts=parts)).plan().grants


def test_slots_are_the_lowest_free_and_ranks_count_from_the_first() -> None:
    made = Yard([room("n0", disabled_slots=(1,))]).want(request("r", members(2, 2), first_rank=5)).plan()
    assert [(p.rank, p.slots) for p in made.grants[0].placements] == [(5, (0, 2)), (6, (3, 4))]


SHAPES = st.one_of(
    st.builds(
        Split,
        st.integers(1, 10),
        even=st.booleans(),
        max_nodes=st.integers(0, 3),
        millicpus_per_slot=st.sampled_from([0, 1000]),
    ),
    st.builds(lambda n, s, c: members(n, s, cpus=c), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)),
)


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=4),
    shape=SHAPES,
    spread=st.sampled_from(list(Spread)),
    best=st.sampled_from(list(Fit)),
)
def test_fit_finds_room_exactly_when_there_is_room(sizes, shape, spread, best) -> None:  # type: ignore[no-untyped-def]
    rooms = [room(f"n{i}", slots, cpus=cpus) for i, (slots, cpus) in enumerate(sizes)]
    yard = Yard(rooms)
    wanted = request("r", shape, spread=Spread.NONE if isinstance(shape, Split) else spread)
    found = fit(yard.ledger.index, Demand(wanted), Rules(best))
    assert (found is not None) == could_fit(yard.ledger, wanted)
    if found is not None:
        yard.want(wanted).step()
        assert sum(len(p.slots) for p in found) == Demand(wanted).slots


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
    roles=st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=3),
)
def test_gangs_of_several_roles_fit_exactly_when_all_members_can_be_seated(sizes, roles) -> None:  # type: ignore[no-untyped-def]
    rooms = [room(f"n{i}", slots, cpus=cpus) for i, (slots, cpus) in enumerate(sizes)]
    parts = tuple(Part(f"r{i}", members(n, s, cpus=c)) for i, (n, s, c) in enumerate(roles))
    found = fit(Yard(rooms).ledger.index, Demand(request("r", parts=parts)), Rules())
    wanted = sorted([(s, c) for n, s, c in roles for _ in range(n)], reverse=True)
    assert (found is not None) == _seats(wanted, [list(size) for size in sizes])


def _seats(wanted: list[tuple[int, int]], free: list[list[int]]) -> bool:
    if not wanted:
        return True
    slots, cpus = wanted[0]
    for node in free:
        if node[0] >= slots and node[1] >= cpus:
            node[0] -= slots
            node[1] -= cpus
            found = _seats(wanted[1:], free)
            node[0] += slots
            node[1] += cpus
            if found:
                return True
    return False
