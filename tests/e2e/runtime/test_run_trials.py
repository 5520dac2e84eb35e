"""Scripts as trials of experiments on a real cluster, and detached ones beside it."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from runtime_ground import Script, clean
from test_run_on_cluster import DESIGN

from clutch.sdk import experiment_calls
from clutch.testing.cluster import Cluster, until
from clutch.wire.experiment_api import SubmitExperiment
from clutch.wire.experiment_views import ExperimentView, TrialView
from clutch.wire.output import OutputQuery


class House:
    """A cluster with one node of four slots."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Cluster(folder / "cluster")

    def submit(self, text: str, hparams: dict[str, Any], searcher: dict[str, Any] | None = None, **more: Any) -> str:
        script = self.folder / f"script{time.monotonic_ns()}.py"
        script.write_text(textwrap.dedent(text))
        config = {
            "name": "test",
            "entrypoint": [sys.executable, str(script)],
            "hyperparameters": hparams,
            "searcher": {"name": "single", "metric": "loss", **(searcher or {})},
            "resources": {"slots_per_trial": 1},
            "max_restarts": 0,
            **more,
        }
        return self.cluster.client.perform(
            experiment_calls.submit_experiment(SubmitExperiment(config=config))
        ).experiment

    def view(self, experiment: str) -> ExperimentView:
        return self.cluster.client.perform(experiment_calls.get_experiment(experiment)).view

    def trials(self, experiment: str) -> list[TrialView]:
        return list(self.cluster.client.perform(experiment_calls.list_trials(experiment, limit=100)).items)

    def output(self, task: str) -> list[str]:
        call = experiment_calls.read_trial_output(task, OutputQuery(task=task))
        return [line.text for line in self.cluster.client.perform(call).lines]

    def until(self, experiment: str, *states: str) -> ExperimentView:
        try:
            return until(lambda: (v := self.view(experiment)).state in states and v, f"{experiment} {states}", 60)  # type: ignore[return-value]
        except AssertionError as error:
            said = [self.output(f"{experiment}.{trial.number}") for trial in self.trials(experiment)]
            raise AssertionError(f"{error}\n{self.view(experiment)}\n{said}") from None

    def values(self, trial: str, group: str, name: str) -> list[tuple[int, Any]]:
        found = self.cluster.client.perform(experiment_calls.trial_metrics(trial, group=group, names=(name,))).items
        return [(point.step, point.value) for series in found for point in series.points]

    def environment(self) -> dict[str, str]:
        """Of somebody who would find this cluster with ``clutch.Client()``."""
        token = (self.cluster.folder / "master0" / "local.token").read_text().strip()
        home = str(self.folder)
        return {**clean(), "CLUTCH_MASTER": self.cluster.urls[0], "CLUTCH_TOKEN": token, "HOME": home, "TMPDIR": home}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("trials"))
    with made.cluster as cluster:
        cluster.start()
        cluster.add_agent("n1", 4)
        cluster.wait_nodes("n1")
        yield made


def test_the_script_of_the_design_as_a_trial(house: House) -> None:
    searcher = {"metric": "accuracy", "smaller_is_better": False}
    experiment = house.submit(DESIGN, {"steps": 200}, searcher)
    house.until(experiment, "completed")
    (trial,) = house.trials(experiment)
    assert house.values(trial.key, "training", "loss") == [(step, 1.0 / (step + 1)) for step in range(200)]
    assert house.values(trial.key, "validation", "accuracy") == [(99, 0.1), (199, 0.2)]
    assert house.output(trial.key)[-1] == "ended 0 200"
    saved = house.cluster.client.perform(experiment_calls.list_checkpoints(experiment, limit=10)).items
    assert max(row.step for row in saved) == 200


