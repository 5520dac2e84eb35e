"""The priority policy, rule by rule."""

from __future__ import annotations

import pytest
from yard import Yard, cell, granted, members, request, room, victims

from clutch.wire.ids import NodeId, RequestId
from clutch.wire.schedule import WaitCode
from clutch.wire.specs import PriorityPolicy, Quota, Split, Spread

OLD = 1000.0


def test_the_most_important_first_then_the_first_to_come() -> None:
    yard = Yard([room("n0", 2)])
    yard.want(request("late", 1, 3), request("early", 1, 2), request("urgent", 1, 9, priority=1))
    assert list(granted(yard.step())) == ["urgent", "early"]
    waiting = yard.plan().waiting()
    assert [(w.request, w.position) for w in waiting] == [("late", 0)]


def test_victims_are_the_least_important_and_newest_and_no_more_than_needed() -> None:
    yard = Yard([room("n0", 4)])
    yard.run(request("old", 1, 0, priority=50)).later(10)
    yard.run(request("new", 1, 1, priority=50)).later(10)
    yard.run(request("mid", 1, 2, priority=45)).later(10)
    yard.run(request("low", 1, 3, priority=60)).later(OLD)
    yard.want(request("one", 1, 4, priority=42))
    assert victims(yard.plan()) == ["low"]
    yard.want(request("two", 1, 5, priority=42))
    assert victims(yard.step()) == ["low", "new"]


def test_one_victim_is_better_than_two_of_the_same_importance() -> None:
    yard = Yard([room("n0", 4), room("n1", 4)])
    yard.run(request("four", 4, 0, priority=50))
    yard.run(request("a", 2, 1, priority=50), request("b", 2, 2, priority=50)).later(OLD)
    yard.want(request("big", 4, 3))
    assert victims(yard.plan()) == ["four"]


def test_a_split_takes_one_scattered_victim_rather_than_a_whole_node() -> None:
    yard = Yard([room("n0", 4), room("n1", 4)])
    yard.run(*[request(f"s{i}", 1, i, priority=50) for i in range(8)])
    yard.end("s0", "s4", "s5").later(OLD)
    yard.want(request("r", Split(4), 9))
    assert len(victims(yard.plan())) == 1


def test_equal_or_higher_importance_and_the_unpreemptible_are_never_victims() -> None:
    yard = Yard([room("n0", 3)])
    yard.run(request("same", 1, 0, priority=42), request("higher", 1, 1, priority=10))
    yard.run(request("firm", 1, 2, priority=90, preemptible=False)).later(OLD)
    yard.want(request("r", 1, 3, priority=42))
    made = yard.plan()
    assert not made.preemptions and made.why(RequestId("r")).code == WaitCode.NO_ROOM


def test_whoever_is_leaving_is_waited_for_and_nobody_is_asked_twice() -> None:
    yard = Yard([room("n0", 2)])
    yard.run(request("a", 1, 0, priority=60), request("b", 1, 1, priority=60)).later(OLD)
    yard.want(request("r", 1, 2))
    first = yard.step()
    assert victims(first) == ["b"] and first.why(RequestId("r")).code == WaitCode.FREEING
    for _ in range(3):
        again = yard.step()
        assert not again.preemptions and again.why(RequestId("r")).code == WaitCode.FREEING
        assert again.why(RequestId("r")).blockers == ("b",)
    yard.gone()
    assert granted(yard.step()) == {"r": [("n0", 1)]}


def test_each_waits_for_its_own_victims_and_takes_nobody_elses() -> None:
    """The first could sit anywhere, the second on one node only: the first must not move to the second's room."""
    yard = Yard([room("n0", 1), room("n1", 1)])
    yard.run(request("on0", 1, 0, priority=60)).later(1).run(request("on1", 1, 1, priority=60)).later(OLD)
    assert yard.nodes("on0") == ["n0"]
    yard.want(request("any", 1, 2), request("only0", 1, 3, excluded_nodes=(NodeId("n1"),)))
    first = yard.step()
    assert {(p.victim, p.beneficiary) for p in first.preemptions} == {("on1", "any"), ("on0", "only0")}
    again = yard.step()
    assert not again.preemptions
    assert [again.why(RequestId(n)).code for n in ("any", "only0")] == [WaitCode.FREEING] * 2
    assert again.reservation(RequestId("any")) == ("n1",)


