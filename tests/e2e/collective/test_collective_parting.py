"""Ranks whose peer is gone: whoever stays behind is ended, whoever handles it is not, and each leaves word of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ranks_ground import Ranks

from clutch.runtime.collective.parting import GRACE_S
from clutch.testing.bars import within
from clutch.wire.last_words import FAILED, PEER_FAILED, PEER_LOST, PEER_LOST_CODE, Words, understood

LAUNCHED = {"CLUTCH_TASK": "t", "CLUTCH_MASTERS": "http://127.0.0.1:9", "CLUTCH_TOKEN": "t", "CLUTCH_FENCE": "g1e1i1"}
"""As if a cluster had started them; its master is away."""
WORDS = """
os.environ["CLUTCH_LAST_WORDS"] = f"{os.environ['TMPDIR']}/words{RANK}"
"""


def words(folder: Path, rank: int) -> Words | None:
    path = folder / "tmp" / f"words{rank}"
    return understood(path.read_text()) if path.exists() else None


@pytest.mark.timeout(60)
def test_who_stays_behind_is_ended_and_who_handles_it_is_not(tmp_path: Path) -> None:
    text = f"""{WORDS}
class Elsewhere:
    def waits_for_ever(self):
        time.sleep(600)

with clutch.init(on_peer_lost="raise" if RANK == 3 else "end") as run:
    run.distributed.barrier()
    say(ready=RANK)
    if RANK == 0:
        Elsewhere().waits_for_ever()
    if RANK == 2:
        try:
            run.distributed.barrier()
        except PeerLost as error:
            time.sleep({2 * GRACE_S})
            say(saved=RANK, lost=error.ranks)
            raise
    if RANK == 3:
        time.sleep({2 * GRACE_S})
        say(alone=RANK)
        raise RuntimeError("Connection closed by peer")
    heard()
"""
    with Ranks(text, 4, tmp_path, LAUNCHED) as ranks:
        ranks.lines()
        ranks.processes[1].kill()
        at = time.monotonic()
        assert ranks.processes[0].wait(20) == PEER_LOST_CODE
        took_s = time.monotonic() - at
        assert ranks.line(2) == {"saved": 2, "lost": [1]}
        assert ranks.line(3) == {"alone": 3}
        assert [ranks.processes[rank].wait(30) for rank in (2, 3)] == [1, 1]
        said = ranks.stderr(0)
        assert "rank 0 of 4 lost rank 1: it" in said and "waits_for_ever" in said, said
        assert GRACE_S <= took_s < GRACE_S + within(4.0)
    for rank in (0, 2, 3):
        found = words(tmp_path, rank)
        assert found is not None and found.what == PEER_LOST and "rank 1: it" in found.text, (rank, found)


@pytest.mark.timeout(60)
def test_the_one_that_failed_says_so_and_the_others_say_that_it_failed(tmp_path: Path) -> None:
    text = f"""{WORDS}
with clutch.init() as run:
    run.distributed.barrier()
    if RANK == 1:
        raise ValueError("the loss is not finite")
    try:
        run.distributed.barrier()
    except PeerLost:
        sys.exit(9)  # as frameworks do that catch everything
"""
    with Ranks(text, 3, tmp_path, LAUNCHED) as ranks:
        assert [process.wait(30) for process in ranks.processes] == [9, 1, 9]
    assert words(tmp_path, 1) == Words(FAILED, 1, "rank 1 failed: ValueError: the loss is not finite")
    for rank in (0, 2):
        found = words(tmp_path, rank)
        assert found is not None and found.what == PEER_FAILED, found
        assert "rank 1: it failed: ValueError: the loss is not finite" in found.text


@pytest.mark.timeout(60)
def test_a_rank_that_leaves_too_early_is_a_mistake_of_the_program(tmp_path: Path) -> None:
    text = f"""{WORDS}
with clutch.init() as run:
    run.distributed.barrier()
    if RANK == 0:
        run.distributed.barrier()
"""
    with Ranks(text, 2, tmp_path, LAUNCHED) as ranks:
        assert [process.wait(30) for process in ranks.processes] == [1, 0]
        assert "it closed its group before" in ranks.stderr(0)
    found = words(tmp_path, 0)
    assert found is not None and found.what == FAILED and "it closed its group" in found.text, "nobody was lost"