def test_a_trial_knows_itself_and_keeps_notes(house: House) -> None:
    text = """
    import clutch, json
    with clutch.init(hparams={"only": "default", "lr": 9}) as run:
        assert run.hparams == {"only": "default", "lr": 0.5, "model": {"width": 3}}, run.hparams
        assert run.hparams.model.width == 3 and run.config["name"] == "test" and run.data == {"url": "x"}
        assert run.best() is None
        run.metadata["a"] = {"b": [1, None]}
        run.metadata.update(c=1, d=2)
        del run.metadata["c"]
        assert dict(run.metadata) == {"a": {"b": [1, None]}, "d": 2}
        run.validate(3, loss=0.5)
        run.progress(0.5, "half way")
        import time
        until = time.monotonic() + 30
        while run.best() is None and time.monotonic() < until:
            time.sleep(0.02)
        best = run.best()
        print(json.dumps([run.experiment, run.trial, run.seed, best.value, best.trial, best.step]), flush=True)
    """
    more = {"data": {"url": "x"}, "reproducibility": {"experiment_seed": 7}}
    experiment = house.submit(text, {"lr": 0.5, "model": {"width": 3}}, **more)
    house.until(experiment, "completed")
    (trial,) = house.trials(experiment)
    said = msgspec.json.decode(house.output(trial.key)[-1])
    assert said[:2] == [experiment, 1] and said[3:] == [0.5, 1, 3] and said[2] != 0
    assert house.cluster.client.perform(experiment_calls.get_trial(trial.key)).metadata == {
        "a": {"b": [1, None]},
        "d": 2,
    }


def test_hyperparameters_that_cannot_be_end_the_trial_and_not_the_search(house: House) -> None:
    text = """
    import clutch
    with clutch.init() as run:
        if run.hparams.width > 2:
            run.invalid_hparams(f"{run.hparams.width} is too wide")
        run.validate(1, loss=run.hparams.width)
    """
    hparams = {"width": {"type": "int", "minval": 1, "maxval": 3}}
    searcher = {"name": "random", "max_trials": 8, "max_concurrent_trials": 4}
    seed = {"experiment_seed": 3}  # with it, some of the first eight are refused
    experiment = house.submit(text, hparams, searcher, reproducibility=seed)
    house.until(experiment, "completed")
    trials = house.trials(experiment)
    states = [trial.state for trial in trials]
    assert states.count("completed") == 8 and states.count("invalid") == len(trials) - 8
    invalid = [trial for trial in trials if trial.state == "invalid"]
    assert invalid, "the space is such that a third of them are refused"
    assert any("is too wide" in line for line in house.output(invalid[0].key))


def test_operations_come_one_after_the_other(house: House) -> None:
    text = """
    import clutch
    with clutch.init() as run:
        done = int((run.latest_checkpoint / "at").read_text()) if run.latest_checkpoint else 0
        for operation in run.operations():
            while done < operation.length and not run.should_stop():
                done += 1
                run.report(done, loss=1.0 / done)
                operation.report_progress(done)
            run.validate(done, loss=run.hparams.base / done)
            with run.checkpoint(done) as path:
                (path / "at").write_text(str(done))
            if done == operation.length and run.hparams.base > 1.5:
                operation.complete()  # for the others their validation says it
            print("done", operation.length, flush=True)
    """
    searcher = {"name": "asha", "max_time": 8, "max_trials": 4, "num_rungs": 2, "divisor": 2, "promotion": True}
    experiment = house.submit(text, {"base": {"type": "double", "minval": 1.0, "maxval": 2.0}}, searcher)
    house.until(experiment, "completed")
    trials = house.trials(experiment)
    lengths = {trial.key: [int(line.split()[1]) for line in house.output(trial.key)] for trial in trials}
    assert len(trials) == 4 and all(found[0] == 4 for found in lengths.values()), lengths
    assert 1 <= sum(found[-1] == 8 for found in lengths.values()) < 4


