"""Facts on disk: every kind comes back as it was, newer ones are refused, older ones are brought up to date."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clutch.core.fold import HANDLERS
from clutch.core.recorded import Recorded, from_row, to_row
from clutch.core.story import subjects, tell
from clutch.wire import facts as f
from clutch.wire.errors import Corrupt, TooNew
from clutch.wire.ids import TaskId

_text = st.text(max_size=8)
_int = st.integers(-(2**62), 2**62)
_float = st.floats(allow_nan=False)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a wire type, from its annotation."""
    kind = getattr(kind, "__supertype__", kind)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(each) for each in typing.get_args(kind)])
    if origin is tuple:
        return st.lists(values(typing.get_args(kind)[0]), max_size=2).map(tuple)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.name: values(field.type) for field in msgspec.structs.fields(kind)}
        return st.fixed_dictionaries(fields).map(lambda found: kind(**found))
    plain = {
        str: _text,
        int: _int,
        float: _float,
        bool: st.booleans(),
        bytes: st.binary(max_size=8),
        type(None): st.none(),
    }
    return plain[kind]


@pytest.mark.parametrize("kind", f.FACTS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_kind_comes_back_as_it_was(kind: str, data: st.DataObject) -> None:
    fact = data.draw(values(f.FACTS[kind]))
    name, version, payload = f.encode_fact(fact)
    assert (name, version) == (kind, f.FACTS[kind].version)
    assert f.decode_fact(name, version, payload) == fact
    recorded = Recorded(1, 1, 5.0, "test", fact)
    assert from_row(to_row(recorded)) == recorded
    assert tell(fact).startswith(kind.replace("_", " ")), "every kind has words"
    assert isinstance(subjects(fact), list)


def test_the_union_the_table_and_the_folds_are_complete() -> None:
    classes = [c for c in vars(f).values() if isinstance(c, type) and issubclass(c, f.Fact) and c is not f.Fact]
    assert set(classes) == set(f.FACTS.values()) == set(HANDLERS)
    assert len(f.FACTS) == len(classes), "two kinds share a tag"
    for kind, known in f.FACTS.items():
        assert kind == "".join(f"_{c.lower()}" if c.isupper() else c for c in known.__name__).lstrip("_")


def test_an_unknown_kind_is_too_new() -> None:
    with pytest.raises(TooNew) as caught:
        f.decode_fact("task_sang", 1, b"")
    assert "task_sang" in str(caught.value) and "newer" in caught.value.next_step


@pytest.mark.parametrize("kind", f.FACTS)
def test_a_newer_version_is_too_new(kind: str) -> None:
    with pytest.raises(TooNew) as caught:
        f.decode_fact(kind, f.FACTS[kind].version + 1, b"\x80")
    assert caught.value.code == "too_new"


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x80", b"garbage", msgspec.msgpack.encode({"type": "task_wished", "task": 5, "wish": "run"})],
)
def test_garbage_is_corrupt(payload: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        f.decode_fact("task_wished", 1, payload)
    assert "task_wished" in caught.value.object and "restore" in caught.value.next_step


def test_cut_bytes_are_corrupt() -> None:
    _, _, payload = f.encode_fact(f.RoleResized(TaskId("t"), "actor", 3))
    for length in range(len(payload)):
        with pytest.raises(Corrupt):
            f.decode_fact("role_resized", 1, payload[:length])


# -- upcasters ----------------------------------------------------------------------------------------------------


class Painted(f.Fact, frozen=True, tag="painted"):
    """An example of a fact in its third version: a colour, then with a shine, then the colour by its parts."""

    version: ClassVar[int] = 3
    task: TaskId
    red: int
    green: int
    blue: int
    shine: bool = False


def _shine(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "shine": False}


def _parts(old: dict[str, Any]) -> dict[str, Any]:
    colour = old.pop("colour")
    red, green, blue = (int(colour[i : i + 2], 16) for i in (0, 2, 4))
    return {**old, "red": red, "green": green, "blue": blue}


CHAIN: dict[tuple[str, int], f.Upcaster] = {("painted", 1): _shine, ("painted", 2): _parts}


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(f.FACTS, "painted", Painted)
    monkeypatch.setitem(f._decoders, "painted", msgspec.msgpack.Decoder(Painted))


def row(**fields: Any) -> bytes:
    return msgspec.msgpack.encode({"type": "painted", "task": "t", **fields})


@pytest.mark.usefixtures("painted")
def test_old_rows_are_brought_up_to_date_step_by_step() -> None:
    expected = Painted(TaskId("t"), 255, 128, 0)
    assert f.decode_fact("painted", 1, row(colour="ff8000"), CHAIN) == expected, "two steps"
    assert f.decode_fact("painted", 2, row(colour="ff8000", shine=True), CHAIN) == msgspec.structs.replace(
        expected, shine=True
    )
    kind, version, payload = f.encode_fact(expected)
    assert (version, f.decode_fact(kind, version, payload, {})) == (3, expected), "the present version needs none"


@pytest.mark.usefixtures("painted")
def test_an_upcaster_that_writes_nonsense_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        f.decode_fact("painted", 2, row(), {("painted", 2): lambda old: {**old, "red": "very"}})


def test_every_older_version_has_its_upcaster() -> None:
    for kind, known in f.FACTS.items():
        for old in range(1, known.version):
            assert (kind, old) in f.UPCASTERS
    assert all(kind in f.FACTS and old < f.FACTS[kind].version for kind, old in f.UPCASTERS)
