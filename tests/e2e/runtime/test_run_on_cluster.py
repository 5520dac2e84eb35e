"""Scripts as members of a task, with a real master behind the push API."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_ground import RunMaster, Script, until

from clutch.testing.bars import within

DESIGN = """
import json
from pathlib import Path

def load(checkpoint):
    if checkpoint is None:
        return {"weight": 0.0}, 0
    found = json.loads((Path(checkpoint) / "model.json").read_text())
    return found, found["step"]

def train_step(model):
    model["weight"] += 1.0
    return 1.0 / model["weight"]

def evaluate(model):
    return model["weight"] / 1000

def save(model, path):
    (path / "model.json").write_text(json.dumps({**model, "step": int(model["weight"])}))

import clutch
with clutch.init(hparams={"steps": 300}) as run:
    model, start = load(run.latest_checkpoint)            # the last *committed* one, or None
    for step in range(start, run.hparams["steps"]):
        run.report(step, loss=train_step(model))          # never blocks training
        if step % 100 == 99:
            keep_going = run.validate(step, accuracy=evaluate(model))   # feeds the searcher
            with run.checkpoint(step + 1) as path: save(model, path)
            if not keep_going or run.should_stop(): break
print("ended", start, step + 1, flush=True)
"""


def test_the_script_of_the_design(shared: RunMaster, tmp_path: Path) -> None:
    member = shared.do("submit", "design")
    script = Script(DESIGN, shared.environment(member, tmp_path / "tmp"), tmp_path)
    assert script.line() == "ended 0 300", script.stderr
    assert script.wait() == 0 and script.stderr == ""
    losses = shared.values("design", "training", "loss")
    assert losses == [(step, 1.0 / (step + 1)) for step in range(300)]
    assert shared.values("design", "validation", "accuracy") == [(99, 0.1), (199, 0.2), (299, 0.3)]
    assert shared.do("member", "design")["CLUTCH_CHECKPOINT"].startswith("300-")


def test_the_script_of_the_design_by_itself(tmp_path: Path) -> None:
    from runtime_ground import clean

    for expected in ("ended 0 300", "ended 0 300"):
        script = Script(DESIGN, clean(), tmp_path)
        assert script.line() == expected and script.wait() == 0, script.stderr
    assert len(list((tmp_path / "clutch-runs").iterdir())) == 2


PATIENT = """
import sys, clutch
with clutch.init() as run:
    start = 0 if run.latest_checkpoint is None else int((run.latest_checkpoint / "at").read_text())
    step = start
    print("begun", start, run.latest_checkpoint, flush=True)
    while not run.should_stop():
        run.report(step, loss=1.0)
        step += 1
        import time; time.sleep(0.005)
    with run.checkpoint(step, {"why": run.stop_reason}) as path:
        (path / "at").write_text(str(step))
    print("left", step, run.stop_reason, run.stop_within_s > 0, flush=True)
