"""``clutch run --search``: what the words on a command line become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.testing

from clutch.cli.configs import left_behind
from clutch.cli.run import app
from clutch.cli.searching import Search, as_program, config_of
from clutch.wire.errors import BadRequest
from clutch.workloads.experiment.config.door import Door, accepted

WISH: dict[str, Any] = {
    "name": "", "pool": "default", "priority": 42, "max_restarts": 0, "workspace": "default", "project": "",
}  # fmt: skip


def searcher(*hyperparameters: str, **more: Any) -> dict[str, Any]:
    found = config_of(["train.py"], Search(hyperparameters=hyperparameters, **more), WISH)
    assert found["name"] == "train.py" and found["entrypoint"] == ["python", "train.py"]
    return dict(found["searcher"])


@pytest.mark.parametrize(
    ("words", "more", "name"),
    [
        (("lr=log(1e-5,1e-1)",), {}, "random"),
        (("lr=log(1e-5,1e-1)",), {"max_time": 9}, "adaptive_asha"),
        (("lr=log(1e-5,1e-1,count=3)",), {}, "grid"),
        (("lr=log(1e-5,1e-1,count=3)", "a.b=choice(x,y)", "c=5"), {}, "grid"),
        (("lr=log(1e-5,1e-1,count=3)", "n=int(1,9)"), {}, "random"),
        (("a=choice(x,y)",), {}, "random"),
        (("lr=log(1e-5,1e-1,count=3)",), {"method": "tpe"}, "tpe"),
        (("lr=log(1e-5,1e-1,count=3)",), {"max_time": 9}, "adaptive_asha"),
    ],
    ids=str,
)
def test_which_search_is_meant(words: tuple[str, ...], more: dict[str, Any], name: str) -> None:
    found = searcher(*words, **more)
    assert found["name"] == name
    assert ("max_trials" in found) is (name != "grid")


def test_depths_and_repetitions() -> None:
    found = config_of(["train.py"], Search(hyperparameters=("opt.lr=uniform(0,1)", "opt.kind=adam")), WISH)
    assert found["hyperparameters"]["opt"]["kind"] == {"type": "const", "val": "adam"}
    for wrong in (("a=1",), ("a=1", "b.c=2"), ("a=int(1,2)", "a=int(1,3)"), ("a=int(1,2)", "a.b=int(1,2)")):
        with pytest.raises(BadRequest):
            searcher(*wrong)
    with pytest.raises(BadRequest):
        config_of([], Search(hyperparameters=("a=int(1,2)",)), WISH)


def test_a_python_file_of_the_folder_is_run_by_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "own.py").write_text("#!/usr/bin/env python3\n")
    (tmp_path / "own.py").chmod(0o755)
    assert as_program(("train.py", "-x"), tmp_path) == ("python", "train.py", "-x")
    assert as_program(("./train.py",), tmp_path) == ("python", "./train.py")
    assert as_program(("own.py",), tmp_path) == ("python", "own.py")
    assert as_program(("./own.py",), tmp_path) == ("./own.py",)
    for command in (("sh", "train.py"), ("of-the-node.py",), ("/opt/train.py",)):
        assert as_program(command, tmp_path) == command
    assert as_program(("train.py",), None) == ("train.py",)
    assert as_program(("train.py",), None, needed=True) == ("python", "train.py")
    with pytest.raises(BadRequest, match=r"nothere\.py: there is no such file in"):
        as_program(("nothere.py",), tmp_path, needed=True)


def test_what_is_said_of_trials_is_in_their_configuration_and_accepted() -> None:
    said = {
        **WISH, "slots": 2, "kind": "cpu", "cpus": 1.5, "memory": "2GiB", "environment": {"A": "1"}, "image": "team/a",
        "secrets": ["key", "db=URL"], "ports": [8888], "mounts": ["/data:/in", "/out:/out:rw"], "launch": "torchrun",
        "preemptible": False, "leave_within_s": 5.0,
    }  # fmt: skip
    config = config_of(["python", "x.py"], Search(hyperparameters=("a=int(1,2)",)), said)
    spec = accepted(config, Door(owner="me")).spec
    assert (spec.resources.slots, spec.resources.kind) == (2, "cpu")
    assert config["resources"] | {"cpus": 1.5, "memory": 2 * 2**30} == config["resources"]
    assert config["bind_mounts"][0] == {"host_path": "/data", "container_path": "/in", "read_only": True}
    assert config["bind_mounts"][1]["read_only"] is False
    assert config["environment"]["proxy_ports"] == [{"proxy_port": 8888}]
    assert (config["preemptible"], config["preemption_timeout"]) == (False, 5.0)
    assert set(config_of(["x"], Search(hyperparameters=("a=int(1,2)",)), WISH)["resources"]) == {
        "resource_pool", "priority",
    }  # fmt: skip


def test_options_that_mean_nothing_in_a_search_are_refused() -> None:
    run = typer.testing.CliRunner()
    for option in (["--count", "2"], ["--exclude", "n1"], ["--on-node-lost", "restart"]):
        done = run.invoke(app, ["--search", "a=int(1,2)", *option, "x"])
        assert isinstance(done.exception, BadRequest) and done.exception.object == option[0]
    done = run.invoke(app, ["--trials", "3", "x"])
    assert isinstance(done.exception, BadRequest) and done.exception.object == "--trials"


def test_who_leaves_the_program_behind_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    file = tmp_path / "search.yaml"
    for entrypoint in ("python -u train.py", ["python", "train.py"]):
        assert f"create {file} {tmp_path}" in left_behind(file, {"entrypoint": entrypoint})
    image = {"environment": {"image": "team/train"}}
    for said in ({"entrypoint": "python other.py"}, {"entrypoint": "python train.py", **image}, {"entrypoint": 5}, {}):
        assert left_behind(file, said) == ""
