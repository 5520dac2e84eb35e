"""Runs on several ranks: they stop at the same call, report as one, and end alike."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import msgspec
import pytest
from ranks_ground import Ranks

TOGETHER = 'clutch.init(distributed="environment")'


def test_a_run_knows_its_ranks_and_they_speak(tmp_path: Path) -> None:
    text = f"""
    with {TOGETHER} as run:
        ranks = run.distributed
        assert (run.rank, run.size) == (RANK, 3) == (ranks.rank, ranks.size)
        say(all=ranks.allgather(run.rank * 10), local=ranks.broadcast_local(run.rank), folder=run.output_dir)
    """
    with Ranks(text, 3, tmp_path) as ranks:
        said = ranks.lines()
        ranks.done()
    assert all(one["all"] == [0, 10, 20] and one["local"] == 0 for one in said)
    assert len({one["folder"] for one in said}) == 1


def test_a_run_of_one_process_has_ranks_too(tmp_path: Path) -> None:
    text = """
    with clutch.init() as run:
        say(all=run.distributed.allgather(7), size=run.distributed.size)
    """
    with Ranks(text, 1, tmp_path) as ranks:
        assert ranks.line(0) == {"all": [7], "size": 1}
        ranks.done()


def test_all_ranks_stop_at_the_same_call(tmp_path: Path) -> None:
    """Twenty times: one of four ranks is asked at a random moment, while they step as quickly or slowly as they do."""
    text = """
    import random
    from clutch.runtime.distributed import Group
    group = Group.from_environment()
    for trial in range(20):
        group.barrier()
        with clutch.init(distributed=group) as run:
            pace = random.Random(trial * 4 + RANK)
            say(ready=trial, folder=run.output_dir)
            count, waited = 0, 0.0
            while True:
                began = time.perf_counter()
                stop = run.should_stop()
                waited = max(waited, time.perf_counter() - began)
                count += 1
                if stop:
                    break
                if trial % 3:
                    time.sleep(pace.random() * 0.003)
            say(count=count, reason=run.stop_reason, waited=waited, again=run.should_stop())
    """
    chance = random.Random(3)
    stopped = []
    with Ranks(text, 4, tmp_path) as ranks:
        for trial in range(20):
            assert [one["ready"] for one in ranks.lines()] == [trial] * 4
            signal.sigtimedwait([], chance.random() * 0.15)  # a random moment
            ranks.kill(chance.randrange(4), signal.SIGTERM)
            found = ranks.lines()
            assert len({one["count"] for one in found}) == 1, (trial, found)
            assert all(one["reason"] == "signal" and one["again"] for one in found)
            stopped.append(found[0]["count"])
        ranks.done()
    assert len(set(stopped)) > 5, stopped


def test_only_the_chief_asks_where_that_is_the_mode(tmp_path: Path) -> None:
    text = """
    with clutch.init(distributed="environment", preempt_mode="chief-only") as run:
        try:
            say(stop=run.should_stop())
        except BadRequest as error:
            say(stop=str(error))
    """
    with Ranks(text, 2, tmp_path) as ranks:
        chief, other = ranks.lines()
        ranks.done()
    assert chief["stop"] is False
    assert "rank 1 of 2 cannot ask whether to stop" in other["stop"] and "workers-ask-chief" in other["stop"]


def test_each_rank_hears_for_itself_where_that_is_the_mode(tmp_path: Path) -> None:
    text = """
    with clutch.init(distributed="environment", preempt_mode="workers-ask-master") as run:
        if RANK == 1:
            signal.raise_signal(signal.SIGTERM)
        say(stop=run.should_stop())
    """
    with Ranks(text, 2, tmp_path) as ranks:
        assert [one["stop"] for one in ranks.lines()] == [False, True]
        ranks.done()


def test_reports_of_all_ranks_are_reduced_and_the_chief_reports(tmp_path: Path) -> None:
    text = f"""
    class Spread:
        def per_rank(self, value): return [min(value), max(value)]
        def across(self, values): return max(b for a, b in values) - min(a for a, b in values)
    with {TOGETHER} as run:
        run.report(1, loss=RANK, all_ranks=True)
        run.report(2, loss=RANK, n=1, spread=[RANK, 10 * RANK], all_ranks=True,
                   reducer={{"loss": "max", "n": "sum", "spread": Spread()}})
        run.report(3, {{"first": 5 + RANK}}, group="other", all_ranks=True, reducer=lambda values: values[0])
        go_on = run.validate(3, accuracy=RANK / 2, all_ranks=True)
        if run.rank == 0:
            run.report(4, alone=1)
        for call in (lambda: run.report(5, a=1), lambda: run.validate(5, a=1), lambda: run.checkpoint(5)):
            if run.rank:
                try:
                    call()
                except Conflict as error:
                    assert "rank 0 only" in str(error) and "on every rank" in str(error), error
                else:
                    raise AssertionError
        say(go_on=go_on, folder=run.output_dir)
    """
    with Ranks(text, 3, tmp_path) as ranks:
        said = ranks.lines()
        ranks.done()
    lines = (Path(said[0]["folder"]) / "metrics.jsonl").read_text().splitlines()
    points = {(p["group"], p["step"]): p["values"] for p in map(msgspec.json.decode, lines)}
    assert points == {
        ("training", 1): {"loss": 1.0},
        ("training", 2): {"loss": 2, "n": 3, "spread": 20},
        ("other", 3): {"first": 5},
        ("validation", 3): {"accuracy": 0.5},
        ("training", 4): {"alone": 1},
    }
    assert [one["go_on"] for one in said] == [True] * 3


WRONG = {
    "run.report(RANK, a=1, all_ranks=True)": "rank 0 reports training at step 0 while rank 1 reports",
    "run.report(1, {'a': 1} if RANK < 2 else {'b': 1}, all_ranks=True)": "ranks 2 do not report it",
    "run.report(1, a='x' if RANK == 1 else 1, all_ranks=True)": "rank 1, metric 'a' of training at step 1: 'x' is a",
    "run.report(1, a=1, all_ranks=True, reducer='sum' if RANK else 'max')": "different ways: max, sum",
    "run.report(1, a=1, all_ranks=True, reducer={'b': 'sum'})": "no reducer is given for it",
    "run.report(1, a=1, all_ranks=True, reducer='mode')": "no reducer is called 'mode'",
    "run.report(1, a=1, all_ranks=True, reducer=lambda v: 1 / 0)": "its reducer raised ZeroDivisionError",
    "run.report(1, a=1, all_ranks=True, reducer=lambda v: v)": "a list is not a number",
    "run.report(1, a=object() if RANK == 2 else 1, all_ranks=True, reducer=max)": "object cannot be sent between ranks",
    "run.report(1, all_ranks=True)": "no metric is given",
}


def test_a_report_that_goes_wrong_on_one_rank_does_on_all_with_the_same_words(tmp_path: Path) -> None:
    text = f"""
    with {TOGETHER} as run:
        for call in {list(WRONG)!r}:
            try:
                eval(call)
            except ClutchError as error:
                say(error=str(error))
        run.report(9, fine=1, all_ranks=True)   # nobody is out of step
        say(folder=run.output_dir)
    """
    with Ranks(text, 3, tmp_path) as ranks:
        for call, says in WRONG.items():
            errors = [one["error"] for one in ranks.lines()]
            assert len(set(errors)) == 1 and says in errors[0], (call, errors)
        folders = ranks.lines()
        ranks.done()
    lines = (Path(folders[0]["folder"]) / "metrics.jsonl").read_text().splitlines()
    assert [msgspec.json.decode(line)["step"] for line in lines] == [9]


def test_what_a_validation_of_all_ranks_decides_is_heard_by_all(tmp_path: Path) -> None:
    text = f"""
    with {TOGETHER} as run:
        assert run.validate(1, a=1, all_ranks=True)
        if RANK == 0:
            signal.raise_signal(signal.SIGTERM)
        say(go_on=run.validate(2, a=1, all_ranks=True), stop=run.should_stop(), reason=run.stop_reason)
    """
    with Ranks(text, 3, tmp_path) as ranks:
        assert ranks.lines() == [{"go_on": False, "stop": True, "reason": "signal"}] * 3
        ranks.done()


def test_ranks_make_one_run_after_the_other(tmp_path: Path) -> None:
    text = f"""
    for number in range(3):
        with {TOGETHER} as run:
            run.report(number, a=1, all_ranks=True)
            say(number=number, all=run.distributed.allgather(RANK))
            if RANK == 0:
                time.sleep(0.5)  # the others come again before it has gone
    """
    with Ranks(text, 3, tmp_path) as ranks:
        for number in range(3):
            assert ranks.lines() == [{"number": number, "all": [0, 1, 2]}] * 3
        ranks.done()


def test_a_rank_that_fails_is_named_on_the_others(tmp_path: Path) -> None:
    text = f"""
    with {TOGETHER} as run:
        run.distributed.barrier()
        if RANK == 1:
            raise ValueError("no such file")
        try:
            run.distributed.barrier()
        except PeerLost as error:
            say(error=str(error))
    """
    with Ranks(text, 3, tmp_path) as ranks:
        for rank in (0, 2):
            error = ranks.line(rank)["error"]
            assert error.startswith("rank 1: it failed: ValueError: no such file"), error
        assert ranks.wait() == [0, 1, 0]


def test_ranks_that_cannot_meet_are_told_why(tmp_path: Path) -> None:
    """In a task of a cluster whose launcher has written nothing to meet by."""
    text = """
    try:
        clutch.init()
    except Conflict as error:
        say(error=str(error))
    clutch.init(distributed=False).close()
    """
    cluster = {
        "CLUTCH_TASK": "t", "CLUTCH_MASTERS": "http://127.0.0.1:9", "CLUTCH_TOKEN": "x", "CLUTCH_COMMS_PORT": "",
        "CLUTCH_FLUSH_WITHIN_S": "0.1",
    }  # fmt: skip
    with Ranks(text, 2, tmp_path, cluster) as ranks:
        for rank, said in enumerate(ranks.lines()):
            assert f"rank {rank} of 2 processes has no group with the others" in said["error"]
            assert "CLUTCH_COMMS_PORT" in said["error"] and "distributed=False" in said["error"]
        ranks.done()


@pytest.mark.parametrize("completing", ["op.complete(0.5)", "run.validate(7, loss=0.5)"])
def test_what_a_search_asks_is_the_same_on_all_ranks(tmp_path: Path, completing: str) -> None:
    text = """
    with clutch.init(distributed="environment", max_length=7) as run:
        for op in run.operations():
            op.report_progress(3)
            length = op.length
            if RANK == 0:
                COMPLETING
        say(length=length)
        try:
            run.metadata["a"] = RANK
        except Conflict as error:
            say(refused=str(error))
        else:
            say(kept=run.metadata["a"])
        say(best=run.best(all_ranks=True))
    """.replace("COMPLETING", completing)
    with Ranks(text, 3, tmp_path) as ranks:
        assert ranks.lines() == [{"length": 7}] * 3
        chief, *others = ranks.lines()
        assert chief == {"kept": 0}
        assert all("cannot change metadata" in one["refused"] for one in others)
        assert ranks.lines() == [{"best": None}] * 3
        ranks.done()


def test_an_operation_that_the_chief_did_not_complete_is_an_error_on_all(tmp_path: Path) -> None:
    text = """
    with clutch.init(distributed="environment", max_length=7) as run:
        try:
            for op in run.operations():
                if RANK:
                    op.complete()
        except BadRequest as error:
            say(error=str(error))
    """
    with Ranks(text, 2, tmp_path) as ranks:
        first, second = ranks.lines()
        ranks.done()
    assert first == second and "operation to 7: it was left without" in first["error"]
