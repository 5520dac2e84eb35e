"""Every example runs as its own page says: on a real cluster, and those that train also by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clutch.sdk import calls
from clutch.testing.cluster import Cluster, until

EXAMPLES = Path(__file__).parents[3] / "examples"
CLUTCH = (sys.executable, "-m", "clutch.cli.main")
FOLDERS = ("custom_search", "digits", "huggingface", "lightning", "pbt", "pytorch")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("examples")) as made:
        made.start()
        made.add_agent("one", slots=4)
        made.wait_nodes("one")
        yield made


def run(cluster: Cluster, *words: str, folder: str = "") -> str:
    token = (cluster.folder / "master0" / "local.token").read_text().strip()
    env = {**os.environ, "CLUTCH_MASTER": cluster.urls[0], "CLUTCH_TOKEN": token, "HOME": str(cluster.folder)}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    done = subprocess.run(
        words, env=env, cwd=EXAMPLES / folder, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def searched(cluster: Cluster, folder: str, *changes: str, name: str = "") -> dict[str, Any]:
    """The experiment of a folder, smaller than it stands there, when it has completed."""
    name = name or f"small-{folder}"
    said = [word for change in (f"name={name}", *changes) for word in ("--set", change)]
    run(cluster, *CLUTCH, "experiment", "create", "search.yaml", ".", *said, folder=folder)
    (found,) = listed(cluster, name)
    assert (found["state"], found["trials_failed"], found["has_best"]) == ("completed", 0, True)
    return found


def listed(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(cluster, *CLUTCH, "experiment", "list", "--name", name, "--json"))
    return found


def test_many_commands(cluster: Cluster) -> None:
    said = run(cluster, sys.executable, "many_commands.py").splitlines()
    assert [line.split()[:2] for line in said] == [["rate", rate] for rate in ("0.001", "0.01", "0.03", "0.1")]
    assert said[2].endswith("loss 0.0")


def test_gang(cluster: Cluster) -> None:
    said = run(cluster, *CLUTCH, "run", "--count", "3", "--", "python", "gang.py")
    assert said == "main.0 | 3 members, sum of ranks 3\n"


# -- searches ------------------------------------------------------------------------------------------------------


def test_digits(cluster: Cluster) -> None:
    found = searched(cluster, "digits", "searcher.max_trials=4", "searcher.max_time=9", "hyperparameters.epochs=9")
    assert found["trials"] == 4 and found["best"] > 0.3


@pytest.mark.slow
def test_pbt(cluster: Cluster) -> None:
    changes = ("searcher.population_size=3", "searcher.num_rounds=2", "searcher.length_per_round=20")
    found = searched(cluster, "pbt", *changes)
    assert found["trials"] >= 4, "a copy of the best took the place of the worst"


def test_a_search_method_as_a_task(cluster: Cluster) -> None:
    found = searched(cluster, "custom_search")
    assert climbed(cluster, found)


def test_a_search_method_from_outside(cluster: Cluster) -> None:
    words = ("experiment", "create", "outside.yaml", ".", "--detach")
    made = run(cluster, *CLUTCH, *words, folder="custom_search").strip()
    run(cluster, sys.executable, "search.py", made, folder="custom_search")
    run(cluster, *CLUTCH, "experiment", "wait", made)
    (found,) = listed(cluster, "climb-outside")
    assert climbed(cluster, found)


def climbed(cluster: Cluster, found: dict[str, Any]) -> bool:
    """From 0 to the top at 2, by halving steps."""
    rows = json.loads(run(cluster, *CLUTCH, "trial", "list", found["key"], "--json"))
    tried = [json.loads(row["hparams"])["x"] for row in rows]
    best = next(json.loads(row["hparams"])["x"] for row in rows if row["trial"] == found["best_trial"])
    return bool(best == 2.0 and len(tried) == len(set(tried)) and {0.0, 1.0, 3.0, 1.5, 2.25} <= set(tried))


@pytest.mark.slow
def test_pytorch(cluster: Cluster) -> None:
    found = searched(cluster, "pytorch", "searcher.max_trials=1", "searcher.max_time=100", "hyperparameters.steps=100")
    assert found["best_step"] > 0


@pytest.mark.slow
def test_huggingface(cluster: Cluster) -> None:
    found = searched(cluster, "huggingface", "searcher.max_trials=1", "hyperparameters.steps=12")
    assert (found["best_step"], found["best_checkpoint"] != "") == (12, True)


@pytest.mark.slow
def test_lightning(cluster: Cluster) -> None:
    found = searched(cluster, "lightning", "searcher.max_trials=1", "searcher.max_time=32", "hyperparameters.epochs=2")
    assert found["best_step"] > 0 and found["best_checkpoint"]


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """With two slots each, and torchrun at hand."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with Cluster(tmp_path) as made:
        made.start()
        for name in ("one", "two"):
            made.add_agent(name, slots=2)
        made.wait_nodes("one", "two")
        yield made


