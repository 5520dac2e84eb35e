"""Shipping what the dead left to a store that refuses, forgets its connections and answers twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.agent.metric_relay import AT_ONCE, UNREAD_MAX, Frame, MetricRelay
from clutch.agent.metric_spool import GAP_MAX, SEQUENCE, SPOOL, look, prefix_of
from clutch.backends.containers.base import Key
from clutch.wire.ids import Fence, MemberId, TaskId
from clutch.wire.link import FRAME_MAX_BYTES, METRICS_PIECE_BYTES, MetricsOpen, MetricsPiece
from clutch.wire.metrics import MetricsCommitted


def key_of(number: int) -> Key:
    return Key(MemberId(TaskId(f"t{number}"), "main", 0), Fence(1, 1, 1))


def spool(tmp: Path, key: Key, batches: dict[int, list[object]], acknowledged: int = 0) -> None:
    folder = tmp / f"{prefix_of(key)}{'a' * 12}"
    folder.mkdir(parents=True)
    lines = (json.dumps({"sequence": n, "points": points}) + "\n" for n, points in batches.items())
    (folder / SPOOL).write_text("".join(lines))
    (folder / SEQUENCE).write_text(f"{max(batches):020d} {acknowledged:020d}\n")


class Store:
    """As a master's: each number once, in order; what holds a ``bad`` point is refused whole."""

    def __init__(self) -> None:
        self.batches: dict[Key, list[list[object]]] = {}
        self.pieces: dict[Key, bytes] = {}
        self.frames: list[Frame] = []

    def answer(self, frame: Frame) -> MetricsCommitted | None:
        self.frames.append(frame)
        key = Key(frame.member, frame.fence)
        known = self.batches.setdefault(key, [])
        if isinstance(frame, MetricsOpen):
            self.pieces.pop(key, None)
            return MetricsCommitted(*key, len(known))
        assert len(frame.lines) <= METRICS_PIECE_BYTES < FRAME_MAX_BYTES
        whole = self.pieces.pop(key, b"") + frame.lines
        if frame.more:
            self.pieces[key] = whole
            return None
        batches = [json.loads(line) for line in whole.split(b"\n") if line]
        fresh = [batch for batch in batches if batch["sequence"] > len(known)]
        if any("bad" in batch["points"] for batch in fresh):
            return MetricsCommitted(*key, len(known), "a bad point")
        for batch in fresh:
            if batch["sequence"] != len(known) + 1:
                return MetricsCommitted(*key, len(known), "one is missing")
            known.append(batch["points"])
        return MetricsCommitted(*key, len(known))


class Agent:
    def __init__(self, tmp: Path, keys: list[Key]) -> None:
        self.shipped: list[Key] = []
        self.wake = asyncio.Event()
        self.relay = MetricRelay(self.wake, self.shipped.append)
        for key in keys:
            found = look(tmp, key)
            if found is not None:
                self.relay.watch(key, found)


def ship(agent: Agent, store: Store, chance: Random | None = None) -> None:
    """Until nothing is left to send; with chance, connections break with answers under way."""
    agent.relay.reconnected()
    breaks = 12 if chance is not None else 0
    while frames := agent.relay.take():
        under_way = {Key(frame.member, frame.fence) for frame in frames if isinstance(frame, MetricsPiece)}
        assert len(under_way) <= AT_ONCE
        answers = [answer for frame in frames if (answer := store.answer(frame)) is not None]
        for answer in answers:
            if chance is not None and breaks and chance.random() < 0.2:
                breaks -= 1
                store.pieces.clear()
                agent.relay.disconnected()
                agent.relay.reconnected()
                break
            agent.relay.committed(answer)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), members=st.integers(1, 7))
def test_everything_is_stored_once_whatever_breaks(
    tmp_path_factory: pytest.TempPathFactory, seed: int, members: int
) -> None:
    tmp, chance, store = tmp_path_factory.mktemp("tmp"), Random(seed), Store()
    keys = [key_of(number) for number in range(members)]
    expected: dict[Key, list[list[object]]] = {}
    for key in keys:
        before, count = chance.randrange(5), chance.randrange(1, 40)
        stored = before + chance.randrange(3)  # the member did not hear of its last ones
        store.batches[key] = [[f"{n}"] for n in range(1, stored + 1)]
        left = {n: [f"{n}"] * chance.choice((1, 1, 3)) for n in range(before + 1, stored + count + 1)}
        for n in list(left)[: stored - before]:
            left[n] = [f"{n}"]
        for n in list(left)[stored - before : -1]:
            if chance.random() < 0.1:
                del left[n]  # was kept in memory
            elif chance.random() < 0.1:
                left[n] = ["bad"]
        spool(tmp, key, left, before)
        wanted = [left.get(n, []) for n in range(stored + 1, stored + count + 1)]
        expected[key] = store.batches[key] + [[] if "bad" in points else points for points in wanted]
    agent = Agent(tmp, keys)
    if chance.random() < 0.5:  # it is killed half-way, and another one finds the same
        agent.relay.reconnected()
        for _ in range(chance.randrange(6)):
            for answer in [store.answer(frame) for frame in agent.relay.take()]:
                if answer is not None:
                    agent.relay.committed(answer)
        agent = Agent(tmp, keys)
    ship(agent, store, chance)
    assert store.batches == expected
    assert sorted(agent.shipped) == sorted(keys), "each is said to be shipped once"
    assert all(agent.relay.is_shipped(key) for key in keys)
    sent = len(store.frames)
    ship(agent, store)
    assert store.batches == expected and len(store.frames) == sent + 2 * members, "a new master only hears of them"


