"""Experiments whose trials run in containers of a real engine, as a user would have them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from docker_trials import DockerCluster, mount, open_folder

from clutch.cli.experiment_render import trial_text
from clutch.sdk import calls, experiment_calls
from clutch.testing.cluster import until

TRIAL = str(Path(__file__).with_name("docker_trial.py"))
HERE = str(Path(__file__).parent)


def test_a_search_in_containers_with_data_mounts_and_variables(place: DockerCluster, tmp_path: Path) -> None:
    data, out = open_folder(tmp_path / "data"), open_folder(tmp_path / "out")
    open_folder(data / "part")
    (data / "part" / "file").write_text("given")
    experiment = place.start(
        [],
        entrypoint=["python3", TRIAL],
        searcher={"name": "grid", "metric": "loss"},
        hparams={"x": {"type": "categorical", "vals": [3, 1, 2]}},
        mounts=[mount(HERE, HERE), mount(data, "/data"), mount(out, "/out", read_only=False)],
        data={"path": "/data/part/file"},
        variables={"MINE": "a word"},
    )
    place.ended(experiment)
    trials = place.trials(experiment)
    assert sorted(path.read_text() for path in out.iterdir()) == ["1", "2", "3"]
    assert len(trials) == 3 and not (data / "part" / "mine").exists()
    for trial in trials:
        [seen] = [json.loads(line) for line in place.output(trial.task) if line.startswith("{")]
        assert seen["data"] == "given" and seen["mine"] == "a word" and seen["pid_1"] == "docker-init"
        assert seen["data_refused"] == "Read-only file system" and not seen["has_home"]
        assert seen["shared"] == [1, 2]
        assert place.curve(trial.key, "validation", "loss") and place.curve(trial.key, "training", "x")
    committed = [row for row in place.checkpoints(experiment) if row.state == "committed"]
    assert len(committed) == 3
    assert place.containers() == []


def test_metrics_that_a_killed_container_had_not_sent_are_stored(place: DockerCluster, tmp_path: Path) -> None:
    """Killed between its report and the master's answer: its agent speaks for it."""
    gates = open_folder(tmp_path / "gates")
    do = ["report", "validate", f"at 1: wait {gates}/first", f"at 4: wait {gates}/second"]
    experiment = place.start(do, 4, mounts=[mount(gates, str(gates))])
    trial = f"{experiment}.1"
    place.reached(trial, 1)
    master = place.cluster.masters[0]
    master.signal(signal.SIGSTOP)
    try:
        (gates / "first").touch()
        spools = place.cluster.folder / "n1" / "work"
        until(lambda: any(b'"step":4,' in path.read_bytes() for path in spools.rglob("spool.jsonl")), "the spool")
        place.kill_container(place.containers()[0])
    finally:
        master.signal(signal.SIGCONT)
    place.until_trial(trial, lambda view: view.epoch >= 2, "started again")
    first_run = place.curve(trial, "training", "chance", superseded=True, epoch=1)
    assert [step for step, _ in first_run] == [1, 2, 3, 4]
    (gates / "second").touch()
    place.ended(experiment)
    assert [step for step, _ in place.curve(trial, "training", "chance")] == [1, 2, 3, 4]


def test_data_that_is_not_there_is_named_with_its_node(place: DockerCluster, tmp_path: Path) -> None:
    data = open_folder(tmp_path / "data")
    missing = f"{data}/part/nothing"
    experiment = place.start(["report"], mounts=[mount(data, "/data")], data={"path": "/data/part/nothing"})
    place.until_why(experiment, f"{missing} is not there on node n1")
    place.end(experiment)


def test_an_image_that_cannot_be_pulled_is_named_with_its_node(place: DockerCluster) -> None:
    """Its registry does not answer, so it is tried again; meanwhile everybody who asks is told why it does not run."""
    image = "127.0.0.1:1/nobody/trains:1"
    experiment = place.start(["report"], environment={"image": image})
    said = (f"its image {image} could not be pulled", "on node n1", "connection refused", "reaches its registry")
    task = f"{experiment}.1"
    until(lambda: place.client.perform(calls.get_task(task)).task.state == "resting", "its rest")
    shown = place.client.perform(calls.get_task(task)).task.detail
    why = place.client.perform(calls.why_task(task)).sentence
    trial = trial_text(place.client.perform(experiment_calls.get_trial(task)), None)
    for words in (shown, why, trial, place.why(experiment)):
        assert all(word in words for word in said), words
    place.end(experiment)


def test_a_container_that_cannot_be_made_is_named_with_its_node(place: DockerCluster, tmp_path: Path) -> None:
    """Trying again would not help, so it fails, and says of what and where."""
    experiment = place.start(["report"], mounts=[mount(tmp_path, "/proc/data")])
    place.ended(experiment, "failed")
    detail = place.trial(f"{experiment}.1").detail
    assert "was not started on node n1 (refused): its container of image clutch-busybox:test could not" in detail