def test_the_room_victims_leave_is_kept_to_the_slot_for_whom_they_leave() -> None:
    yard = Yard([room("n0", 4), room("n1", 1)])
    yard.run(request("a", 2, 0, priority=60)).later(OLD)
    yard.want(request("big", 4, 1), request("small", 1, 2, priority=70), request("other", 1, 3, priority=70))
    made = yard.step()
    assert victims(made) == ["a"]
    assert granted(made) == {"small": [("n1", 1)]}
    assert made.why(RequestId("other")).code == WaitCode.BEHIND
    assert made.why(RequestId("other")).blockers == ("big",)


def test_work_that_has_just_begun_is_waited_for_and_its_room_kept() -> None:
    yard = Yard([room("n0", 2)], min_run_s=60.0)
    yard.run(request("young", 2, 0, priority=60)).later(10)
    yard.want(request("r", 2, 1))
    made = yard.step()
    assert not made.preemptions and made.again_at == pytest.approx(yard.now + 50)
    assert made.why(RequestId("r")).blockers == ("young",)
    yard.later(50)
    assert victims(yard.step()) == ["young"]


def test_an_older_victim_is_taken_before_one_that_must_be_waited_for() -> None:
    yard = Yard([room("n0", 2)], min_run_s=60.0)
    yard.run(request("ripe", 1, 0, priority=60)).later(59).run(request("young", 1, 1, priority=60)).later(1)
    yard.want(request("r", 1, 2))
    assert victims(yard.plan()) == ["ripe"]


def test_once_a_victim_not_again_within_min_run() -> None:
    yard = Yard([room("n0", 1)], min_run_s=60.0)
    yard.run(request("low", 1, 0, priority=60)).later(100)
    yard.want(request("r", 1, 1))
    yard.step()
    yard.gone()
    yard.step()
    yard.end("r")
    yard.step()
    assert "low" in yard.ledger.holdings
    yard.later(30).want(request("r2", 1, 2))
    assert not yard.step().preemptions
    yard.later(31)
    assert victims(yard.step()) == ["low"]


def test_without_preemption_nobody_is_asked_to_leave() -> None:
    yard = Yard([room("n0", 1)], policy=PriorityPolicy(preemption=False))
    yard.run(request("low", 1, 0, priority=90)).later(OLD)
    yard.want(request("r", 1, 1, priority=1))
    assert not yard.plan().preemptions


def test_a_gang_that_is_a_victim_frees_all_its_nodes() -> None:
    yard = Yard([room("n0", 4), room("n1", 4)])
    yard.run(request("gang", Split(8), 0, priority=60)).later(OLD)
    yard.want(request("a", 4, 1), request("b", 4, 2))
    made = yard.step()
    assert victims(made) == ["gang"]
    assert [made.why(RequestId(n)).code for n in "ab"] == [WaitCode.FREEING] * 2


def test_beyond_its_bound_a_pass_lets_only_work_pass_that_can_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from clutch.core.scheduling import priority

    monkeypatch.setattr(priority, "SEARCHES", 3)
    yard = Yard([room("n0", 4), room("n1", 1)])
    yard.run(*[request(f"low{i}", 1, i, priority=60) for i in range(5)]).end("low0").later(OLD)
    yard.want(*[request(f"high{i}", 2, 10 + i, priority=10, excluded_nodes=(NodeId("n1"),)) for i in range(2)])
    yard.want(request("firm", 1, 30, priority=90, preemptible=False), request("soft", 1, 31, priority=90))
    made = yard.step()
    assert len(made.preemptions) == 4 and not made.more
    assert set(granted(made)) == {"firm"}

    monkeypatch.setattr(priority, "SEARCHES", 1)
    yard = Yard([room("n0", 4), room("n1", 1)])
    yard.run(*[request(f"low{i}", 1, i, priority=60) for i in range(5)]).end("low0").later(OLD)
    yard.want(*[request(f"high{i}", 2, 10 + i, priority=10, excluded_nodes=(NodeId("n1"),)) for i in range(2)])
    yard.want(request("firm", 1, 30, priority=90, preemptible=False), request("soft", 1, 31, priority=90))
    made = yard.step()
    assert len(made.preemptions) == 2 and made.more
    assert [(grant.request, grant.backfilled) for grant in made.grants] == [("soft", True)]
    assert len(yard.step().preemptions) == 2, "the next pass goes on where this one stopped"


