"""Shapes, trees, reducers, and what the chief decides: without a single socket."""

import math
from typing import Any

import msgspec
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clutch.runtime.distributed import Group
from clutch.runtime.distributed.calls import Call, Calls
from clutch.runtime.distributed.chief import ASK_WITHIN_S, Chief, Say
from clutch.runtime.distributed.notes import AnyNote, Failed, Hello, IAmAt, Left, Waits, Welcome, decode, encode
from clutch.runtime.distributed.reducers import as_two_steps, name_of
from clutch.runtime.distributed.shape import Seat, arrange, children_of, parent_of
from clutch.wire.errors import BadRequest, ClutchError, Conflict, PeerLost


@given(st.integers(1, 300), st.integers(0, 299))
def test_every_head_is_reached_once_from_any_root(count: int, root: int) -> None:
    root %= count
    reached = [root]
    for index in reached:
        for child in children_of(index, count, root):
            assert parent_of(child, count, root) == index
            reached.append(child)
    assert sorted(reached) == list(range(count))
    assert parent_of(root, count, root) is None


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.randoms())
def test_uneven_nodes_are_understood_in_any_order(nodes: list[int], chance: Any) -> None:
    size = sum(nodes)
    seats, homes = [], []
    for node, count in enumerate(nodes):
        for local_rank in range(count):
            seats.append(Seat(len(seats), size, local_rank, count, place=f"place {node}"))
            homes.append(node)
    chance.shuffle(seats)
    shape = arrange(seats)
    assert [len(node) for node in shape.nodes] == nodes
    for rank in range(size):
        world, local = shape.world(rank), shape.local(rank)
        assert shape.node_of(rank) == homes[rank]
        assert sorted(rank for cell in world.cells for rank in cell) == list(range(size))
        assert world.chief == world.heads[0] == 0
        assert local.chief == local.heads[0] == local.ranks[0] == homes.index(homes[rank])


def test_members_of_one_node_in_different_containers_are_cells_of_their_own() -> None:
    seats = [Seat(rank, 4, rank, 4, "n", place="one" if rank != 2 else "two") for rank in range(4)]
    shape = arrange(seats)
    assert shape.nodes == ((0, 1, 2, 3),)
    assert shape.world(3).cells == ((0, 1, 3), (2,))
    assert shape.local(2).cell == (2,)


@pytest.mark.parametrize(
    "seats",
    [
        [Seat(0, 2, 0, 2), Seat(1, 2, 0, 1)],
        [Seat(0, 2, 0, 2, "a"), Seat(1, 2, 0, 2, "a")],
        [Seat(0, 2, 1, 2, "a"), Seat(1, 2, 0, 2, "a")],
        [Seat(0, 2), Seat(1, 3)],
        [Seat(0, 2), Seat(0, 2)],
    ],
)
def test_seats_that_contradict_each_other_are_refused(seats: list[Seat]) -> None:
    with pytest.raises(BadRequest):
        arrange(seats)


# -- reducers -----------------------------------------------------------------------------------------------------


def across(reducer: Any, values: list[Any]) -> Any:
    return as_two_steps(reducer).across(values)


def test_named_reducers_reduce_numbers_arrays_tensors_and_what_holds_them() -> None:
    assert across("sum", [1, 2, 3]) == 6
    assert across("mean", [{"a": 1.0, "b": [2, 4]}, {"a": 3.0, "b": [4, 8]}]) == {"a": 2.0, "b": [3.0, 6.0]}
    assert across("max", [(1, 5), (3, 2)]) == (3, 5)
    assert math.isnan(across("min", [1.0, math.nan, 0.5]))
    assert across("max", [numpy.array([1, 9]), numpy.array([5, 2])]).tolist() == [5, 9]
    assert across("mean", [torch.ones(2), torch.zeros(2)]).tolist() == [0.5, 0.5]
    assert across("min", [torch.tensor([1.0, 4.0]), torch.tensor([2.0, 3.0])]).tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "values",
    [
        [{"a": 1}, {"b": 1}],
        [[1], [1, 2]],
        ["x", "y"],
        [None, None],
        [1, "x"],
        [numpy.ones(2), numpy.ones(3)],
        [1, {"a": 1}],
    ],
)
def test_values_that_do_not_fit_are_named(values: list[Any]) -> None:
    with pytest.raises(BadRequest, match="rank"):
        across("sum", values)


