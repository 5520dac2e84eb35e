"""Ids of experiments, and the proof by which a machine knows the master's folder."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from clutch.workloads.experiment.service.storages import _proof, can_be_opened
from clutch.workloads.experiment.service.submitting import id_of

WORD = re.compile(r"e-[a-z0-9]{8}")


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 9))
def test_an_id_is_short_and_always_the_same(owner: str, key: str, number: int) -> None:
    assert WORD.fullmatch(id_of(owner, key, number))
    assert id_of(owner, key, number) == id_of(owner, key, number)


def test_an_owner_and_a_key_are_not_mixed_up() -> None:
    found = {id_of("ab", "c", 0), id_of("a", "bc", 0), id_of("", "abc", 0), id_of("ab", "c", 1)}
    assert len(found) == 4


def test_the_proof_is_made_once_however_many_ask(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: _proof(tmp_path), range(32)))
    assert len(found) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["storage-proof"]


def test_a_folder_that_the_master_cannot_see_is_not_its_to_judge(tmp_path: Path) -> None:
    assert can_be_opened(f"file://{tmp_path}") and not can_be_opened(f"file://{tmp_path}/nothing")
    assert not can_be_opened("") and not can_be_opened("class:mine:Store") and can_be_opened("s3://bucket")
