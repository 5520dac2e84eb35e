"""Fair share: the arithmetic against its definition, the policy rule by rule, and the anchor's defects as tables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yard import Yard, cell, granted, members, request, room, victims

from clutch.core.scheduling.shares import Group, fair_shares, fill
from clutch.wire.ids import RequestId
from clutch.wire.schedule import Request, WaitCode
from clutch.wire.specs import FairSharePolicy, Split

OLD = 1000.0


def fair(slots: int, nodes: int = 1, **pool: object) -> Yard:
    return Yard([room(f"n{i}", slots) for i in range(nodes)], policy=FairSharePolicy(), **pool)


def many(group: str, count: int, slots: int = 1, order: int = 0, **more: object) -> list[Request]:
    return [request(f"{group}{i}", slots, order + i, group=group, **more) for i in range(count)]


def held(yard: Yard) -> dict[str, int]:
    return dict(sorted(yard.ledger.group_slots.items()))


GROUPS = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=5
)


@settings(max_examples=300, deadline=None)
@given(specs=GROUPS, slots=st.integers(0, 24))
def test_shares_are_max_min_fair(specs, slots: int) -> None:  # type: ignore[no-untyped-def]
    """Whole slots: all that can be used is given, and no slot could move to somebody worse off."""
    groups = [Group(f"g{i}", w, i, max(d, f), f) for i, (w, d, f) in enumerate(specs)]
    if sum(group.fixed for group in groups) > slots:
        return
    shares = fill(groups, slots)
    assert sum(shares.values()) == min(slots, sum(group.demand for group in groups))
    for group in groups:
        assert group.fixed <= shares[group.name] <= group.demand
    for poor in groups:
        if shares[poor.name] == poor.demand:
            continue
        for rich in groups:
            if rich is not poor and shares[rich.name] > rich.fixed:
                assert shares[rich.name] / rich.weight <= (shares[poor.name] + 1) / poor.weight


@settings(max_examples=200, deadline=None)
@given(specs=GROUPS, slots=st.integers(1, 16), smallest=st.lists(st.integers(1, 8), min_size=5, max_size=5))
def test_shares_let_somebody_run_whenever_anybody_could(specs, slots: int, smallest: list[int]) -> None:  # type: ignore[no-untyped-def]
    groups = [Group(f"g{i}", w, i, d + smallest[i], 0, smallest[i]) for i, (w, d, _) in enumerate(specs)]
    shares = fair_shares(groups, slots)
    assert sum(shares.values()) <= slots
    able = [group for group in groups if group.smallest]
    if any(group.smallest <= slots for group in able):
        assert any(shares[group.name] >= group.smallest for group in able)
    for group in able:
        assert shares[group.name] == 0 or shares[group.name] >= group.smallest


def test_work_that_cannot_be_given_back_counts_first() -> None:
    """The anchor zeroed it before subtracting, so its holder was offered more than its share."""
    shares = fill([Group("firm", 1.0, 0, 8, fixed=6), Group("other", 1.0, 1, 8)], 8)
    assert shares == {"firm": 6, "other": 2}
    assert fill([Group("firm", 1.0, 0, 8, fixed=3), Group("other", 1.0, 1, 8)], 8) == {"firm": 4, "other": 4}


def test_the_youngest_group_is_set_aside_when_nobody_could_run() -> None:
    """Two groups want the whole pool: half of it is no use to either. The anchor's order here was arbitrary."""
    groups = [Group("young", 1.0, 9, 8, 0, 8), Group("old", 1.0, 1, 8, 0, 8), Group("middle", 1.0, 5, 8, 0, 8)]
    assert fair_shares(groups, 8) == {"old": 8, "young": 0, "middle": 0}


def test_a_group_that_could_never_run_does_not_keep_a_younger_one_from_running() -> None:
    assert fair_shares([Group("huge", 1.0, 0, 9, 0, 9), Group("young", 1.0, 1, 5, 0, 5)], 8) == {"young": 5, "huge": 0}


@pytest.mark.parametrize(
    ("weights", "expected"),
    [({"a": 1.0, "b": 1.0}, {"a": 4, "b": 4}), ({"a": 3.0, "b": 1.0}, {"a": 6, "b": 2})],
)
def test_groups_get_their_weight_of_the_slots(weights: dict[str, float], expected: dict[str, int]) -> None:
    yard = fair(8)
    for order, (name, weight) in enumerate(weights.items()):
        yard.want(*many(name, 8, order=order * 100, weight=weight))
    yard.step()
    assert held(yard) == expected
    assert yard.why("a7").code == WaitCode.SHARE


