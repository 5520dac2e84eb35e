"""Nothing waits for ever: a gang is placed though small work never stops coming.

One long history per example: small tasks of every kind keep arriving and ending, faster than slots come free, while one
gang waits. It must be placed within a bound that depends on how long the work already there runs, and not on how much
more of it comes.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yard import Yard, members, request, room

from clutch.wire.ids import RequestId
from clutch.wire.schedule import Request
from clutch.wire.specs import Fit, PriorityPolicy, Split, Spread

RUN_S = 100.0
"""How long a small task runs at most."""
STEP_S = 5.0
LEAVE_S = 10.0


def history(yard: Yard, gang: Request, seed: int, steps: int, *, preemptible: float, slots: int) -> int | None:
    """Step until the gang runs; after how many steps, or None."""
    chance = Random(seed)
    ends: dict[str, float] = {}
    leaves: dict[str, float] = {}
    number = 0

    def come(count: int) -> None:
        nonlocal number
        for _ in range(count):
            number += 1
            yard.want(
                request(
                    f"s{number}", chance.randint(1, slots), 1000 + number, preemptible=chance.random() < preemptible
                )
            )

    come(30)
    for step in range(steps):
        if step == 3:
            yard.want(gang)
        yard.later(STEP_S)
        for name in [n for n, at in leaves.items() if at <= yard.now]:
            del leaves[name]
            again = yard.ledger.holdings[RequestId(name)].request
            yard.end(name)
            yard.want(again)
        for name in [n for n, at in ends.items() if at <= yard.now and n in yard.ledger.holdings and n not in leaves]:
            del ends[name]
            yard.end(name)
        come(max(30 - len(yard.ledger.waiting), 0))  # there is always more than fits
        made = yard.step()
        for grant in made.grants:
            ends[grant.request] = yard.now + chance.uniform(STEP_S, RUN_S)
        for preemption in made.preemptions:
            leaves[preemption.victim] = yard.now + LEAVE_S
        if gang.request in yard.ledger.holdings:
            return step
    return None


SHAPES = st.sampled_from(
    [Split(12), members(3, 4), members(2, 4), Split(8, even=True), members(5, 2), Split(10, max_nodes=3)]
)


@settings(max_examples=60, deadline=None)
@given(
    shape=SHAPES,
    seed=st.integers(0, 10_000),
    preemptible=st.sampled_from([0.0, 0.5, 1.0]),
    preemption=st.booleans(),
    backfill=st.booleans(),
    fit=st.sampled_from(list(Fit)),
    spread=st.sampled_from(list(Spread)),
)
def test_a_gang_is_placed_though_small_work_keeps_coming(  # type: ignore[no-untyped-def]
    shape, seed, preemptible, preemption, backfill, fit, spread
) -> None:
    policy = PriorityPolicy(preemption=preemption, backfill=backfill)
    yard = Yard([room(f"n{i}", 4) for i in range(5)], policy=policy, fit=fit, min_run_s=30.0)
    spread = Spread.NONE if isinstance(shape, Split) or shape.count > 5 else spread
    gang = request("gang", shape, 500, spread=spread)
    placed = history(yard, gang, seed, 80, preemptible=preemptible, slots=3)
    assert placed is not None, "the gang starved"
    # Everything that was there when it came has ended after RUN_S; then come min_run_s and the leaving of backfill.
    assert placed <= 3 + (RUN_S + 30.0 + LEAVE_S) / STEP_S + 3


@pytest.mark.parametrize("preemption", [True, False])
def test_a_gang_of_two_roles_is_placed_too(preemption: bool) -> None:
    from clutch.wire.schedule import Part

    yard = Yard([room(f"n{i}", 4) for i in range(4)], policy=PriorityPolicy(preemption=preemption), min_run_s=30.0)
    parts = (Part("trainer", members(2, 4)), Part("actor", members(4, 1, cpus=4)))
    assert history(yard, request("gang", order=500, parts=parts), 4, 80, preemptible=0.5, slots=3) is not None


def test_without_reservations_it_would_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history is hard enough: with reservations switched off the same gang never runs."""
    from clutch.core.scheduling import priority

    monkeypatch.setattr(priority, "RESERVATIONS", 0)
    yard = Yard([room(f"n{i}", 4) for i in range(5)], policy=PriorityPolicy(), min_run_s=30.0)
    assert history(yard, request("gang", members(3, 4), 500), 1, 200, preemptible=0.0, slots=3) is None


def test_slotless_work_is_not_starved_by_smaller_slotless_work() -> None:
    yard = Yard([room("n0", 0, cpus=8)])
    yard.run(request("a", members(1, 0, cpus=4), 0, preemptible=False))
    yard.want(request("large", members(1, 0, cpus=8), 1, preemptible=False))
    for number in range(5):
        yard.want(request(f"s{number}", members(1, 0, cpus=1), 10 + number, preemptible=False))
        assert not yard.step().grants
    yard.end("a")
    assert [grant.request for grant in yard.step().grants] == ["large"]
