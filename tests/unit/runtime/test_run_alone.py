"""A run by itself: the quiet twin keeps everything in a folder, and goes on in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import clutch
from clutch.runtime.info import Info, read_info
from clutch.runtime.local import choose_folder
from clutch.runtime.opening import Given, open_run
from clutch.wire.errors import BadRequest, Conflict, NotFound


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("CLUTCH_") or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return tmp_path


def lines(folder: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def the_run(here: Path) -> Path:
    (found,) = (here / "clutch-runs").iterdir()
    return found


def test_what_is_said_is_in_the_folder(here: Path) -> None:
    with clutch.init(hparams={"lr": 0.1}) as run:
        for step in range(2_500):
            run.report(step, loss=1.0, group="training")
        run.report(7, {"a/b": 2, "group": 3}, group="other")
        assert run.validate(9, accuracy=float("nan"), f1=1)
        run.progress(0.5, "half")
        assert run.experiment == "" and run.trial == 0 and not run.on_cluster and (run.rank, run.size) == (0, 1)
        assert run.best() is None and run.config == {} and run.data == {}
    found = the_run(here)
    assert found.name.startswith("train-")
    said = lines(found)
    assert [point["step"] for point in said[:2_500]] == list(range(2_500))
    assert said[2_500]["values"] == {"a/b": 2, "group": 3} and said[2_500]["group"] == "other"
    assert said[-1] == {"group": "validation", "step": 9, "values": {"accuracy": "NaN", "f1": 1}, "at": said[-1]["at"]}
    assert msgspec.json.decode((found / "run.json").read_bytes())["hparams"] == {"lr": 0.1}


def test_a_script_that_says_nothing_leaves_nothing(here: Path) -> None:
    with clutch.init(hparams={"lr": 0.1}) as run:
        assert run.hparams.lr == 0.1 and run.latest_checkpoint is None
        assert not run.should_stop() and run.stop_reason == "" and run.stop_within_s == 0
    assert list(here.iterdir()) == []


def test_a_run_goes_on_in_its_folder(here: Path) -> None:
    with clutch.init(name="mine") as run:
        run.report(1, loss=1.0)
        for step in (10, 100, 20):
            with run.checkpoint(step, {"n": step}) as path:
                (path / "w").write_text(str(step))
        run.metadata["seen"] = [1, 2]
        run.metadata.update(a=1, b=2)
        del run.metadata["a"]
        assert dict(run.metadata) == {"seen": [1, 2], "b": 2}
    folder = the_run(here)
    for resume in (folder, str(folder), True):
        with clutch.init(name="mine", resume=resume) as run:
            latest = run.latest_checkpoint
            assert latest is not None and latest.step == 100 and latest.metadata == {"n": 100}
            assert (Path(latest) / "w").read_text() == "100" and os.fspath(latest).endswith("step-000000100")
            assert run.metadata["seen"] == [1, 2]
            run.report(2, loss=2.0)
    assert [point["step"] for point in lines(folder)] == [1, 2, 2, 2]
    with clutch.init(name="mine") as run:
        assert run.latest_checkpoint is None, "nothing was said of going on"


def test_metadata_of_a_checkpoint_comes_back_as_it_was(here: Path) -> None:
    said = {"epoch": 3, "digits": "3", "word": "a b", "json": '{"a": 1}', "deep": {"a": [1, None, 2.5]}, "flag": True}
    with clutch.init() as run:
        with run.checkpoint(1, said) as path:
            (path / "w").write_text("x")
        latest = run.latest_checkpoint
        assert latest is not None and latest.metadata == said
        assert [type(value) for value in latest.metadata.values()] == [type(value) for value in said.values()]


def test_the_newest_of_a_name_is_not_that_of_a_longer_name(here: Path) -> None:
    (here / "clutch-runs" / "a-b-20990101-000000").mkdir(parents=True)
    assert choose_folder(True, "a", time.time()).name != "a-b-20990101-000000"
    (here / "clutch-runs" / "a-20200101-000000").mkdir()
    assert choose_folder(True, "a", time.time()).name == "a-20200101-000000"


def test_a_block_that_raises_leaves_no_checkpoint(here: Path) -> None:
    with clutch.init() as run:
        with pytest.raises(ZeroDivisionError), run.checkpoint(1) as path:
            (path / "w").write_text("x")
            _ = 1 // 0
        assert run.latest_checkpoint is None
        with pytest.raises(NotFound, match="step 2"), run.checkpoint(2) as path:
            path.rmdir()
        with run.checkpoint(3) as path:
            (path / "w").write_text("x")
        with run.checkpoint(3) as path:
            (path / "w").write_text("y")
        assert (run.latest_checkpoint / "w").read_text() == "y"  # type: ignore[operator]
    assert sorted(path.name for path in (the_run(here) / "checkpoints").iterdir()) == [
        "step-000000003",
        "step-000000003.json",
    ]


def test_hyperparameters_come_from_three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"lr": 0.1, "model": {"width": 1, "depth": 1}, "only": "default"}
    monkeypatch.setenv("CLUTCH_HPARAMS", '{"lr": 0.2, "model": {"width": 2}}')
    monkeypatch.setattr(sys, "argv", ["train.py", "--hparams", '{"lr": 0.3}', '--hparams={"new": 1}'])
    with clutch.init(hparams=given) as run:
        assert run.hparams == {"lr": 0.3, "model": {"width": 2, "depth": 1}, "only": "default", "new": 1}
    monkeypatch.setattr(sys, "argv", ["train.py", "--hparams", "[1]"])
    with pytest.raises(BadRequest, match="--hparams"):
        clutch.init()


def test_one_operation_as_long_as_is_wanted() -> None:
    with clutch.init(max_length=10) as run:
        lengths = []
        for operation in run.operations():
            operation.report_progress(5)
            lengths.append(operation.length)
            operation.complete(0.5)
            with pytest.raises(Conflict):
                operation.complete(0.5)
        assert lengths == [10] and list(run.operations()) == []
    with clutch.init() as run:
        lengths = []
        for operation in run.operations():
            lengths.append(operation.length)
            operation.complete()
        assert lengths == [1], "a script that only does what it is asked for does something"
    with clutch.init(max_length=10) as run, pytest.raises(BadRequest, match=r"operation to 10.*left without"):
        for _ in run.operations():
            run.validate(9, accuracy=0.5)
    with clutch.init(max_length=10) as run:
        seen = []
        for operation in run.operations():
            seen.append(operation)
            run.validate(10, accuracy=0.5)
        assert [operation.completed for operation in seen] == [True], "a validation at its length completes it"


def test_hyperparameters_that_cannot_be_are_said_where_nobody_replaces_them() -> None:
    with pytest.raises(clutch.InvalidHparams, match="too wide"), clutch.init() as run:
        run.invalid_hparams("too wide")


def test_only_rank_zero_speaks() -> None:
    for rank in ("1", "3"):
        environment = {"RANK": rank, "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
        with open_run(Given(), lambda: pytest.fail(""), read_info(environment)) as run:
            for call in (lambda: run.report(1, a=1), lambda: run.validate(1, a=1), lambda: run.checkpoint(1)):
                with pytest.raises(Conflict, match=f"rank {rank} of 4.*run.rank == 0"):
                    call()
            run.progress(0.5)
            run.profile()
            assert run.latest_checkpoint is None and not run.should_stop()


def test_a_run_that_has_ended_says_so(here: Path) -> None:
    with clutch.init() as run:
        run.report(1, a=1)
    with pytest.raises(Conflict, match="it has ended"):
        run.report(2, a=1)
    with pytest.raises(Conflict, match="it has ended"):
        run.checkpoint(2)
    run.close()


def test_a_forked_process_does_not_report(here: Path) -> None:
    text = """