class TestReservations:
    def busy(self, **pool: object) -> Yard:
        """Two nodes half full with work that cannot be made to leave, and a gang that wants both."""
        yard = Yard([room("n0", 4), room("n1", 4), room("n2", 2)], **pool)
        for n in range(2):
            yard.run(request(f"hold{n}", 3, n, preemptible=False))
        yard.run(request("filler", 2, 5, preemptible=False)).later(OLD)
        assert [yard.nodes(f"hold{n}") for n in range(2)] == [["n0"], ["n1"]]
        return yard.want(request("gang", members(2, 4), 10))

    def test_work_that_cannot_make_way_does_not_pass_onto_reserved_nodes(self) -> None:
        yard = self.busy().want(request("small", 1, 11, preemptible=False))
        made = yard.step()
        assert not made.grants and made.reservation(RequestId("gang")) == ("n0", "n1")
        assert made.why(RequestId("small")).code == WaitCode.BEHIND
        assert made.why(RequestId("small")).blockers == ("gang",)
        assert made.why(RequestId("gang")).blockers == ("hold0", "hold1")
        assert made.why(RequestId("gang")).code == WaitCode.NO_ROOM

    def test_it_may_pass_where_the_gang_cannot_go(self) -> None:
        yard = self.busy().want(request("small", 1, 11, preemptible=False)).end("filler")
        assert granted(yard.step()) == {"small": [("n2", 1)]}

    def test_preemptible_work_backfills_and_is_the_first_to_leave(self) -> None:
        yard = self.busy().want(request("small", 1, 11), request("lower", 1, 12, priority=80))
        made = yard.step()
        assert granted(made) == {"small": [("n0", 1)], "lower": [("n1", 1)]}
        assert all(grant.backfilled for grant in made.grants)
        yard.later(OLD).end("hold0")
        assert not yard.step().preemptions  # the gang still could not be placed: nobody leaves for nothing
        yard.end("hold1")
        assert victims(yard.step()) == ["lower", "small"]
        yard.gone()
        assert "gang" in granted(yard.step())

    def test_with_preemption_off_nothing_backfills_onto_a_reservation(self) -> None:
        yard = self.busy(policy=PriorityPolicy(preemption=False)).want(request("small", 1, 11))
        assert not yard.step().grants

    def test_without_backfill_nobody_passes_who_wants_the_same_slots(self) -> None:
        yard = self.busy(policy=PriorityPolicy(backfill=False)).end("filler")
        yard.want(request("small", 1, 11), request("cpu", members(1, 0, cpus=1), 12))
        made = yard.step()
        assert list(granted(made)) == ["cpu"]
        assert made.why(RequestId("small")).code == WaitCode.BEHIND

    def test_work_without_slots_is_never_blocked_by_slots(self) -> None:
        yard = self.busy().want(request("cpu", members(1, 0, cpus=4), 12, preemptible=False))
        assert "cpu" in granted(yard.step())

    def test_work_without_slots_leaves_the_cpus_a_reservation_needs(self) -> None:
        yard = Yard([room("n0", 4, cpus=8)])
        yard.run(request("hold", members(1, 4, cpus=2), 0, preemptible=False))
        yard.want(request("next", members(1, 4, cpus=6), 1, preemptible=False))
        yard.want(request("cpu2", members(1, 0, cpus=2), 2, preemptible=False))
        yard.want(request("cpu1", members(1, 0, cpus=1), 3, preemptible=False))
        made = yard.step()
        assert list(granted(made)) == ["cpu2"]
        yard.end("hold")
        assert next(iter(granted(yard.step()))) == "next"

    def test_a_higher_priority_is_not_held_up_by_a_reservation(self) -> None:
        yard = self.busy().want(request("urgent", 1, 20, priority=1, preemptible=False))
        assert "urgent" in granted(yard.step())


