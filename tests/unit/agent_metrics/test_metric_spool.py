"""What a dead member left of its spool, however it was cut, doubled, shuffled or made up."""

from __future__ import annotations

import json
import os
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clutch.agent.metric_spool import GAP_MAX, SPOOL_MAX_BYTES, NoSpool, Spooled, look, prefix_of, read_line
from clutch.backends.containers.base import Key
from clutch.runtime.info import read_info
from clutch.runtime.opening import spool_name
from clutch.runtime.spool import SEQUENCE, SPOOL, Spool
from clutch.wire.ids import Fence, MemberId, TaskId

KEY = Key(MemberId(TaskId("e-1.2"), "main", 0), Fence(1, 2, 3))
NAME = f"{prefix_of(KEY)}{'0' * 12}"


def put(tmp: Path, lines: bytes, sequence: bytes | None = None) -> Path:
    folder = tmp / NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPOOL).write_bytes(lines)
    if sequence is not None:
        (folder / SEQUENCE).write_bytes(sequence)
    return folder


def line(number: int, text: str = "x") -> bytes:
    point = {"group": "training", "step": number, "values": {"note": text}, "at": 1.0}
    return json.dumps({"sequence": number, "points": [point]}).encode() + b"\n"


def numbers(last: int, acknowledged: int) -> bytes:
    return b"%020d %020d\n" % (last, acknowledged)


def read(found: Spooled | None, after: int = 0) -> list[dict[str, Any]]:
    if found is None or not len(found):
        return []
    with found.opened() as descriptor:
        return [json.loads(read_line(descriptor, offset, size)) for _, offset, size in found.after(after)]


def texts(found: Spooled | None) -> dict[int, str]:
    return {batch["sequence"]: batch["points"][0]["values"]["note"] for batch in read(found)}


# -- as its writer leaves it ---------------------------------------------------------------------------------------


def test_it_is_found_under_the_name_that_its_writer_gives_it(tmp_path: Path) -> None:
    for task in ("e-1.2", "a name/with:signs", "ümlaut"):
        key = Key(MemberId(TaskId(task), "wörker", 3), Fence(7, 8, 9))
        around = {
            "CLUTCH_TASK": task, "CLUTCH_ROLE": "wörker", "CLUTCH_RANK": "3", "CLUTCH_FENCE": str(key.fence),
            "CLUTCH_TOKEN": "secret", "CLUTCH_MASTERS": "http://127.0.0.1:1", "TMPDIR": str(tmp_path),
        }  # fmt: skip
        spool = Spool(tmp_path / spool_name(read_info(around)))
        assert look(tmp_path, key) is None, "nothing was spooled yet"
        spool.put([("training", 1, {"loss": 1.0}, 2.0)])
        spool.close()
        found = look(tmp_path, key)
        assert found is not None and found.last == 1 and not found.notice
        assert look(tmp_path, Key(key.member, Fence(7, 8, 10))) is None, "another incarnation's is none of its own"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    puts=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    acknowledged=st.integers(0, 20),
    cut=st.integers(0, 400),
    max_bytes=st.sampled_from([600, 5_000, 1 << 20]),
)
def test_what_a_real_writer_left_is_read_and_a_torn_end_is_not(
    tmp_path_factory: pytest.TempPathFactory, puts: list[int], acknowledged: int, cut: int, max_bytes: int
) -> None:
    tmp = tmp_path_factory.mktemp("tmp")
    spool = Spool(tmp / NAME, max_bytes=max_bytes)
    for number, points in enumerate(puts):
        spool.put([("validation", number, {"loss": float(each)}, 1.0) for each in range(points)])
    spool.acknowledge(min(acknowledged, len(puts)))
    expected = {number: json.loads(text) for number, text in spool.take(1 << 30)}
    spool.close()
    path = tmp / NAME / SPOOL
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])  # killed while it wrote, or the machine lost the end
    lost = whole[max(0, len(whole) - cut) :].count(b"\n")
    for number in sorted(expected)[max(0, len(expected) - lost) :] if lost else ():
        del expected[number]
    found = look(tmp, KEY)
    live = [batch for batch in read(found) if batch["sequence"] > min(acknowledged, len(puts))]
    assert live == [expected[number] for number in sorted(expected)]
    assert found is None or found.last == max([0, *expected, *(b["sequence"] for b in read(found))])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_lines_in_any_order_doubled_and_between_junk(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tmp = tmp_path_factory.mktemp("tmp")
    first = data.draw(st.integers(1, 50))
    chosen = data.draw(st.lists(st.integers(first, first + 40), min_size=1, max_size=30))
    parts, expected = [], dict[int, str]()
    for place, number in enumerate(chosen):
        parts.append(line(number, f"t{place}"))
        expected.setdefault(number, f"t{place}")
        if data.draw(st.booleans()):
            parts.append(data.draw(st.binary(max_size=30)).replace(b"{", b"") + b"\n")
    tail = data.draw(st.sampled_from([b"", b"{", line(99)[:-1], b"\0" * 40]))
    known = data.draw(st.sampled_from([None, b"", b"junk", numbers(0, 0), numbers(2**70 % 10**19, 3), numbers(1, 9)]))
    put(tmp, b"".join(parts) + tail, known)
    found = look(tmp, KEY)
    assert texts(found) == expected
    assert found is not None and found.last == max(expected)
    assert [batch["sequence"] for batch in read(found, after=first + 5)] == sorted(n for n in expected if n > first + 5)


def test_a_writer_that_was_killed_while_it_thinned(tmp_path: Path) -> None:
    """Shorter lines stand before what is left of the old ones."""
    old = b"".join(line(number, "long" * 50) for number in range(1, 20))
    new = b"".join(line(number, "short") for number in range(1, 8))
    put(tmp_path, new + old[len(new) :], numbers(19, 0))
    found = texts(look(tmp_path, KEY))
    assert list(found) == list(range(1, 20))
    assert [number for number, text in found.items() if text == "short"] == list(range(1, 8))


def test_a_huge_one_is_read_without_holding_it(tmp_path: Path) -> None:
    folder = put(tmp_path, b"", numbers(640, 0))
    with (folder / SPOOL).open("wb") as file:
        for number in range(1, 641):
            file.write(line(number, "x" * 100_000))
    assert (folder / SPOOL).stat().st_size > 60 << 20
    tracemalloc.start()
    try:
        found = look(tmp_path, KEY)
        assert found is not None and (found.last, len(found)) == (640, 640)
        with found.opened() as descriptor:
            for number, offset, size in found.after(0):
                assert read_line(descriptor, offset, size).startswith(b'{"sequence": %d,' % number)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20, f"{peak} bytes"


# -- as nobody of ours leaves it -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (b"what is this\n" * 100, "no line of a spool"),
        (b'{"sequence": 0, "points": []}\n{"sequence": -4, "points": []}\n', "no line of a spool"),
        (b'{"sequence": 99999999999999999999, "points": []}\n', "no line of a spool"),
        (b"[" * 100_000 + b"\n", "no line of a spool"),
    ],
)
def test_junk_is_ignored_and_said(tmp_path: Path, lines: bytes, words: str) -> None:
    put(tmp_path, lines, numbers(7, 3))
    found = look(tmp_path, KEY)
    assert found is not None and (found.last, len(found)) == (0, 0) and words in found.notice


