"""Several ranks in a container, and containers that meet: launchers inside an image that has clutch."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_trials import SOURCE, DockerCluster

from clutch.testing.docker import BUSYBOX
from clutch.wire.experiment_views import TrialView

TRAIN = """
import os, sys
import numpy as np
import clutch
with clutch.init() as run:
    ranks = run.distributed
    total = ranks.allgather(np.full(300_000, ranks.rank + 1.0))
    print("rank", ranks.rank, "of", ranks.size, "sum", int(sum(part[0] for part in total)), flush=True)
    if ranks.rank == run.hparams.get("fails", -1):
        print("RuntimeError: out of luck", file=sys.stderr)
        sys.exit(9)
    if ranks.rank == 0:
        run.report(1, loss=1.0)
    run.validate(2, loss=0.25, all_ranks=True)
"""
OWN = """
from clutch.runtime.launch.base import Launch, rank_words
from clutch.runtime.launch.world import world_of
class Mine:
    def __init__(self, word): self.word = word
    def launch(self, argv, environment, roster):
        world = world_of(roster)
        each = [f'RANK={world.first + n} LOCAL_RANK={n} "$@" & pids="$pids $!"' for n in range(world.local_size)]
        script = "\\n".join([*each, "for pid in $pids; do wait $pid || exit $?; done"])
        return Launch(("sh", "-c", script, "mine", *rank_words(), *argv), {**environment, "WORD": self.word})
"""


@pytest.fixture(scope="module")
def two(engine_socket: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    """Nodes of 2 and 3 slots, with containers of one engine."""
    with DockerCluster(tmp_path_factory.mktemp("launch"), engine_socket, 2) as found:
        found.add_agent("n2", 3)
        found.cluster.wait_nodes("n2")
        yield found


def trial_of(place: DockerCluster, slots: int, state: str = "completed", **more: Any) -> TrialView:
    files = {"train.py": TRAIN, "mine.py": OWN, "resource.py": "1 / 0"}  # a module of Python that boot needs
    more = {"files": files, "entrypoint": ["python3", "train.py"], **more}
    experiment = place.start([], resources={"slots_per_trial": slots, "kind": "artificial"}, **more)
    place.ended(experiment, state)
    [trial] = place.trials(experiment)
    return trial


def said(place: DockerCluster, trial: TrialView) -> list[str]:
    return sorted(line for line in place.output(trial.task) if "rank " in line)


def test_ranks_of_a_container(place: DockerCluster) -> None:
    trial = trial_of(place, 2, launch="ranks")
    assert said(place, trial) == [f"[rank={n}] rank {n} of 2 sum 3" for n in range(2)]
    assert place.curve(trial.key, "validation", "loss") == [(2, 0.25)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "launch", ["ranks", "torchrun", "accelerate", {"name": "class", "class": "mine:Mine", "options": {"word": "w"}}]
)
def test_ranks_of_containers_on_two_nodes(two: DockerCluster, launch: Any) -> None:
    trial = trial_of(two, 5, launch=launch)
    mine = [line for line in said(two, trial) if " sum " in line]
    assert mine == [f"[rank={n}] rank {n} of 5 sum 15" for n in range(5)], two.output(trial.task)


@pytest.mark.slow
def test_containers_that_are_one_rank_each(two: DockerCluster) -> None:
    """Plain: boot meets on the node, and the image need not have clutch for it."""
    trial = trial_of(two, 5)
    assert said(two, trial) == [f"rank {n} of 2 sum 3" for n in range(2)], two.output(trial.task)


@pytest.mark.slow
def test_a_rank_that_fails_in_a_container_is_named(two: DockerCluster) -> None:
    trial = trial_of(two, 5, "failed", launch="ranks", hparams={"fails": 4})
    whole, ended_early = (
        "rank 4 exited with code 9; its last lines: .*RuntimeError: out of luck",
        "rank 4 failed: SystemExit",
    )
    assert re.search(f"{whole}|{ended_early}", trial.detail, re.DOTALL), trial


@pytest.mark.slow
def test_what_an_image_lacks_for_its_ranks_is_said(two: DockerCluster) -> None:
    """No Python, no clutch in it, no launcher: each a sentence, and nothing is tried again."""
    image = {"image": BUSYBOX}
    nothing = trial_of(two, 2, "failed", launch="ranks", bind_mounts=[], environment=image)
    assert "its image has no python3, which with clutch starts its ranks" in nothing.detail, nothing
    base = {"PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin"}  # without what is installed beside it
    without = trial_of(two, 2, "failed", launch="ranks", environment={**image, "environment_variables": base})
    assert "of the image has no clutch, which starts its ranks: No module named 'clutch'" in without.detail, without
    clutch_too = {**base, "PYTHONPATH": f"{SOURCE}:{sysconfig.get_path('purelib')}"}
    torchless = trial_of(
        two, 2, "failed", launch="torchrun", environment={**image, "environment_variables": clutch_too}
    )
    assert "torchrun is not installed in this environment" in torchless.detail, torchless