class TestCells:
    def test_a_cell_goes_to_one_of_its_nodes(self) -> None:
        yard = Yard([room("n0"), room("n1"), room("n2")])
        yard.want(cell("c", ("n1", "n2"), 8))
        assert granted(yard.plan())["c"] in ([("n1", 8)], [("n2", 8)])

    def test_lingering_leases_are_given_up_first_whatever_their_age_and_priority(self) -> None:
        yard = Yard([room("n0", 2)], min_run_s=1000.0)
        yard.run(request("low", 1, 0, priority=90)).later(5000)
        yard.run(cell("lease", ("n0",), 1, 1, priority=1))
        yard.ledger.mark(RequestId("lease"), lingering=True)
        yard.want(request("anyone", 1, 2, priority=95))
        assert victims(yard.plan()) == ["lease"]

    def test_lingering_leases_are_given_up_even_without_preemption(self) -> None:
        yard = Yard([room("n0", 1)], policy=PriorityPolicy(preemption=False))
        yard.run(cell("lease", ("n0",), 1, 1))
        yard.ledger.mark(RequestId("lease"), lingering=True)
        yard.want(request("anyone", 1, 2, priority=95))
        assert victims(yard.plan()) == ["lease"]

    def test_a_running_cell_is_never_preempted(self) -> None:
        yard = Yard([room("n0", 1)])
        yard.run(cell("lease", ("n0",), 1, 1, priority=90)).later(OLD)
        yard.want(request("urgent", 1, 2, priority=1))
        assert not yard.plan().preemptions

    @pytest.mark.parametrize(("window", "expected"), [(30.0, ["work"]), (600.0, [])])
    def test_only_work_that_leaves_in_time_makes_way_for_a_cell(self, window: float, expected: list[str]) -> None:
        yard = Yard([room("n0", 1)])
        yard.run(request("work", 1, 0, priority=60, leave_within_s=window)).later(OLD)
        yard.want(cell("c", ("n0",), 1, 1, wait=60.0))
        assert victims(yard.plan()) == expected

    def test_headroom_is_kept_from_work_that_would_stay(self) -> None:
        yard = Yard([room("n0", 4)], interactive_headroom=2)
        yard.want(*[request(f"r{i}", 1, i) for i in range(4)])
        made = yard.step()
        assert len(made.grants) == 2 and not any(grant.backfilled for grant in made.grants)
        assert made.why(RequestId("r3")).code == WaitCode.HEADROOM
        yard.want(cell("c", ("n0",), 2, 9))
        assert "c" in granted(yard.step())

    def test_work_that_promises_to_leave_borrows_headroom_and_returns_it(self) -> None:
        yard = Yard([room("n0", 4)], interactive_headroom=2)
        yard.want(*[request(f"r{i}", 1, i, leave_within_s=10.0) for i in range(4)])
        made = yard.step()
        assert [grant.backfilled for grant in made.grants] == [False, False, True, True]
        yard.later(OLD).want(cell("c", ("n0",), 2, 9))
        assert victims(yard.step()) == ["r2", "r3"]
        yard.gone()
        assert "c" in granted(yard.step())

    def test_the_bound_on_firm_work_follows_priority(self) -> None:
        """What is free is kept for cells, but less important firm work still makes way for more important."""
        yard = Yard([room("n0", 4)], interactive_headroom=2)
        yard.run(request("low0", 1, 0, priority=60), request("low1", 1, 1, priority=60)).later(OLD)
        yard.want(request("high", 1, 2, priority=10))
        assert victims(yard.step()) == ["low1"]
        for _ in range(2):
            again = yard.step()
            assert not again.preemptions and again.why(RequestId("high")).code == WaitCode.FREEING
        yard.gone()
        assert "high" in granted(yard.step()) and "low1" in yard.ledger.waiting
        assert yard.why("low1").code == WaitCode.HEADROOM

    def test_the_bound_on_firm_work_takes_no_needless_victim(self) -> None:
        yard = Yard([room("n0", 8)], interactive_headroom=2)
        yard.run(request("firm", 3, 0, preemptible=False), request("two", 2, 1, priority=60)).later(1)
        yard.run(request("one", 1, 2, priority=60)).later(OLD)
        yard.want(request("high", 2, 3, priority=10))
        assert victims(yard.step()) == ["two"]

    def test_firm_work_does_not_slip_past_larger_firm_work(self) -> None:
        yard = Yard([room("n0", 8)], interactive_headroom=2)
        yard.run(request("now", 3, 0, preemptible=False))
        yard.want(request("large", 5, 1, preemptible=False), request("small", 1, 2, preemptible=False))
        made = yard.step()
        assert not made.grants and made.why(RequestId("small")).code == WaitCode.HEADROOM
        yard.end("now")
        assert list(granted(yard.step())) == ["large", "small"]

    def test_firm_work_larger_than_the_bound_is_too_big_and_in_nobodys_way(self) -> None:
        yard = Yard([room("n0", 8)], interactive_headroom=2)
        yard.want(request("huge", 7, 1), request("small", 1, 2))
        made = yard.step()
        assert list(granted(made)) == ["small"] and made.why(RequestId("huge")).code == WaitCode.TOO_BIG