def test_what_one_does_not_want_goes_to_the_others_and_caps_hold() -> None:
    yard = fair(12)
    yard.want(*many("a", 2), *many("b", 12, order=100), *many("c", 12, order=200, max_slots=3))
    yard.step()
    assert held(yard) == {"a": 2, "b": 7, "c": 3}
    assert yard.why("c5").code in (WaitCode.GROUP_CAP, WaitCode.SHARE)


def test_those_above_their_share_give_back_newest_first_and_only_when_asked_for() -> None:
    yard = fair(4)
    for each in many("a", 4):
        yard.run(each).later(10)
    yard.later(OLD)
    assert not yard.step().preemptions
    yard.want(*many("b", 4, order=100))
    made = yard.step()
    assert victims(made) == ["a2", "a3"]
    assert {made.why(RequestId(n)).code for n in ("b0", "b1")} == {WaitCode.FREEING}
    again = yard.step()
    assert not again.preemptions and set(again.why(RequestId("b0")).blockers) <= {"a2", "a3"}
    assert again.why(RequestId("b0")).blockers
    yard.gone()
    yard.step()
    assert held(yard) == {"a": 2, "b": 2}
    for _ in range(3):
        yard.later(OLD)
        assert not yard.step().preemptions, "fair is stable"


def test_the_unpreemptible_keep_what_they_have_and_nobody_leaves_for_nothing() -> None:
    yard = fair(8)
    yard.run(*many("firm", 6, preemptible=False)).run(*many("soft", 2, order=50)).later(OLD)
    yard.want(*many("late", 4, order=100))
    made = yard.step()
    assert victims(made) == ["soft1"]
    yard.gone()
    yard.step()
    assert held(yard) == {"firm": 6, "late": 1, "soft": 1}


def test_min_run_and_preemption_off() -> None:
    yard = fair(2, min_run_s=60.0).run(*many("a", 2)).later(10)
    yard.want(*many("b", 1, order=100))
    made = yard.step()
    assert not made.preemptions and made.again_at == pytest.approx(yard.now + 50)
    yard.later(50)
    assert victims(yard.step()) == ["a1"]
    still = Yard([room("n0", 2)], policy=FairSharePolicy(preemption=False)).run(*many("a", 2)).later(OLD)
    assert not still.want(*many("b", 1, order=100)).step().preemptions


def test_two_gangs_that_each_want_everything_run_one_after_the_other() -> None:
    yard = fair(4, nodes=2)
    yard.want(request("old", Split(8), 1, group="x"), request("young", Split(8), 2, group="y"))
    assert list(granted(yard.step())) == ["old"]
    yard.later(OLD)
    assert not yard.step().preemptions
    yard.end("old")
    assert list(granted(yard.step())) == ["young"]


def test_slots_nobody_can_use_within_its_share_are_not_left_idle() -> None:
    yard = fair(4)
    yard.want(request("big", 3, 1, group="x"), *many("y", 4, order=10))
    yard.step()
    assert sum(held(yard).values()) == 4


def test_slotless_work_goes_in_order_and_cells_go_first() -> None:
    yard = fair(2)
    yard.want(
        *many("a", 3), request("cpu", members(1, 0, cpus=1), 90, group="a"), cell("c", ("n0",), 1, 99, group="nb")
    )
    made = yard.step()
    assert list(granted(made))[:2] == ["cpu", "c"]
    assert held(yard) == {"a": 1, "nb": 1}


@settings(max_examples=80, deadline=None)
@given(
    groups=st.lists(st.tuples(st.sampled_from([1.0, 2.0]), st.integers(0, 8), st.booleans()), min_size=1, max_size=4),
    slots=st.integers(1, 8),
    seed=st.integers(0, 3),
)
def test_the_policy_reaches_the_fair_shares_and_stays(groups, slots: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    """Single-slot work, all preemptible: whoever came first, in the end each group holds its max-min share."""
    yard = fair(slots, min_run_s=1.0)
    order = sorted(range(len(groups)), key=lambda g: (g * 7 + seed) % 5)
    for place in order:
        weight, count, _ = groups[place]
        yard.want(*many(f"g{place}-", count, order=place * 100, weight=weight))
        yard.step()
        yard.later(10)
    for _ in range(4):
        yard.step()
        yard.gone()
        yard.later(10)
    yard.step()
    expected = fill([Group(f"g{i}-", w, i * 100, c) for i, (w, c, _) in enumerate(groups) if c], slots)
    assert held(yard) == {name: share for name, share in sorted(expected.items()) if share}
    assert not yard.later(100).step().preemptions