import os, clutch
with clutch.init() as run:
    run.report(1, a=1)
    child = os.fork()
    if child == 0:
        try:
            run.report(2, a=2)
        except clutch.wire.errors.Conflict as error:
            raise SystemExit(7 if "forked" in str(error) else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    run.report(3, a=3)
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
    assert [point["step"] for point in lines(the_run(here))] == [1, 3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_ends(here: Path, number: signal.Signals) -> None:
    text = """
import sys, time, clutch
with clutch.init() as run:
    print("begun", flush=True)
    while not run.should_stop():
        time.sleep(0.01)
    print(run.stop_reason, run.validate(1, a=1), flush=True)
    time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None and script.stdout.readline() == "begun\n"
        script.send_signal(number)
        assert script.stdout.readline() == "signal False\n"
        script.send_signal(number)
        script.wait(timeout=30)
        assert script.returncode in (-signal.SIGTERM, -signal.SIGINT, 1, 130)


def test_signals_of_others_are_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with clutch.init() as run:
            os.kill(os.getpid(), signal.SIGTERM)
            assert seen and not run.should_stop()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_library_that_puts_a_signals_handler_back_does_no_harm() -> None:
    """Lightning restores what it found when its training began."""
    with clutch.init() as run:
        found = signal.getsignal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert run.should_stop()
        signal.signal(signal.SIGINT, found)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, found)
    with clutch.init() as run:
        signal.raise_signal(signal.SIGINT)
        assert run.should_stop()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_in_a_thread_has_no_signals() -> None:
    found: list[bool] = []

    def work() -> None:
        with clutch.init() as run:
            run.report(1, a=1)
            found.append(run.should_stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert found == [False]


def test_without_a_block_everything_arrives_at_the_end(here: Path) -> None:
    text = "import clutch\nrun = clutch.init()\nfor step in range(1500): run.report(step, a=step)\n"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
    assert len(lines(the_run(here))) == 1_500


def test_reports_go_on_when_their_folder_cannot_be_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "clutch-runs").write_text("in the way")
    with clutch.init() as run:
        for step in range(10):
            run.report(step, a=1)
        run.validate(1, a=1)
    assert "clutch: " in capsys.readouterr().err


def test_folders_for_what_a_run_leaves(here: Path) -> None:
    with clutch.init() as run:
        assert run.tensorboard_dir.is_dir() and run.tensorboard_dir.parent == run.output_dir == the_run(here)


def test_an_empty_environment_is_nobody() -> None:
    assert read_info({}) == Info()
