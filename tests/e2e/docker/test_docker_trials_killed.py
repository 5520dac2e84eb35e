"""Trials in containers whose container, agent or engine is killed: they end with the numbers of an undisturbed run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_trials import NODE, PYTHON_FOLDERS, DockerCluster, mount, open_folder

from clutch.testing.cluster import until
from clutch.testing.docker import DockerEngine, busybox_root, import_image

pytestmark = pytest.mark.slow
STEPS = 8
SEED = {"experiment_seed": 7}


@pytest.fixture(scope="module")
def place(engine_socket: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    with DockerCluster(tmp_path_factory.mktemp("killed"), engine_socket) as found:
        yield found


class Gated:
    """An experiment of one trial that saves at step 4 and waits at step 6."""

    def __init__(self, place: DockerCluster, folder: Path, **more: Any) -> None:
        self.place = place
        self.gates = open_folder(folder / "gates")
        do = ["report", "validate", "every 4: checkpoint", "log step", f"at 6: wait {self.gates}/gate"]
        mounts = [mount(self.gates, str(self.gates)), *more.pop("mounts", [])]
        self.experiment = place.start(do, STEPS, mounts=mounts, reproducibility=SEED, **more)
        self.trial = f"{self.experiment}.1"

    def wait(self) -> None:
        self.place.reached(self.trial, 6)

    def open(self) -> None:
        (self.gates / "gate").touch()

    def ended(self) -> list[tuple[int, Any]]:
        self.place.ended(self.experiment)
        return self.place.curve(self.trial, "validation", "loss")


@pytest.fixture(scope="module")
def undisturbed(place: DockerCluster, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, Any]]:
    run = Gated(place, tmp_path_factory.mktemp("undisturbed"))
    run.open()
    found = run.ended()
    assert [step for step, _ in found] == list(range(1, STEPS + 1))
    return found


def test_a_killed_container_goes_on_from_its_checkpoint(
    place: DockerCluster, tmp_path: Path, undisturbed: list[tuple[int, Any]]
) -> None:
    run = Gated(place, tmp_path)
    run.wait()
    [container] = place.containers()
    place.kill_container(container)
    run.open()
    assert run.ended() == undisturbed
    view = place.trial(run.trial)
    assert view.epoch == 2, place.story(run.experiment)
    assert "begins at 4 in epoch 2" in place.output(view.task)
    assert place.containers() == []


def test_a_killed_agent_finds_its_containers_again(
    place: DockerCluster, tmp_path: Path, undisturbed: list[tuple[int, Any]]
) -> None:
    run = Gated(place, tmp_path)
    run.wait()
    before = place.containers()
    agent = place.cluster.agents[NODE]
    agent.kill()
    run.open()  # it goes on, and ends, while there is no agent
    until(lambda: not place.containers(), "its end")
    agent.start()
    assert run.ended() == undisturbed
    assert place.trial(run.trial).epoch == 1, place.story(run.experiment)
    assert place.output(run.trial).count("step") == STEPS and len(before) == 1


def test_a_killed_agent_speaks_for_a_container_that_was_killed_meanwhile(place: DockerCluster, tmp_path: Path) -> None:
    """Agent and container die with metrics in the spool that the master never had."""
    run = Gated(place, tmp_path)
    run.wait()
    master, agent = place.cluster.masters[0], place.cluster.agents[NODE]
    master.signal(signal.SIGSTOP)
    try:
        agent.kill()
        run.open()
        spools = place.cluster.folder / NODE / "work"
        until(lambda: any(b'"step":8,' in path.read_bytes() for path in spools.rglob("spool.jsonl")), "the spool")
        for container in place.containers():
            place.kill_container(container)
        until(lambda: not place.containers(), "its end")
    finally:
        master.signal(signal.SIGCONT)
    agent.start()
    place.ended(run.experiment)
    every = place.curve(run.trial, "training", "chance", superseded=True)
    assert {step for step, _ in every} == set(range(1, STEPS + 1))


def test_paused_and_resumed(place: DockerCluster, tmp_path: Path, undisturbed: list[tuple[int, Any]]) -> None:
    run = Gated(place, tmp_path)
    run.wait()
    place.move(run.experiment, "pause")
    place.until_trial(run.trial, lambda view: view.state == "paused", "paused")
    until(lambda: not place.containers(), "its container to be gone")
    run.open()
    place.move(run.experiment, "resume")
    assert run.ended() == undisturbed
    assert place.trial(run.trial).epoch == 2


def test_a_search_stops_containers_early(place: DockerCluster) -> None:
    experiment = place.start(
        ["validate", "sleep 0.05"],
        steps=32,
        hparams={"base": {"type": "categorical", "vals": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}},
        searcher={
            "name": "asha", "metric": "loss", "stop_once": True, "max_trials": 8, "max_length": 32, "num_rungs": 3,
            "divisor": 4,
        },
    )  # fmt: skip
    place.ended(experiment)
    steps = sorted(view.last_step for view in place.trials(experiment))
    assert len(steps) == 8 and steps[0] < 32 == steps[-1], place.story(experiment)
    assert place.containers() == []


def test_an_image_with_a_user_of_its_own(place: DockerCluster, tmp_path: Path) -> None:
    """Nobody said as whom it runs, so its image does: its folders are open to that user, its metrics are found."""
    image = "clutch-user:test"
    import_image(place.socket, image, busybox_root(), ("USER 4242:4343",))
    variables = place.config([])["environment"]["environment_variables"]
    theirs = Gated(place, tmp_path, environment={"image": image, "environment_variables": variables})
    theirs.wait()
    master = place.cluster.masters[0]
    [container] = place.containers()
    master.signal(signal.SIGSTOP)
    try:
        theirs.open()
        spools = place.cluster.folder / NODE / "work"
        found = until(
            lambda: [path for path in spools.rglob("spool.jsonl") if b'"step":8,' in path.read_bytes()], "the spool"
        )
        assert found[0].stat().st_uid == 4242
        place.kill_container(container)
    finally:
        master.signal(signal.SIGCONT)
    place.ended(theirs.experiment)
    first_run = place.curve(theirs.trial, "training", "chance", superseded=True, epoch=1)
    assert [step for step, _ in first_run] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("ends", ["while the engine is away", "when it is back"])
def test_an_engine_that_is_killed_and_keeps_its_containers(
    lasting_engine: DockerEngine, tmp_path: Path, ends: str
) -> None:
    with DockerCluster(open_folder(tmp_path / "cluster"), lasting_engine.socket) as place:
        run = Gated(place, tmp_path)
        run.wait()
        lasting_engine.kill()
        if ends == "while the engine is away":
            run.open()
            place.reached(run.trial, STEPS)
        lasting_engine.start()
        run.open()
        assert len(run.ended()) == STEPS
        assert place.trial(run.trial).epoch == 1, place.story(run.experiment)
        assert place.output(run.trial).count("step") == STEPS


def test_an_engine_that_is_killed_and_ends_its_containers(private_engine: DockerEngine, tmp_path: Path) -> None:
    with DockerCluster(open_folder(tmp_path / "cluster"), private_engine.socket) as place:
        run = Gated(place, tmp_path)
        run.wait()
        private_engine.kill()
        private_engine.start()
        run.open()
        assert len(run.ended()) == STEPS
        view = place.trial(run.trial)
        assert view.epoch == 2, place.story(run.experiment)
        assert "begins at 4 in epoch 2" in place.output(view.task)


def test_what_a_node_does_not_allow_is_not_mounted(engine_socket: Path, tmp_path: Path) -> None:
    inside, outside = open_folder(tmp_path / "allowed" / "data"), open_folder(tmp_path / "secret")
    (inside / "way").symlink_to(outside)
    options = tuple(f"--allow-mount={path}" for path in (*PYTHON_FOLDERS, tmp_path / "allowed"))
    with DockerCluster(open_folder(tmp_path / "cluster"), engine_socket, 2, options) as place:
        good = place.start(["validate"], 1, mounts=[mount(inside, "/data")])
        place.ended(good)
        for bad in (outside, inside / "way", Path("/")):
            experiment = place.start(["validate"], 1, mounts=[mount(bad, "/data")])
            place.until_why(experiment, "may not be mounted on node n1")
            assert str(bad) in place.why(experiment)
            place.end(experiment)
