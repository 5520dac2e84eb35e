"""Where copies belong, and what is planned about those that lie elsewhere."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from clutch.backends.blobs.placing import (
    GONE_LEAST_S,
    GONE_MOST_S,
    Catalogue,
    CopyTo,
    DropFrom,
    Standing,
    ranked,
    steps,
)
from clutch.wire.shelf import Entry

NODES = ("a", "b", "c", "d", "e")


def entry(key: str, stamp: int, gone: bool = False, at: float = 0.0) -> Entry:
    return Entry(key, stamp, 10, f"hash of {stamp}", at, gone)


def standing(here: Iterable[str], away: Iterable[str] = (), lost: Iterable[str] = ()) -> Standing:
    return Standing(frozenset(here), frozenset(away), frozenset(lost))


def test_a_node_that_comes_moves_only_what_belongs_on_it() -> None:
    keys = [f"k{n}" for n in range(400)]
    before = {key: ranked(key, NODES[:4])[:2] for key in keys}
    after = {key: ranked(key, NODES)[:2] for key in keys}
    for key in keys:
        assert set(after[key]) - {"e"} <= set(before[key])
    for node in NODES:
        share = sum(node in places for places in after.values())
        assert 100 < share < 220, f"{node} has {share} of 800 copies"


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, int], Standing, bool]:
    found = draw(st.dictionaries(st.sampled_from(NODES), st.integers(1, 3), min_size=1))
    where = {node: draw(st.sampled_from(("here", "away", "lost", "unknown"))) for node in NODES}
    stands = standing(*(tuple(n for n in NODES if where[n] == place) for place in ("here", "away", "lost")))
    return found, stands, draw(st.booleans())


@given(worlds())
def test_no_step_takes_the_newest_below_what_is_wanted_and_all_end_well(
    world: tuple[dict[str, int], Standing, bool],
) -> None:
    found, stands, gone = world
    newest = max(found.values())
    catalogue = Catalogue()
    for node, stamp in found.items():
        catalogue.put(node, entry("k", stamp, gone and stamp == newest))
    reachable = any(found.get(node) == newest for node in stands.here)
    for _ in range(10):
        planned = list(steps(catalogue, "k", stands, now=1.0))
        for step in planned:
            assert step.node in stands.here
            if isinstance(step, CopyTo):
                assert step.entry.stamp == newest and reachable
                catalogue.put(step.node, step.entry)
            else:
                held = [n for n in catalogue.holders(catalogue.newest("k")) if n in stands.here]  # type: ignore[arg-type]
                assert step.entry.stamp < newest or len(held) > stands.wanted
                catalogue.drop(step.node, "k")
        if not planned:
            break
    else:
        raise AssertionError("the plan never ends")
    assert catalogue.newest("k").stamp == newest  # type: ignore[union-attr]
    if reachable:
        holders = catalogue.holders(catalogue.newest("k"))  # type: ignore[arg-type]
        there = [node for node in holders if node in (*stands.here, *stands.away)]
        assert len(there) >= min(stands.wanted, len(stands.here))


def test_what_is_gone_is_remembered_until_nobody_can_bring_it_back() -> None:
    catalogue = Catalogue()
    tombstone = entry("k", 2, gone=True)
    for node in ("a", "b"):
        catalogue.put(node, tombstone)
    everybody, one_away = standing(("a", "b", "c")), standing(("a", "b"), ("c",))
    drops = [DropFrom(tombstone, node) for node in ranked("k", ("a", "b"))]
    assert list(steps(catalogue, "k", everybody, GONE_LEAST_S - 1)) == []
    assert list(steps(catalogue, "k", everybody, GONE_LEAST_S + 1)) == drops
    assert list(steps(catalogue, "k", one_away, GONE_LEAST_S + 1)) == []
    assert list(steps(catalogue, "k", standing(("a", "b"), (), ("c",)), GONE_LEAST_S + 1)) == []
    assert list(steps(catalogue, "k", one_away, GONE_MOST_S + 1)) == drops
    catalogue.put("c", entry("k", 1))
    assert list(steps(catalogue, "k", everybody, GONE_MOST_S + 1)) == [DropFrom(entry("k", 1), "c")]


def test_what_arrives_while_a_node_is_asked_is_not_forgotten() -> None:
    catalogue = Catalogue()
    catalogue.put("a", entry("old", 5))
    asked_at = catalogue.last_stamp
    catalogue.put("a", entry("new", 6))
    catalogue.load("a", [], asked_at)
    assert catalogue.keys() == ["new"]


def test_settled_means_that_of_two_copies_one_is_in_sight() -> None:
    assert standing(()).is_settled
    assert not standing((), ("a",)).is_settled
    assert standing(("a",), ("b",)).is_settled
    assert not standing(("a",), ("b", "c")).is_settled
    assert standing(("a",), (), ("b", "c")).is_settled
    assert [standing(NODES[:count]).wanted for count in (0, 1, 2, 3)] == [1, 1, 2, 2]