def test_a_batch_that_is_larger_than_a_frame_goes_in_pieces(tmp_path: Path) -> None:
    store = Store()
    large = ["x" * 1000] * 6_000
    spool(tmp_path, key_of(1), {1: ["a"], 2: large, 3: ["b"]})
    ship(agent := Agent(tmp_path, [key_of(1)]), store)
    assert store.batches[key_of(1)] == [["a"], large, ["b"]] and agent.shipped == [key_of(1)]
    assert sum(isinstance(frame, MetricsPiece) and frame.more for frame in store.frames) >= 11


def test_a_store_that_lacks_too_much_is_not_filled_with_nothing(tmp_path: Path) -> None:
    store = Store()
    first = GAP_MAX + 100
    spool(tmp_path, key_of(1), {first: ["a"], first + 1: ["b"]}, first - 1)
    ship(agent := Agent(tmp_path, [key_of(1)]), store)
    assert store.batches[key_of(1)] == [] and agent.shipped == [key_of(1)], "it holds nobody up for ever"
    sent = len(store.frames)
    ship(agent, store)
    assert len(store.frames) == sent


def test_a_spool_that_vanishes_is_given_up(tmp_path: Path) -> None:
    store = Store()
    spool(tmp_path, key_of(1), {1: ["a"]})
    agent = Agent(tmp_path, [key_of(1)])
    next(tmp_path.glob(f"*/{SPOOL}")).unlink()
    ship(agent, store)
    assert agent.shipped == [key_of(1)] and agent.relay.is_shipped(key_of(1))


def test_a_spool_that_cannot_be_read_for_a_while_is_shipped_when_it_can(tmp_path: Path) -> None:
    store = Store()
    spool(tmp_path, key_of(1), {1: ["a"]})
    agent = Agent(tmp_path, [key_of(1)])
    file = next(tmp_path.glob(f"*/{SPOOL}"))
    with unreadable(file):
        ship(agent, store)
        agent.wake.clear()
        agent.relay.try_again()
        assert agent.wake.is_set() and agent.relay.take() == [] and not agent.shipped
    agent.relay.try_again()
    (piece,) = agent.relay.take()
    answer = store.answer(piece)
    assert answer is not None
    agent.relay.committed(answer)
    assert store.batches[key_of(1)] == [["a"]] and agent.relay.is_shipped(key_of(1))


def test_a_spool_that_can_never_be_read_is_given_up_some_day(tmp_path: Path) -> None:
    store = Store()
    spool(tmp_path, key_of(1), {1: ["a"]})
    agent = Agent(tmp_path, [key_of(1)])
    with unreadable(next(tmp_path.glob(f"*/{SPOOL}"))):
        ship(agent, store)
        for _ in range(UNREAD_MAX):
            assert not agent.shipped
            agent.relay.try_again()
            assert agent.relay.take() == []
    assert agent.shipped == [key_of(1)]


@contextmanager
def unreadable(file: Path) -> Iterator[None]:
    """A loop of links in its place, which nobody can open, not even root."""
    aside = file.with_name("aside")
    file.rename(aside)
    file.symlink_to(file.name)
    try:
        yield
    finally:
        aside.replace(file)


def test_one_that_is_dropped_is_not_shipped_and_answers_to_it_mean_nothing(tmp_path: Path) -> None:
    store = Store()
    spool(tmp_path, key_of(1), {1: ["a"]})
    agent = Agent(tmp_path, [key_of(1)])
    agent.relay.reconnected()
    agent.relay.drop(key_of(1))
    assert agent.relay.take() == []
    agent.relay.committed(MetricsCommitted(*key_of(1), 5))
    assert agent.relay.is_shipped(key_of(1)) and not agent.shipped and not store.frames