class TestLimits:
    def test_quotas_of_users_and_workspaces_and_caps_of_groups(self) -> None:
        yard = Yard([room("n0", 8)], {"user:ada": 2, "workspace:lab": 3})
        for i in range(3):
            yard.want(request(f"a{i}", 1, i, owner="ada"))
            yard.want(request(f"w{i}", 1, 10 + i, owner=f"u{i}", workspace="lab"))
            yard.want(request(f"g{i}", 1, 20 + i, group="sweep", max_slots=1))
        yard.want(request("w3", 1, 30, owner="eve", workspace="lab"))
        made = yard.step()
        assert sorted(granted(made)) == ["a0", "a1", "g0", "w0", "w1", "w2"]
        assert made.why(RequestId("a2")).code == WaitCode.QUOTA
        assert made.why(RequestId("a2")).blockers == ()
        assert made.why(RequestId("w3")).code == WaitCode.QUOTA
        assert made.why(RequestId("g1")).code == WaitCode.GROUP_CAP
        assert yard.why("a2").blockers == ("a0", "a1")
        yard.end("a0")
        assert list(granted(yard.step())) == ["a2"]

    def test_who_is_leaving_counts_until_it_has_left(self) -> None:
        yard = Yard([room("n0", 8)], {"user:ada": 1})
        yard.run(request("g0", 1, 0, group="sweep", max_slots=1), request("a0", 1, 1, owner="ada"))
        for name in ("g0", "a0"):
            yard.ledger.mark(RequestId(name), leaving=True)
        yard.want(request("g1", 1, 2, group="sweep", max_slots=1), request("a1", 1, 3, owner="ada"))
        made = yard.step()
        assert not granted(made)
        assert (yard.why("g1").code, yard.why("g1").blockers) == (WaitCode.GROUP_CAP, ("g0",))
        assert yard.why("a1").code == WaitCode.QUOTA
        yard.end("g0", "a0")
        assert sorted(granted(yard.step())) == ["a1", "g1"]

    def test_a_quota_set_or_cleared_while_work_waits_is_followed(self) -> None:
        yard = Yard([room("n0", 8)])
        yard.want(*[request(f"{who}{i}", 1, i, owner=who) for who in ("ada", "bob") for i in range(3)])
        yard.book.set_limit(Quota("user:ada", 1))
        assert sorted(granted(yard.step())) == ["ada0", "bob0", "bob1", "bob2"]
        yard.ledger.withdraw(RequestId("ada1"))
        yard.book.clear_limit("user:ada")
        assert sorted(granted(yard.step())) == ["ada2"]

    def test_a_user_does_not_slip_past_its_own_larger_request(self) -> None:
        yard = Yard([room("n0", 8)], {"user:ada": 4})
        yard.run(request("now", 2, 0, owner="ada"))
        yard.want(
            request("big", 4, 1, owner="ada"), request("small", 1, 2, owner="ada"), request("bob", 1, 3, owner="bob")
        )
        assert list(granted(yard.step())) == ["bob"]
        yard.end("now")
        assert list(granted(yard.step())) == ["big"]

    def test_a_request_over_its_whole_quota_holds_up_nobody(self) -> None:
        yard = Yard([room("n0", 8)], {"user:ada": 4})
        yard.want(request("never", 5, 1, owner="ada"), request("small", 1, 2, owner="ada"))
        made = yard.step()
        assert list(granted(made)) == ["small"] and made.why(RequestId("never")).code == WaitCode.QUOTA

    def test_a_request_no_node_could_hold_does_not_hold_up_its_user(self) -> None:
        yard = Yard([room("n0", 8), room("n1", 8)], {"user:ada": 16})
        yard.run(request("now", 8, 0, owner="ada"))
        yard.want(request("impossible", 9, 1, owner="ada"), request("small", 1, 2, owner="ada"))
        made = yard.step()
        assert list(granted(made)) == ["small"] and made.why(RequestId("impossible")).code == WaitCode.TOO_BIG

    def test_a_quota_counts_over_all_pools(self) -> None:
        from clutch.core.scheduling.ledger import Ledger

        yard = Yard([room("n0", 8)], {"user:ada": 4})
        other = Yard([room("m0", 8)])
        other.ledger = Ledger(other.ledger.pool, yard.book)
        other.ledger.put_room(room("m0", 8))
        other.run(request("there", 3, 0, owner="ada"))
        yard.want(request("here", 2, 0, owner="ada"))
        assert yard.why("here").code == WaitCode.QUOTA

    def test_slotless_work_needs_no_quota(self) -> None:
        yard = Yard([room("n0", 8)], {"user:ada": 0})
        yard.want(request("cpu", members(1, 0, cpus=1), owner="ada"))
        assert yard.plan().grants


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (request("r", 9), WaitCode.TOO_BIG),
        (request("r", Split(17)), WaitCode.TOO_BIG),
        (request("r", members(3, 1), spread=Spread.HARD), WaitCode.TOO_BIG),
        (request("r", members(1, 1, kind="rocm")), WaitCode.TOO_BIG),
        (request("r", members(1, 0, cpus=65)), WaitCode.TOO_BIG),
        (request("r", 8), WaitCode.FRAGMENTED),
        (request("r", 8, excluded_nodes=(NodeId("n1"),)), WaitCode.NO_ROOM),
        (request("r", 4, excluded_nodes=(NodeId("n1"),)), WaitCode.EXCLUDED),
        (request("r", members(2, 3), spread=Spread.HARD), WaitCode.SPREAD),
        (request("r", Split(10)), WaitCode.NO_ROOM),
    ],
)
def test_every_reason_has_its_code(wanted, code) -> None:  # type: ignore[no-untyped-def]
    yard = Yard([room("n0"), room("n1")], policy=PriorityPolicy(preemption=False))
    yard.run(request("a", 6, 0), request("b", 1, 1, excluded_nodes=(NodeId("n0"),)))
    yard.want(wanted)
    waiting = yard.why("r")
    assert waiting.code == code and waiting.detail


def test_work_that_excludes_every_node_is_told_so() -> None:
    yard = Yard([room("n0"), room("n1")]).want(request("r", 4, excluded_nodes=(NodeId("n1"), NodeId("n0"))))
    assert "excluded: n0, n1" in yard.why("r").detail


def test_no_nodes_and_autoscale() -> None:
    from clutch.wire.specs import Autoscale

    yard = Yard([room("n0", usable=False)]).want(request("r", 4))
    assert yard.why("r").code == WaitCode.NO_NODES
    empty = Yard([], autoscale=Autoscale(nodes_max=2, slots_per_node=8))
    empty.want(request("r", 8), request("big", Split(17), 1))
    assert empty.why("r").code == WaitCode.NO_NODES and empty.why("big").code == WaitCode.TOO_BIG


def test_a_request_that_fits_no_node_is_in_nobodys_way() -> None:
    yard = Yard([room("n0", 4)], policy=PriorityPolicy(backfill=False))
    yard.want(request("huge", 5, 0, priority=1), request("r", 4, 1))
    assert list(granted(yard.plan())) == ["r"]
