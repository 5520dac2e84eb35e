"""Experiments from the command line, against a real cluster: from a file to a model on this machine."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from terminal import User, finish

from clutch.testing.cluster import Cluster

PROGRAM = """\
import clutch

with clutch.init(hparams={"rate": 0.5}) as run:
    begin = run.latest_checkpoint.step if run.latest_checkpoint else 0
    print("begins at", begin, flush=True)
    for step in range(begin + 1, run.hparams["steps"] + 1):
        run.report(step, loss=1 / (step * run.hparams["rate"]))
    run.validate(step, loss=1 / (step * run.hparams["rate"]))
    with run.checkpoint(step) as folder:
        (folder / "weights.txt").write_text(str(run.hparams["rate"]))
        (folder / "notes.md").write_text("nothing")
"""
CONFIG = """\
name: hills
entrypoint: python train.py
labels: [first]
hyperparameters:
  rate: {type: double, minval: 0.5, maxval: 1.5, count: 3}
  steps: 4
searcher: {name: grid, metric: loss}
resources: {slots_per_trial: 1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hills")
    (made / "train.py").write_text(PROGRAM)
    (made / "search.yaml").write_text(CONFIG)
    return made


@pytest.fixture(scope="module")
def done(cluster: Cluster, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An experiment that has ended, for the tests that look at one: each worker makes its own."""
    token = (cluster.folder / "master0" / "local.token").read_text().strip()
    user = User(tmp_path_factory.mktemp("home"), cluster.urls, token)
    user.run("experiment", "create", str(folder / "search.yaml"), str(folder))
    (found,) = rows(user, "experiment", "list", "--label", "first")
    return {"id": found["key"], "best": f"{found['key']}.{found['best_trial']}"}


def rows(user: User, *words: str) -> Any:
    return json.loads(user.says(*words, "--json"))


def test_a_file_becomes_trials_and_a_best_one(admin: User, folder: Path) -> None:
    said = admin.says("experiment", "preview", str(folder / "search.yaml"))
    assert "3 trials" in said and "rate=0.5" in said
    words = ("--set", "name=peaks", "--set", "labels=[other]")
    said = admin.says("experiment", "create", str(folder / "search.yaml"), str(folder), *words)
    assert "3 ended" in said and "best loss: 0.1667" in said
    (found,) = rows(admin, "experiment", "list", "--label", "other")
    assert (found["name"], found["state"], found["trials"], found["best_trial"] > 0) == ("peaks", "completed", 3, True)
    assert "peaks" in admin.says("experiment", "list") and "completed" in admin.says("experiment", "show", "peaks")


def test_what_is_wrong_is_said_all_at_once(admin: User, folder: Path) -> None:
    wrong = folder / "wrong.yaml"
    wrong.write_text("entrypoint: python x.py\nsearchr: {}\nmax_restarts: -1\nresources: {priority: 100}\n")
    said = admin.run("experiment", "preview", str(wrong), code=2).stderr.decode()
    assert all(path in said for path in ("searchr", "max_restarts", "resources.priority")), said
    assert "searcher" in said, "it says what was probably meant"
    missing = admin.run("experiment", "create", str(folder / "nothing.yaml"), code=2).stderr.decode()
    assert "no such file" in missing


def test_one_trial(admin: User, done: dict[str, str]) -> None:
    trials = rows(admin, "trial", "list", done["id"], "--order", "best")
    assert [json.loads(row["hparams"])["rate"] for row in trials] == [1.5, 1.0, 0.5]
    said = admin.says("trial", "show", done["best"])
    assert "rate = 1.5" in said and "training/loss" in said
    kinds = [row["kind"] for row in rows(admin, "trial", "show", done["best"], "--workloads")]
    assert [kind for kind in kinds if kind != "train"] == ["start", "validate", "checkpoint", "end"]
    assert admin.says("trial", "logs", done["best"]) == "begins at 0\n"
    said = admin.says("experiment", "logs", "hills", "-f")
    assert sorted(said.splitlines()) == [f"trial {number} | begins at 0" for number in (1, 2, 3)]
    assert admin.says("experiment", "logs", "hills", "--trial", "2") == "begins at 0\n"
    assert len(admin.says("experiment", "logs", "hills", "--grep", "^begins", "--tail", "2").splitlines()) == 2
    assert admin.says("experiment", "logs", "hills", "--grep", "nothing") == ""
    assert "validation/loss" in admin.says("trial", "metrics", done["best"])
    compared = rows(admin, "experiment", "compare", "hills")
    assert [one["hparams"]["rate"] for one in compared] == [1.5, 1.0, 0.5]
    assert "RATE" in admin.says("experiment", "compare", "hills")


def test_metrics_as_files(admin: User, done: dict[str, str], tmp_path: Path) -> None:
    admin.run("trial", "metrics", done["best"], "--output", str(tmp_path / "all.csv"))
    with (tmp_path / "all.csv").open() as file:
        points = list(csv.DictReader(file))
    assert sorted(int(p["step"]) for p in points if p["group"] == "training") == [1, 2, 3, 4]
    admin.run("trial", "metrics", done["best"], "--output", str(tmp_path / "all.parquet"))
    admin.run("trial", "metrics", done["best"], "--output", str(tmp_path / "events"), "--tensorboard")
    assert (tmp_path / "all.parquet").stat().st_size and list((tmp_path / "events").rglob("*tfevents*"))
    wrong = admin.run("trial", "metrics", done["best"], "--output", str(tmp_path / "all.cvs"), code=2)
    assert b"nothing is written as .cvs" in wrong.stderr and not (tmp_path / "all.cvs").exists()


def test_checkpoints_come_here(admin: User, done: dict[str, str], tmp_path: Path) -> None:
    (found,) = rows(admin, "checkpoint", "list", done["best"])
    assert rows(admin, "checkpoint", "list", done["best"], "--state", "deleted") == []
    assert found in rows(admin, "checkpoint", "list", done["best"], "--all")
    for name, words in {"straight": (), "master": ("--through-master",), "some": ("--only", "*.txt")}.items():
        target = tmp_path / name
        admin.run("checkpoint", "download", found["key"], str(target), *words)
        assert (target / "weights.txt").read_text() == "1.5"
        assert (target / "notes.md").exists() is (name != "some")
    assert "weights.txt" in admin.says("checkpoint", "show", found["key"])


def test_a_model_holds_its_checkpoint(admin: User, done: dict[str, str]) -> None:
    (found,) = rows(admin, "checkpoint", "list", done["best"])
    admin.run("model", "create", "hill")
    admin.run("model", "register", "hill", found["key"])
    held = admin.run("checkpoint", "delete", found["key"], "--yes", code=2).stderr.decode()
    assert "hill" in held, "it says who holds it"
    refused = admin.run("experiment", "delete", done["id"], "--yes", code=2).stderr.decode()
    assert "hill" in refused


def test_edits_labels_archive(admin: User, done: dict[str, str]) -> None:
    admin.run("experiment", "edit", "hills", "--label", "kept", "--unlabel", "first", "--notes", "as thought")
    (found,) = rows(admin, "experiment", "list", "--label", "kept")
    assert found["notes"] == "as thought" and "first" not in found["labels"]
    admin.run("experiment", "archive", done["id"])
    assert done["id"] not in admin.says("experiment", "list")
    assert done["id"] in admin.says("experiment", "list", "--all")
    admin.run("experiment", "unarchive", "--label", "kept")
    assert done["id"] in admin.says("experiment", "list")


def test_a_fork_and_more_work(admin: User, done: dict[str, str]) -> None:
    said = admin.says(
        "experiment", "fork", done["id"], "--set", "hyperparameters.rate=1.25", "--set", "searcher.name=single",
        "--set", "name=forked",
    )  # fmt: skip
    assert "1 ended" in said
    (found,) = rows(admin, "experiment", "list", "--name", "forked")
    assert found["parent"] == done["id"] and found["trials"] == 1
    admin.run("experiment", "continue", "forked", "--hparam", "steps=6", "--trial", "1")
    assert admin.says("trial", "logs", f"{found['key']}.1") == "begins at 0\nbegins at 4\n"
    (trial,) = rows(admin, "trial", "list", found["key"])
    assert (trial["last_step"], trial["trial"]) == (6, 1)


def test_a_search_without_a_file(admin: User, folder: Path) -> None:
    said = admin.run(
        "run", "--search", "rate=log(0.1,10)", "--search", "steps=3", "--trials", "4", "--name", "quick",
        "--code", str(folder), "train.py",
    ).stdout.decode()  # fmt: skip
    assert "4 ended" in said
    rates = [json.loads(row["hparams"])["rate"] for row in rows(admin, "trial", "list", "quick")]
    assert len(set(rates)) == 4 and all(0.1 <= rate <= 10 for rate in rates)


def test_pause_wait_and_kill(admin: User, folder: Path) -> None:
    slow = folder / "slow.yaml"
    slow.write_text("name: slow\nentrypoint: [sleep, '600']\nresources: {slots_per_trial: 1}\n")
    made = admin.says("experiment", "create", str(slow), "--detach").strip()
    late = admin.run("experiment", "wait", made, "--timeout", "0.2", code=1).stderr.decode()
    assert "still" in late
    assert made in admin.says("experiment", "why", made)
    admin.run("experiment", "kill", made)
    assert "cancelled" in admin.run("experiment", "wait", made, code=1).stdout.decode()
    admin.run("experiment", "delete", made, "--yes")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("experiment logs hills --trial 9", ("no trial 9", "they go up to 3", "clutch trial list")),
        ("experiment logs hills --grep (", ("regex", "(")),
        ("experiment logs hills --level loud", ("--level", "critical")),
        ("experiment logs hills --since yesterday", ("'yesterday'", "10m")),
        ("experiment list --state sleeping", ("'sleeping'", "cancelled")),
        ("trial list hills --state sleeping", ("'sleeping'", "invalid")),
        ("trial show hills", ("trial hills", "EXPERIMENT.NUMBER")),
        ("checkpoint show nothing", ("checkpoint nothing", "clutch checkpoint list")),
        ("experiment edit hills --label a,b", ("'a,b' is not a label", "without commas")),
        ("experiment edit hills --name ", ("experiment", "one line")),
        ("experiment continue hills --hparam rate", ("--hparam", "'rate' sets nothing")),
        ("experiment continue hills --trial 9", ("no trial 9", "clutch trial list")),
        ("webhook create w http://127.0.0.1/x --trigger sleeping", ("'sleeping'", "matched:RULE")),
        ("webhook create w http://127.0.0.1/x --trigger deleting", ("'deleting'", "completed")),
        ("run --trials 3 train.py", ("--trials", "--search")),
        ("run --search rate=0.5 train.py", ("nothing is searched", "range")),
        ("run --search rate=uniform(0,1 train.py", ("not closed", "uniform(0,1)")),
        ("run --search a=int(1,2) --search a=int(1,3) train.py", ("a stands in another", "--search a=int(1,3)")),
    ],
)
def test_whatever_is_wrong_says_what_and_what_to_do(
    admin: User, done: dict[str, str], words: str, expected: tuple[str, ...]
) -> None:
    said = admin.run(*words.split(" "), code=2).stderr.decode()
    assert all(word in said for word in expected), said
    assert "Traceback" not in said and len(said.splitlines()) <= 3, said


def test_one_that_cannot_run_says_so_by_itself(admin: User, folder: Path) -> None:
    large = ("--set", "resources.slots_per_trial=500", "--set", "searcher.name=single", "--set", "name=large")
    large += ("--set", "hyperparameters.rate=1")
    made = admin.run("experiment", "create", str(folder / "search.yaml"), str(folder), *large, "--detach")
    assert "a trial needs 500" in made.stderr.decode()
    watching = admin.start("experiment", "watch", "large")
    assert watching.stderr is not None
    said = watching.stderr.readline().decode()
    assert "nothing runs now" in said and "wants 500" in said, said
    admin.run("experiment", "kill", "large")
    finish(watching)


def test_a_search_without_validations_says_what_is_missing(admin: User, folder: Path) -> None:
    (folder / "silent.py").write_text("print(1)")
    search = ("--search", "a=choice(1,2)", "--trials", "2", "--code", str(folder), "--name", "silent")
    found = admin.run("run", *search, "silent.py")
    assert "call run.validate(step, loss=...)" in found.stderr.decode()
