"""What the priority policy promises, over random small pools: each property against the plainest statement of it."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from yard import Yard, could_fit, members, request, room

from clutch.wire.ids import NodeId, RequestId
from clutch.wire.schedule import Request, WaitCode
from clutch.wire.specs import Fit, PriorityPolicy, Split, Spread

SHAPES = st.one_of(
    st.builds(Split, st.integers(1, 6)),
    st.builds(lambda n, s, c: members(n, s, cpus=c), st.integers(1, 2), st.integers(0, 4), st.integers(0, 2)),
)


@st.composite
def requests(draw: st.DrawFn, count: int, prefix: str) -> list[Request]:
    found = []
    for number in range(draw(st.integers(0, count))):
        shape = draw(SHAPES)
        found.append(
            request(
                f"{prefix}{number}",
                shape,
                number + (100 if prefix == "w" else 0),
                priority=draw(st.sampled_from([10, 42, 42, 60])),
                owner=draw(st.sampled_from(["ada", "bob"])),
                preemptible=draw(st.sampled_from([True, True, False])),
                spread=Spread.NONE if isinstance(shape, Split) else draw(st.sampled_from(list(Spread))),
                excluded_nodes=draw(st.sampled_from([(), (), (NodeId("n0"),)])),
            )
        )
    return found


@st.composite
def yards(draw: st.DrawFn, quota: bool = True) -> Yard:
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    limits = {"user:ada": draw(st.integers(0, 8))} if quota and draw(st.booleans()) else {}
    policy = PriorityPolicy(preemption=draw(st.booleans()), backfill=draw(st.booleans()))
    rooms = [room(f"n{i}", slots, cpus=4) for i, slots in enumerate(sizes)]
    yard = Yard(rooms, limits, policy=policy, fit=draw(st.sampled_from(list(Fit))), min_run_s=60.0)
    yard.want(*draw(requests(5, "h")))
    yard.step()
    for name in list(yard.ledger.waiting):
        yard.ledger.withdraw(name)
    for name in list(yard.ledger.holdings):
        ending = draw(st.sampled_from(["runs", "runs", "ends", "leaves"]))
        if ending == "ends":
            yard.end(name)
        elif ending == "leaves":
            yard.ledger.mark(name, leaving=True)
    yard.later(draw(st.sampled_from([10.0, 100.0])))
    return yard.want(*draw(requests(5, "w")))


@settings(max_examples=250, deadline=None)
@given(yard=yards())
def test_a_plan_is_accepted_changes_nothing_and_is_the_same_again(yard: Yard) -> None:
    version = yard.ledger.version
    first, second = yard.plan(), yard.plan()
    assert yard.ledger.version == version
    assert (first.grants, first.preemptions, first.waiting()) == (second.grants, second.preemptions, second.waiting())
    yard.ledger.check()
    done = yard.step()  # rechecks and takes it; check() recounts every component
    again = yard.plan()
    assert not again.grants, "everything that could be granted was granted at once"
    assert not {p.victim for p in again.preemptions} & {p.victim for p in done.preemptions}
    if not done.more and again.again_at == done.again_at:
        assert not again.preemptions, "nobody else is asked to leave for the same reasons"


@settings(max_examples=250, deadline=None)
@given(yard=yards())
def test_gangs_are_whole_quotas_hold_and_victims_are_legal(yard: Yard) -> None:
    made = yard.plan()
    wanted = dict(yard.ledger.waiting)
    for grant in made.grants:
        (part,) = wanted[grant.request].parts
        if isinstance(part.shape, Split):
            assert sum(len(p.slots) for p in grant.placements) == part.shape.slots
            assert len({p.node for p in grant.placements}) == len(grant.placements)
        else:
            assert [len(p.slots) for p in grant.placements] == [part.shape.each.slots] * part.shape.count
            if part.spread is Spread.HARD:
                assert len({p.node for p in grant.placements}) == part.shape.count
        assert not {p.node for p in grant.placements} & set(wanted[grant.request].excluded_nodes)
    limit = yard.book.limits.get("user:ada")
    gained = sum(len(p.slots) for g in made.grants if wanted[g.request].owner == "ada" for p in g.placements)
    if limit is not None and gained:
        assert yard.book.used.get("user:ada", 0) + gained <= limit
    for preemption in made.preemptions:
        victim = yard.ledger.holdings[preemption.victim]
        beneficiary = wanted[preemption.beneficiary]
        assert yard.ledger.pool.policy.preemption
        assert victim.request.preemptible and not victim.leaving
        assert victim.request.priority > beneficiary.priority or victim.backfilled
        assert yard.now - victim.since >= yard.ledger.pool.min_run_s
    assert len({p.victim for p in made.preemptions}) == len(made.preemptions)


@settings(max_examples=250, deadline=None)
@given(yard=yards(quota=False))
def test_no_grant_takes_room_that_somebody_ahead_could_have_used(yard: Yard) -> None:
    """Priority order and FIFO: whoever waits could not have been placed before any grant behind it was made."""
    made = yard.plan()
    granted = {grant.request for grant in made.grants}
    order = sorted(yard.ledger.waiting.values(), key=lambda r: (r.priority, r.order))
    for place, each in enumerate(order):
        if each.request in granted:
            continue
        ahead = {r.request for r in order[:place]}
        before = type(made).__new__(type(made))
        before.grants = tuple(grant for grant in made.grants if grant.request in ahead)
        if could_fit(yard.ledger, each, granted_too=before):
            kept = [r for r in ahead if made.reservation(RequestId(r))]
            closed = not yard.ledger.pool.policy.backfill and ahead - granted
            assert kept or closed, f"{each.request} was passed over for nothing"
            assert (
                not each.preemptible
                or closed
                or not yard.ledger.pool.policy.preemption
                or made.why(each.request).code in (WaitCode.BEHIND, WaitCode.FREEING)
            )


@settings(max_examples=250, deadline=None)
@given(yard=yards(quota=False))
def test_victims_are_needed_each_and_every_one(yard: Yard) -> None:
    made = yard.plan()
    beneficiaries = {preemption.beneficiary for preemption in made.preemptions}
    if len(beneficiaries) != 1:
        return
    (name,) = beneficiaries
    wanted = yard.ledger.waiting[name]
    if any(note != name and made.reservation(note) for note in yard.ledger.waiting):
        return  # somebody else's promised room is not for it: the plain count below does not know that
    leaving = tuple(n for n, h in yard.ledger.holdings.items() if h.leaving)
    asked = tuple(p.victim for p in made.preemptions)
    assert could_fit(yard.ledger, wanted, without=leaving + asked)
    for fewer in combinations(asked, len(asked) - 1):
        assert not could_fit(yard.ledger, wanted, without=leaving + fewer, granted_too=_ahead(yard, made, wanted))


def _ahead(yard: Yard, made, wanted: Request):  # type: ignore[no-untyped-def]
    before = type(made).__new__(type(made))
    turn = (wanted.priority, wanted.order)
    before.grants = tuple(
        g for g in made.grants if (yard.ledger.waiting[g.request].priority, yard.ledger.waiting[g.request].order) < turn
    )
    return before


@settings(max_examples=250, deadline=None)
@given(yard=yards())
def test_every_reason_is_true(yard: Yard) -> None:
    made = yard.plan()
    holdings = tuple(yard.ledger.holdings)
    places = [waiting.position for waiting in made.waiting()]
    assert places == list(range(len(yard.ledger.waiting) - len(made.grants)))
    for waiting in made.waiting():
        wanted = yard.ledger.waiting[waiting.request]
        fits_empty = could_fit(yard.ledger, wanted, without=holdings)
        fits_now = could_fit(yard.ledger, wanted, granted_too=made)
        match waiting.code:
            case WaitCode.TOO_BIG:
                assert not fits_empty
            case WaitCode.NO_ROOM | WaitCode.FRAGMENTED | WaitCode.SPREAD | WaitCode.EXCLUDED:
                assert fits_empty and (not fits_now or waiting.blockers)
            case WaitCode.BEHIND:
                assert fits_now
            case WaitCode.FREEING:
                assert waiting.blockers and made.reservation(waiting.request)
            case WaitCode.QUOTA:
                assert yard.book.limits
            case other:
                raise AssertionError(f"unexpected {other}")
