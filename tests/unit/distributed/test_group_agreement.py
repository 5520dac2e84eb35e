"""All ranks stop at the same call, in every order in which calls are made and notes arrive."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.runtime.distributed import Agreement, Group
from clutch.runtime.distributed.credits import WINDOW_MAX, Counter, Desk
from clutch.wire.errors import BadRequest


class World:
    """Ranks, a desk, and between them notes that arrive in order but at any time."""

    def __init__(self, size: int) -> None:
        self.desk = Desk()
        self.now = 0.0
        self.counters = [Counter() for _ in range(size)]
        self.waiting = [False] * size
        self.stopped_at: list[int | None] = [None] * size
        self.up: list[deque[tuple[int, bool, bool]]] = [deque() for _ in range(size)]
        self.down: list[deque[tuple[int, int]]] = [deque() for _ in range(size)]

    def call(self, rank: int, asks: bool) -> None:
        """The rank makes its next call, or looks again whether the one that it is in can be answered."""
        counter = self.counters[rank]
        if self.stopped_at[rank] is not None:
            return
        if not self.waiting[rank]:
            counter.next_call()
            if counter.report(asks):
                self.up[rank].append((counter.count, asks, counter.count > counter.limit))
        answer = counter.answer()
        self.waiting[rank] = answer is None
        if answer:
            self.stopped_at[rank] = counter.count
        elif answer is False:
            assert not self.desk.stop or counter.count < self.desk.stop, "it passed the call at which all stop"

    def deliver_up(self, rank: int) -> None:
        if self.up[rank]:
            count, asks, waits = self.up[rank].popleft()
            if self.desk.heard(count, asks, waits, self.now):
                for queue in self.down:
                    queue.append((self.desk.limit, self.desk.stop))

    def deliver_down(self, rank: int) -> None:
        if self.down[rank]:
            self.counters[rank].granted(*self.down[rank].popleft())


steps = st.lists(
    st.tuples(st.sampled_from(["call", "call", "call", "up", "down"]), st.integers(0, 4), st.booleans()), max_size=200
)


@given(st.integers(1, 5), steps, st.integers(0, 4), st.integers(0, 40), st.floats(0.00001, 0.5))
@settings(max_examples=400, deadline=None)
def test_all_ranks_stop_at_the_same_call(
    size: int, plan: list[tuple[str, int, bool]], asker: int, at: int, tick: float
) -> None:
    world = World(size)
    for kind, number, _ in plan:
        world.now += tick
        rank = number % size
        if kind == "call":
            world.call(rank, asks=rank == asker % size and world.counters[rank].count >= at)
        elif kind == "up":
            world.deliver_up(rank)
        else:
            world.deliver_down(rank)
    for _ in range(3 * (at + 200) + 2 * WINDOW_MAX):  # from here on everything arrives, and everybody goes on
        world.now += tick
        for rank in range(size):
            world.call(rank, asks=rank == asker % size and world.counters[rank].count >= at)
            world.deliver_up(rank)
        for rank in range(size):
            while world.down[rank]:
                world.deliver_down(rank)
        if None not in world.stopped_at:
            break
    assert len(set(world.stopped_at)) == 1
    assert world.stopped_at[0] == world.desk.stop


@given(st.lists(st.tuples(st.integers(1, 500), st.booleans(), st.floats(0, 1)), max_size=60))
def test_the_desk_never_takes_a_limit_back(reports: list[tuple[int, bool, float]]) -> None:
    desk = Desk()
    now, highest = 0.0, desk.limit
    for count, asks, later in reports:
        now += later
        desk.heard(count, asks, count > desk.limit, now)
        assert desk.limit >= highest
        highest = desk.limit
        if desk.stop:
            assert desk.stop == desk.limit + 1
        else:
            assert desk.limit >= count, "who waits is let on"


def test_slow_steps_never_wait_and_stop_two_calls_later() -> None:
    """Every note arrives before the next call: as with steps of a second."""
    world = World(2)
    for number in range(50):
        world.now += 1.0
        for rank in range(2):
            world.call(rank, asks=rank == 1 and number >= 20)
            assert not world.waiting[rank]
        for rank in range(2):
            world.deliver_up(rank)
        for rank in range(2):
            while world.down[rank]:
                world.deliver_down(rank)
    assert world.stopped_at[0] == world.stopped_at[1]
    assert 21 <= (world.stopped_at[0] or 0) <= 21 + 4


def test_quick_steps_get_a_wide_window() -> None:
    desk = Desk()
    for number in range(1, 200):
        desk.heard(number * 1000, False, False, number * 0.02)
    assert 2_000 <= desk.limit - 199_000 <= 3_000


@pytest.mark.parametrize("mode", ["workers_ask_chief", "chief_only", "workers_ask_master"])
def test_alone_the_answer_is_what_is_asked_and_stays(mode: str) -> None:
    answers = iter([False, True, False])
    agreement = Agreement(Group.create(0, 1), lambda: next(answers), mode)  # type: ignore[arg-type]
    assert [agreement.should_stop() for _ in range(3)] == [False, True, True]
    assert agreement.calls == 3
    with pytest.raises(BadRequest, match="there is no way"):
        Agreement(Group.create(0, 1), lambda: True, "sometimes")  # type: ignore[arg-type]
