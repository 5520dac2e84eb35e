"""The setting ``launch``, in every shape in which it may be written, and what is wrong with the others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clutch.wire.errors import BadConfig
from clutch.wire.programs import (
    AccelerateLaunch,
    Launching,
    OwnLaunch,
    PlainLaunch,
    Program,
    RanksLaunch,
    TorchrunLaunch,
)
from clutch.workloads.experiment.config import Door, accepted, merged
from clutch.workloads.experiment.controller.tasks import cleanup_spec, searcher_spec, trial_spec
from clutch.workloads.experiment.machine.experiment import opened
from clutch.workloads.experiment.machine.trial import Trial

OWN = OwnLaunch(spot="m:C", options={"a": None}, processes=3)
ENTRY = {"entrypoint": ["python", "train.py"]}


def launch_of(written: Any) -> Launching:
    found = accepted({**ENTRY, "launch": written}, Door())
    again = accepted(found.effective, Door(seed=found.spec.seed))
    assert again.spec.program == found.spec.program, "the effective configuration says the same"
    return found.spec.program.launch


@pytest.mark.parametrize(
    ("written", "launch"),
    [
        (None, PlainLaunch()),
        ("plain", PlainLaunch()),
        ({"name": "plain"}, PlainLaunch()),
        ("ranks", RanksLaunch()),
        ({"name": "ranks", "processes": 1, "share_devices": True}, RanksLaunch(processes=1, share_devices=True)),
        ("torchrun", TorchrunLaunch()),
        ({"name": "torchrun", "arguments": ["--log-dir=x"]}, TorchrunLaunch(arguments=("--log-dir=x",))),
        ("accelerate", AccelerateLaunch()),
        ({"name": "accelerate", "grace": 1, "oversubscribe": "yes"}, AccelerateLaunch(grace_s=1.0, oversubscribe=True)),
        ("my.code:Mine", OwnLaunch(spot="my.code:Mine")),
        ({"class": "m:C", "options": {"a": None}, "processes": 3}, OWN),
    ],
)
def test_what_may_be_written(written: Any, launch: Launching) -> None:
    assert launch_of(written) == launch


@pytest.mark.parametrize(
    ("written", "path", "words"),
    [
        ("mpirun", "launch.name", "no launch 'mpirun'"),
        ("torchrum", "launch.name", "Did you mean torchrun?"),
        ({"processes": 2}, "launch.name", "missing"),
        (["torchrun"], "launch", "not a map"),
        ({"name": "torchrun", "argument": []}, "launch.argument", "Did you mean arguments?"),
        ({"name": "ranks", "arguments": []}, "launch.arguments", "torchrun or accelerate"),
        ({"name": "torchrun", "arguments": "x"}, "launch.arguments", "not a list"),
        ({"name": "ranks", "processes": -1}, "launch.processes", "at least 0"),
        ({"name": "ranks", "processes": 5000}, "launch.processes", "at most 1024"),
        ({"class": "nothing"}, "launch.class", "does not name a class"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(written: Any, path: str, words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        launch_of(written)
    found = {problem.path: f"{problem.problem} {problem.hint}" for problem in caught.value.problems}
    assert words in found[path], found


@pytest.mark.parametrize("name", ["ranks", "torchrun", "accelerate"])
def test_more_processes_than_slots_are_refused_before_anything_is_started(name: str) -> None:
    launch = {"name": name, "processes": 3}
    for slots in ({}, {"resources": {"slots_per_trial": 2}}):
        with pytest.raises(BadConfig) as caught:
            accepted({**ENTRY, "launch": launch, **slots}, Door())
        assert [problem.path for problem in caught.value.problems] == ["launch.processes"]
    for enough in (0, 3, 4):
        accepted({**ENTRY, "launch": launch, "resources": {"slots_per_trial": enough}}, Door())
    accepted({**ENTRY, "launch": {**launch, "oversubscribe": True}}, Door())


@pytest.mark.parametrize("launch", ["plain", "torchrun"])
def test_a_launcher_may_start_ranks_in_an_image(launch: str) -> None:
    spec = accepted({**ENTRY, "launch": launch, "environment": {"image": "pytorch"}}, Door()).spec
    assert (
        spec.program.image is not None
        and spec.program.launch == accepted({**ENTRY, "launch": launch}, Door()).spec.program.launch
    )


def test_layers_of_one_kind_complete_each_other() -> None:
    upper = {"name": "torchrun", "processes": 2}
    assert merged([{"launch": upper}, {"launch": {"name": "torchrun", "grace": 9}}])["launch"] == {**upper, "grace": 9}
    assert merged([{"launch": upper}, {"launch": {"name": "ranks", "grace": 9}}])["launch"] == upper
    assert merged([{"launch": "ranks"}, {"launch": upper}])["launch"] == "ranks"
    assert merged([{}, {"launch": "ranks"}])["launch"] == "ranks"


def test_only_the_trials_are_launched_so() -> None:
    """The process of a search and that of a clean-up are one each."""
    searcher = {"name": "custom", "metric": "loss", "entrypoint": ["python", "search.py"]}
    exp = opened("x", accepted({**ENTRY, "launch": "torchrun", "searcher": searcher}, Door()).spec, False)
    trial = Trial(number=1, hparams={}, seed=1, task="x.1")
    tasks = (trial_spec(exp, trial), searcher_spec(exp), cleanup_spec(exp, (), ()))
    programs = [msgspec.msgpack.decode(task.payload, type=Program) for task in tasks]
    assert [program.launch for program in programs] == [TorchrunLaunch(), PlainLaunch(), PlainLaunch()]