"""


def test_a_run_that_is_asked_to_leave_comes_back_where_it_was(shared: RunMaster, tmp_path: Path) -> None:
    member = shared.do("submit", "patient")
    script = Script(PATIENT, shared.environment(member, tmp_path / "tmp"), tmp_path)
    assert script.line() == "begun 0 None"
    shared.do("pause", "patient")
    left = script.line().split()
    assert left[0] == "left" and left[2:] == ["paused", "True"], script.stderr
    assert script.wait() == 0
    shared.do("exit", "patient", 0)
    until(lambda: shared.do("state", "patient")["state"] == "paused", "exit 0 after an acknowledged pause waits")

    member = shared.do("resume", "patient")
    script = Script(PATIENT, shared.environment(member, tmp_path / "tmp2"), tmp_path)
    begun = script.line().split()
    assert begun[:2] == ["begun", left[1]] and begun[2] == member["CLUTCH_CHECKPOINT"]
    shared.do("cancel", "patient")
    assert script.line().split()[2] == "cancelled"
    assert script.wait() == 0
    shared.do("exit", "patient", 0)
    until(lambda: shared.do("state", "patient")["state"] == "ended", "it is cancelled")


@pytest.mark.parametrize(("word", "outcome"), [("run.finish()", "ended"), ("pass", "paused")])
def test_work_that_says_it_is_finished_is_done_whatever_was_asked(
    shared: RunMaster, tmp_path: Path, word: str, outcome: str
) -> None:
    task = f"finish-{outcome}"
    member = shared.do("submit", task)
    text = f"""
    import clutch
    with clutch.init() as run:
        print("begun", flush=True)
        while not run.should_stop():
            import time; time.sleep(0.01)
        {word}
    """
    script = Script(text, shared.environment(member, tmp_path / "tmp"), tmp_path)
    assert script.line() == "begun"
    shared.do("pause", task)
    assert script.wait() == 0, script.stderr
    shared.do("exit", task, 0)
    until(lambda: shared.do("state", task)["state"] == outcome, f"it is {outcome}")


def test_work_that_never_asked_whether_to_leave_is_done(shared: RunMaster, tmp_path: Path) -> None:
    member = shared.do("submit", "deaf")
    text = """
    import clutch
    with clutch.init() as run:
        print("begun", flush=True)
        input()
        run.report(1, loss=1.0)
    """
    script = Script(text, shared.environment(member, tmp_path / "tmp"), tmp_path)
    assert script.line() == "begun"
    shared.do("pause", "deaf")
    script.tell()
    assert script.wait() == 0
    shared.do("exit", "deaf", 0)
    until(lambda: shared.do("state", "deaf")["state"] == "ended", "it is done")
    assert shared.values("deaf", "training", "loss") == [(1, 1.0)]


def test_a_failure_is_a_failure_and_its_last_reports_arrive(shared: RunMaster, tmp_path: Path) -> None:
    member = shared.do("submit", "fails")
    text = """
    import clutch
    with clutch.init() as run:
        run.report(1, loss=0.25)
        with run.checkpoint(1) as path:
            (path / "half").write_text("x")
            raise ValueError("of the user's own")
    """
    script = Script(text, shared.environment(member, tmp_path / "tmp"), tmp_path)
    assert script.wait() == 1
    assert "ValueError: of the user's own" in script.stderr and "clutch" not in script.stderr.splitlines()[-1]
    assert shared.values("fails", "training", "loss") == [(1, 0.25)]
    assert shared.do("member", "fails")["CLUTCH_CHECKPOINT"] == ""
    assert not list((tmp_path / "tmp").glob("clutch-checkpoint-*"))


def test_checkpoints_in_the_background_and_of_two_labels(shared: RunMaster, tmp_path: Path) -> None:
    member = shared.do("submit", "background")
    text = """
    import clutch, shutil
    from clutch.wire.errors import NotFound
    with clutch.init() as run:
        saving = run.checkpoint(5, {"note": "a", "more": {"b": 1}}, background=True)
        with saving as path:
            (path / "deep").mkdir()
            (path / "deep" / "w").write_bytes(b"x" * 100_000)
        with run.checkpoint(5, label="other", background=True) as path:
            (path / "w").write_text("second")
        assert saving.id and saving.id.startswith("5-")
        try:
            with run.checkpoint(6) as path:
                shutil.rmtree(path)
        except NotFound as error:
            print(error, flush=True)
        try:
            with run.checkpoint(6) as path, run.checkpoint(7):
                pass
        except Exception as error:
            print(error, flush=True)
        with run.checkpoint(8, {"note": "a", "more": {"b": 1}}) as path:
            (path / "w").write_text("third")
        latest = run.latest_checkpoint
        print(latest.step, latest.metadata, (latest / "w").read_text(), flush=True)
    """
    script = Script(text, shared.environment(member, tmp_path / "tmp"), tmp_path)
    gone, nested, last = script.line(), script.line(), script.line()
    assert script.wait() == 0, script.stderr
    assert "step 6" in gone and "gone" in gone
    assert "another checkpoint of this run is being written" in nested
    assert last == "8 {'note': 'a', 'more': {'b': 1}} third"
    assert not list((tmp_path / "tmp").glob("clutch-checkpoint-*"))
    assert not list((tmp_path / "tmp").glob("clutch-restored-*"))


def test_two_scripts_one_after_the_other_share_an_incarnation(shared: RunMaster, tmp_path: Path) -> None:
    """Numbers of batches go on: what the second reports is not taken for a repeat of the first."""
    environment = shared.environment(shared.do("submit", "twice"), tmp_path / "tmp")
    for value in (1.0, 2.0, 3.0):
        text = f"""
        import clutch
        with clutch.init() as run:
            run.report({int(value)}, loss={value})
            run.validate({int(value)}, accuracy={value})
        """
        assert Script(text, environment, tmp_path).wait() == 0
    assert shared.values("twice", "training", "loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert shared.values("twice", "validation", "accuracy") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_second_process_of_a_member_is_told_that_only_one_reports(shared: RunMaster, tmp_path: Path) -> None:
    environment = shared.environment(shared.do("submit", "both"), tmp_path / "tmp")
    text = """
    import clutch, time
    with clutch.init() as run:
        for step in range(100_000):
            run.validate(step, accuracy=1.0)
            print("said", flush=True)
            input()
    """
    (tmp_path / "a").mkdir()
    first = Script(text, environment, tmp_path / "a")
    assert first.line() == "said"
    until(lambda: shared.values("both", "validation", "accuracy"), "the first one reports")
    second = Script(text, environment, tmp_path)
    for _ in range(1000):
        if second.line() != "said":
            break
        second.tell()
    assert second.wait() == 1
    assert "another process of this member reports already" in second.stderr
    first.kill()


def test_a_validation_is_on_its_way_at_once(shared: RunMaster, tmp_path: Path) -> None:
    environment = shared.environment(shared.do("submit", "quick"), tmp_path / "tmp")
    text = """
    import clutch
    with clutch.init() as run:
        run.report(0, loss=1.0)
        for step in range(3):
            input()
            run.validate(step, accuracy=0.5)
        input()
    """
    import time

    script = Script(text, environment, tmp_path)
    took = []
    for step in range(3):
        script.tell()
        began = time.monotonic()
        until(lambda: len(shared.values("quick", "validation", "accuracy")) == step + 1, "it is stored")  # noqa: B023
        took.append(time.monotonic() - began)
    script.tell()
    assert script.wait() == 0
    assert min(took) < within(0.5), took  # a training point may wait for a second


def test_profiling_reports_what_the_node_does(shared: RunMaster, tmp_path: Path) -> None:
    environment = shared.environment(shared.do("submit", "profile"), tmp_path / "tmp")
    text = """
    import clutch
    with clutch.init() as run:
        run.profile()
        input()
        run.profile(False)
    """
    script = Script(text, environment, tmp_path)
    until(lambda: len({point[3] for point in shared.do("points", "profile")}) >= 2, "two seconds are sampled")
    script.tell()
    assert script.wait() == 0
    found = {f"{group}/{name}": value for group, name, _, _, value in shared.do("points", "profile")}
    assert found["system/memory/used_bytes"] > 0 and 0 <= found["system/cpu/percent"] <= 100
    assert {"system/disk/read_bytes_per_s", "system/network/sent_bytes_per_s"} <= set(found)