def test_an_experiment_that_is_paused_goes_on_from_its_last_checkpoint(house: House) -> None:
    text = """
    import clutch, time
    with clutch.init() as run:
        begin = run.latest_checkpoint.step if run.latest_checkpoint else 0
        print("begins", begin, flush=True)
        for step in range(begin, begin + 100_000):
            run.report(step, loss=1.0)
            time.sleep(0.01)
            if run.should_stop():
                with run.checkpoint(step) as path:
                    (path / "w").write_text("x")
                break
            if begin and step > begin + 5:
                break
    """
    experiment = house.submit(text, {})
    until(lambda: house.output(f"{experiment}.1") == ["begins 0"], "it runs", 60)
    house.cluster.client.perform(experiment_calls.move_experiment(experiment, "pause"))
    until(lambda: house.trials(experiment)[0].state == "paused", "it is paused", 60)
    house.cluster.client.perform(experiment_calls.move_experiment(experiment, "resume"))
    house.until(experiment, "completed")
    _, begins = house.output(f"{experiment}.1")
    (saved,) = house.cluster.client.perform(experiment_calls.list_checkpoints(experiment, limit=10)).items
    assert begins == f"begins {saved.step}" and saved.step > 0

    text = """
    import clutch
    with clutch.init() as run:
        print(run.latest_checkpoint, open(run.latest_checkpoint / "w").read())
    """
    warm = house.submit(text, {}, {"source_checkpoint_uuid": saved.key})
    house.until(warm, "completed")
    assert house.output(f"{warm}.1") == [f"{saved.key} x"]


DETACHED = """
import sys, clutch
with clutch.init(detached=True, name="afar", hparams={"lr": 0.5}, resume=sys.argv[1]) as run:
    begin = run.latest_checkpoint.step if run.latest_checkpoint else 0
    print("begins", begin, run.experiment, run.trial, flush=True)
    for step in range(begin, begin + 5):
        run.report(step, loss=1.0 / (step + 1))
    run.validate(begin + 5, loss=0.1)
    with run.checkpoint(begin + 5) as path:
        (path / "w").write_bytes(b"x" * 1000)
    print("to the error stream", file=sys.stderr)
    input()
    if sys.argv[2] == "fail":
        raise ValueError("on purpose")
"""


def test_a_detached_run_reports_like_any_other(house: House, tmp_path: Path) -> None:
    first = Script(DETACHED, house.environment(), tmp_path, "key-1", "fail")
    begins = first.line().split()
    assert begins[:2] == ["begins", "0"] and begins[3] == "1", first.stderr
    experiment = begins[2]
    first.tell()
    assert first.wait() == 1 and "on purpose" in first.stderr
    house.until(experiment, "failed")
    assert house.values(f"{experiment}.1", "training", "loss") == [(step, 1.0 / (step + 1)) for step in range(5)]
    output = house.output(f"{experiment}.1")
    assert f"begins 0 {experiment} 1" in output and "to the error stream" in output

    (tmp_path / "again").mkdir()
    again = Script(DETACHED, house.environment(), tmp_path / "again", "key-1", "well")
    assert again.line() == f"begins 5 {experiment} 1", again.stderr
    again.tell()
    assert again.wait() == 0, again.stderr
    house.until(experiment, "completed")
    steps = [step for step, _ in house.values(f"{experiment}.1", "training", "loss")]
    assert sorted(steps) == list(range(10))


def test_a_detached_run_that_is_begun_again_replaces_the_first(house: House, tmp_path: Path) -> None:
    text = """
    import clutch, time
    with clutch.init(detached=True, name="afar", resume="key-2") as run:
        print("begun", flush=True)
        until = time.monotonic() + 60
        while not run.should_stop() and time.monotonic() < until:
            run.report(1, loss=1.0)
            time.sleep(0.05)
        print(run.stop_reason, flush=True)
    """
    first = Script(text, house.environment(), tmp_path)
    assert first.line() == "begun", first.stderr
    (tmp_path / "again").mkdir()
    second = Script(text, house.environment(), tmp_path / "again")
    assert second.line() == "begun", second.stderr
    assert first.line() == "replaced"
    assert first.wait() == 0
    second.process.terminate()
    assert second.line() == "signal" and second.wait() == 0