def test_numbers_that_jump_are_not_believed(tmp_path: Path) -> None:
    put(tmp_path, line(1) + line(2) + line(2 + GAP_MAX + 2) + line(2**61), numbers(2**61, 0))
    found = look(tmp_path, KEY)
    assert found is not None and found.last == 2 and "are ignored" in found.notice
    put(tmp_path, line(1) + line(2 + GAP_MAX), numbers(0, 0))
    found = look(tmp_path, KEY)
    assert found is not None and found.last == 2 + GAP_MAX and not found.notice


def test_no_link_is_followed_and_nothing_is_waited_for(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(line(1, "of somebody else"))
    for number, make in enumerate(
        (
            lambda path: path.symlink_to(secret),
            lambda path: os.link(secret, path),
            lambda path: os.mkfifo(path),
            lambda path: path.mkdir(),
        )
    ):
        tmp = tmp_path / str(number)
        (tmp / NAME).mkdir(parents=True)
        make(tmp / NAME / SPOOL)
        found = look(tmp, KEY)
        assert found is not None and found.last == 0 and found.notice, number
    other = tmp_path / "other"
    put(other, line(1))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / NAME).symlink_to(other / NAME)
    found = look(tmp_path / "linked", KEY)
    assert found is not None and found.last == 0 and "cannot be read" in found.notice


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    folder = put(tmp_path, b"")
    os.truncate(folder / SPOOL, SPOOL_MAX_BYTES + 1)  # with nothing in it: no disk is needed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    found = look(tmp_path, KEY)
    assert found is not None and str(SPOOL_MAX_BYTES + 1) in found.notice
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 0.5


def test_one_that_changes_behind_our_back_is_given_up(tmp_path: Path) -> None:
    folder = put(tmp_path, line(1) + line(2))
    found = look(tmp_path, KEY)
    assert found is not None
    (folder / SPOOL).write_bytes(line(1))
    with pytest.raises(NoSpool):
        read(found)


def test_batches_that_were_only_in_memory_are_said_to_be_lost(tmp_path: Path) -> None:
    put(tmp_path, line(5) + line(6), numbers(9, 4))
    found = look(tmp_path, KEY)
    assert found is not None and found.last == 6 and "last 3 batches" in found.notice