@pytest.mark.slow
def test_ddp(two_nodes: Cluster) -> None:
    found = searched(two_nodes, "ddp", *(f"hyperparameters.{said}" for said in ("steps=10", "every=5", "batch=4")))
    assert (found["best_step"], found["best_checkpoint"] != "") == (10, True)
    (ran,) = two_nodes.client.perform(calls.get_task(f"{found['key']}.1")).allocations
    assert sorted(ran.nodes.split(",")) == ["one", "two"], "two ranks on each"


@pytest.mark.slow
def test_ddp_that_is_paused_learns_the_same(two_nodes: Cluster) -> None:
    calm = searched(two_nodes, "ddp", "reproducibility.experiment_seed=1", name="calm")
    words = ("experiment", "create", "search.yaml", ".", "--detach", "--set", "reproducibility.experiment_seed=1")
    said = run(two_nodes, *CLUTCH, *words, folder="ddp").strip()
    until(lambda: listed(two_nodes, "sentences-ddp")[0]["has_best"], "its first validation", 60)
    run(two_nodes, *CLUTCH, "experiment", "pause", said)
    until(lambda: listed(two_nodes, "sentences-ddp")[0]["trials_running"] == 0, "it has left", 60)
    run(two_nodes, *CLUTCH, "experiment", "resume", said)
    run(two_nodes, *CLUTCH, "experiment", "wait", said)
    (shaken,) = listed(two_nodes, "sentences-ddp")
    assert (shaken["state"], shaken["best_step"]) == ("completed", calm["best_step"])
    assert shaken["best"] == pytest.approx(calm["best"], rel=0.01), "gloo adds in another order after a start"
    assert len(two_nodes.client.perform(calls.get_task(f"{said}.1")).allocations) == 2, "it went on in a second run"


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_as_it_stands(cluster: Cluster, folder: str) -> None:
    assert searched(cluster, folder, name=f"whole-{folder}")["progress"] == 1.0


# -- alone ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "folder",
    [
        "custom_search", "digits", "pbt", pytest.param("huggingface", marks=pytest.mark.slow),
        pytest.param("ddp", marks=pytest.mark.slow),
        pytest.param("lightning", marks=pytest.mark.slow), pytest.param("pytorch", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_alone(folder: str, tmp_path: Path) -> None:
    """Without a cluster, in a folder of its own: what it reports and saves is kept there."""
    command = [sys.executable, str(EXAMPLES / folder / "train.py")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLUTCH_")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "clutch-runs").iterdir()
    reported = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    assert reported and list((kept / "checkpoints").iterdir()), done.stderr


# -- the page ------------------------------------------------------------------------------------------------------


def test_every_example_is_on_the_page() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert all(f"]({path.name})" in page for path in EXAMPLES.glob("*.py"))
    folders = [path.name for path in EXAMPLES.iterdir() if path.is_dir() and not path.name.startswith("__")]
    assert all(f"]({name}/)" in page for name in folders)
    assert set(FOLDERS) <= set(folders), "each of them is run above"