def test_a_reducer_may_have_two_steps() -> None:
    class Accuracy:
        def per_rank(self, value: list[bool]) -> tuple[int, int]:
            return sum(value), len(value)

        def across(self, values: list[tuple[int, int]]) -> float:
            return sum(hit for hit, _ in values) / sum(count for _, count in values)

    with Group.create(0, 1) as alone:
        assert alone.reduce([True, False], Accuracy) == 0.5
        assert alone.allreduce([True, True], Accuracy()) == 1.0
        assert alone.reduce_local([1, 2], len) == 1
    assert name_of(Accuracy) == name_of(Accuracy())
    for wrong in ("median", 5):
        with pytest.raises(BadRequest):
            as_two_steps(wrong)


def test_what_a_group_of_one_returns_is_not_what_it_was_given() -> None:
    with Group.create(0, 1) as alone:
        mine = numpy.zeros(3)
        found = alone.allgather(mine)[0]
        found[0] = 1.0
        assert mine[0] == 0.0
        with pytest.raises(BadRequest, match="no rank 1"):
            alone.broadcast(1, root=1)
    with pytest.raises(ClutchError, match="it is closed"):
        alone.barrier()


# -- the chief ----------------------------------------------------------------------------------------------------


def met(size: int = 3) -> Chief:
    chief = Chief(size, until=10.0, within_s=10.0, secret=b"")
    said: list[Say] = []
    for rank in range(size):
        assert said == []
        said = chief.come(Hello(Seat(rank, size), "key"))
    assert isinstance(said[0][1], Welcome)
    return chief


def only(said: list[Say]) -> AnyNote:
    assert len(said) == 1 and said[0][0] is None
    return said[0][1]


def test_the_first_failure_is_the_story() -> None:
    chief = met()
    first = only(chief.lost(2))
    assert isinstance(first, Failed) and first.ranks == (2,)
    assert chief.lost(1) == []
    assert chief.heard(1, Failed(Conflict("other").view()), 1.0) == [(1, first)]


def test_who_has_left_is_not_lost() -> None:
    chief = met()
    assert only(chief.heard(1, Left(1, {"world:0": 3}), 1.0)) == Left(1, {"world:0": 3})
    assert chief.lost(1) == []


def test_who_did_not_come_is_asked_for_and_named() -> None:
    chief = met()
    call = Call("world:0", 7, "barrier")
    asked = chief.heard(0, Waits(call, (0, 1, 2), late=True, timeout_s=5.0), 1.0)
    assert [to for to, _ in asked] == [0, 1, 2]
    number = asked[0][1].number  # type: ignore[union-attr]
    assert chief.heard(0, IAmAt(number, {"world:0": 7}, call), 1.1) == []
    assert chief.heard(1, IAmAt(number, {"world:0": 6}, None), 1.1) == []
    assert chief.tick(1.1) == []
    said = only(chief.tick(1.0 + ASK_WITHIN_S))
    assert isinstance(said, Failed)
    assert "2 ranks (1, 2) did not come to barrier() #7 within 5 s" in said.error.cause


def test_ranks_that_wait_in_different_calls_are_found() -> None:
    chief = met()
    one, other = Call("world:0", 7, "broadcast", 1), Call("world:0", 7, "broadcast", 2)
    assert chief.heard(2, Waits(one, (0, 1, 2)), 1.0) == []
    assert chief.heard(0, Waits(one, (0, 1, 2)), 1.0) == []
    assert chief.heard(0, Waits(Call("world:0", 8, "gather"), (0, 1, 2)), 1.0) == []
    said = only(chief.heard(1, Waits(other, (0, 1, 2)), 1.0))
    assert isinstance(said, Failed)
    assert said.error.cause == "rank 1 is in broadcast(root=2) #7 while rank 2 is in broadcast(root=1) #7"


def test_calls_are_counted_by_scope_and_remembered() -> None:
    calls = Calls()
    first = calls.enter("world:0", "barrier", 0.0)
    calls.enter("local:0", "gather", 0.0)
    third = calls.enter("world:0", "reduce", 0.0, detail="sum")
    assert (first.number, third.number, calls.made) == (1, 2, {"world:0": 2, "local:0": 1})
    assert calls.against(Call("world:0", 1, "gather"), third) == first
    assert calls.against(Call("world:0", 9, "gather"), third) == third
    assert str(third) == "reduce(sum) #2"


def test_notes_survive_the_wire() -> None:
    for note in (
        Hello(Seat(0, 1), "k"),
        Welcome((Seat(0, 1),), ("k",), b"s"),
        Failed(PeerLost("x", object="rank 1").view(), (1,)),
        Waits(Call("world:0", 1, "x"), (0,)),
        IAmAt(1, {"a": 1}, None),
    ):
        assert decode(encode(note)) == note
    with pytest.raises(msgspec.MsgspecError):
        decode(b"\x91\x01")
