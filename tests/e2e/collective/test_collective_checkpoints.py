"""One checkpoint of all ranks: the union of what they bring, or the same error on each and nothing at all."""

from __future__ import annotations

import time
from pathlib import Path

from ranks_ground import Ranks, checkpoints, files

from clutch.testing.bars import within

TOGETHER = 'clutch.init(distributed="environment")'


def test_every_rank_writes_its_part_and_the_whole_is_one(tmp_path: Path) -> None:
    text = f"""
    with {TOGETHER} as run:
        same = {{"config/shared.json": "the same"}}
        attempt(run, 5, {{f"part-{{RANK}}": f"of {{RANK}}", f"deep/rank-{{RANK}}/x": "", **same}},
                {{"by": {{str(RANK): RANK * 1.5}}, "all": "same"}})
        found = run.restore()
        say(files=sorted(str(p.relative_to(found)) for p in Path(found).rglob("*") if p.is_file()),
            metadata=found.metadata, path=found.path)
    """
    with Ranks(text, 3, tmp_path) as ranks:
        saved, found = ranks.lines(), ranks.lines()
        ranks.done()
    assert saved == [{"id": "step-000000005", "step": 5}] * 3
    assert found[0] == found[1] == found[2]
    (kept,) = checkpoints(tmp_path)
    assert files(kept) == {
        "part-0": "of 0", "part-1": "of 1", "part-2": "of 2",
        "deep/rank-0/x": "", "deep/rank-1/x": "", "deep/rank-2/x": "",
        "config/shared.json": "the same",
    }  # fmt: skip
    assert found[0]["files"] == sorted(files(kept))
    assert found[0]["metadata"]["by"] == {"0": 0.0, "1": 1.5, "2": 3.0}
    assert found[0]["metadata"]["all"] == "same"
    assert not list(tmp_path.glob("clutch-runs/*/checkpoints/.draft*"))


def test_folders_without_files_are_kept(tmp_path: Path) -> None:
    text = f"""
    with {TOGETHER} as run:
        with run.checkpoint(5, shard=True) as path:
            (path / "all" / "empty").mkdir(parents=True)
            (path / "filled").mkdir()
            (path / f"own-{{RANK}}").mkdir()
            if RANK == 1:
                (path / "filled" / "x").write_text("x")
        found = run.restore()
        say(found=sorted(str(p.relative_to(found)) for p in Path(found).rglob("*")))
    """
    with Ranks(text, 2, tmp_path) as ranks:
        found = ranks.lines()
        ranks.done()
    assert [one["found"] for one in found] == [["all", "all/empty", "filled", "filled/x", "own-0", "own-1"]] * 2


WRONG = {
    "attempt(run, 1, {'x': str(RANK)})": "x has different contents on ranks 0, 1, 2",
    "attempt(run, 1, {'m/x': ''} if RANK == 2 else {'m': ''})": "m is a file on ranks 0, 1 and a folder on rank 2",
    "attempt(run, 1, {}, {'a': {'b': RANK // 2}})": "its metadata a.b differs between ranks 0, 1, 2",
    "attempt(run, RANK, {})": "rank 0 saves step 0 '' while rank 1 saves step 1 ''",
    "attempt(run, 1, {}, label=str(RANK))": "rank 0 saves step 1 '0' while rank 1 saves step 1 '1'",
    "attempt(run, 1, {}, {'a': object() if RANK == 1 else 1})": "rank 1, metadata of checkpoint of step 1",
}


def test_what_does_not_fit_together_is_the_same_error_on_all_and_nothing_is_kept(tmp_path: Path) -> None:
    text = f"""
    def failing(run):
        try:
            with run.checkpoint(2, shard=True) as path:
                (path / "x").write_text("x")
                if RANK == 1:
                    raise KeyError("mine")
                if RANK == 2:
                    os.symlink("/etc/passwd", path / "link")
        except (KeyError, ClutchError) as error:
            say(error=str(error), kind=type(error).__name__)
    with {TOGETHER} as run:
        for call in {list(WRONG)!r}:
            eval(call)
        failing(run)
        try:
            with run.checkpoint(3, shard=True) as path:
                if RANK == 2:
                    os.symlink("/etc/passwd", path / "link")
        except ClutchError as error:
            say(error=str(error))
        say(latest=run.latest_checkpoint)
        attempt(run, 4, {{"fine": "fine"}})
    """
    with Ranks(text, 3, tmp_path) as ranks:
        for call, says in WRONG.items():
            errors = [one["error"] for one in ranks.lines()]
            assert len(set(errors)) == 1 and says in errors[0], (call, errors)
        first, own, other = ranks.lines()
        assert own["kind"] == "KeyError" and first == other
        assert first["error"].startswith("rank 1: KeyError: 'mine'"), first
        errors = [one["error"] for one in ranks.lines()]
        assert len(set(errors)) == 1 and errors[0].startswith("rank 2, link"), errors
        assert ranks.lines() == [{"latest": None}] * 3
        assert [one["step"] for one in ranks.lines()] == [4] * 3
        ranks.done()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000004"]
    assert not list(tmp_path.glob("clutch-runs/*/checkpoints/.draft*"))


def test_ranks_with_one_folder_store_it_once_and_it_stays(tmp_path: Path) -> None:
    """A folder that all write into, through different paths to it."""
    shared = tmp_path / "shared"
    text = f"""
    with {TOGETHER} as run:
        run.distributed.barrier()
        own = Path({str(tmp_path)!r}) / f"way-{{RANK}}"
        Path({str(shared)!r}).mkdir(exist_ok=True)
        os.symlink({str(shared)!r}, own)
        attempt(run, 5, {{f"part-{{RANK}}": "x"}}, folder=own)
        assert (own / f"part-{{RANK}}").exists()
    """
    with Ranks(text, 3, tmp_path) as ranks:
        assert [one["step"] for one in ranks.lines()] == [5] * 3
        ranks.done()
    (kept,) = checkpoints(tmp_path)
    assert files(kept) == files(shared) == {"part-0": "x", "part-1": "x", "part-2": "x"}


def test_a_rank_that_dies_inside_is_named_within_seconds_and_nothing_is_kept(tmp_path: Path) -> None:
    text = f"""
    with {TOGETHER} as run:
        try:
            with run.checkpoint(5, shard=True) as path:
                (path / f"part-{{RANK}}").write_text("x")
                say(inside=True)
                if RANK == 1:
                    heard()
        except ClutchError as error:
            say(error=str(error))
            say(latest=run.latest_checkpoint)
    """
    with Ranks(text, 4, tmp_path) as ranks:
        ranks.lines()
        began = time.monotonic()
        ranks.kill(1)
        for rank in (0, 2, 3):
            error = ranks.line(rank)["error"]
            assert error.startswith("rank 1: ") and "died" in error, error
            assert ranks.line(rank) == {"latest": None}
        took_s = time.monotonic() - began
        assert ranks.wait() == [0, -9, 0, 0]
    assert took_s < within(8.0), took_s
    assert not checkpoints(tmp_path)
    print(f"a rank that died was named on all others {took_s:.2f} s later")


def test_a_checkpoint_that_all_write_is_not_made_in_the_background(tmp_path: Path) -> None:
    text = f"""
    with {TOGETHER} as run:
        try:
            run.checkpoint(1, shard=True, background=True)
        except BadRequest as error:
            say(error=str(error))
    """
    with Ranks(text, 2, tmp_path) as ranks:
        assert all("cannot be stored in the background" in one["error"] for one in ranks.lines())
        ranks.done()
