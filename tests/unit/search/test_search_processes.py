"""Search methods as real processes over a real socket: killed with SIGKILL, with calls and answers lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from search_harness import experiment
from search_server import TOKEN, SearchServer, described, environment, serving
from search_world import MemorySearch

from clutch.runtime.info import Info
from clutch.wire.errors import BadRequest
from clutch.wire.experiments import Custom, Double, ExperimentSpec, Tpe
from clutch.workloads.experiment.search.base import Over
from clutch.workloads.experiment.search_process.client import MemberSearch, OutsideSearch
from clutch.workloads.experiment.search_process.runner import SearchRunner
from clutch.workloads.experiment.search_process.tpe import TpeMethod

HERE = Path(__file__).parent
TPE = [sys.executable, "-m", "clutch.workloads.experiment.search_process.tpe"]
OUTSIDE = """
import sys
from clutch.workloads.experiment.search_process.client import OutsideSearch
from clutch.workloads.experiment.search_process.runner import SearchRunner
sys.path.insert(0, sys.argv[1])
from search_climber import Climber
SearchRunner(OutsideSearch((sys.argv[2],), sys.argv[3]), "my exp", Climber()).run()
"""


class Killer:
    """Kills the process that calls, at each of these calls once; drops the connection of every seventh call."""

    def __init__(self, *kill_at: int) -> None:
        self.kill_at = list(kill_at)
        self.moments = 0
        self.kills = 0
        self.drops = 0
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, moment: str) -> bool:
        self.moments += 1
        if self.kill_at and self.moments >= self.kill_at[0]:
            self.kill_at.pop(0)
            assert self.process is not None
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
            self.kills += 1
            return True
        if self.moments % 7 == 0:
            self.drops += 1
            return True
        return False


def run_to_the_end(killer: Killer, argv: list[str], variables: dict[str, str]) -> None:
    """Starts it again for as long as it is killed."""
    for _ in range(20):
        with subprocess.Popen(argv, env=variables, stderr=subprocess.PIPE, text=True) as process:
            killer.process = process
            _, said = process.communicate(timeout=60)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, said
            return
    raise AssertionError("it was killed too often")


def quiet(spec: ExperimentSpec) -> MemorySearch:
    world = MemorySearch(spec, lambda hparams: (hparams["x"] - 0.3) ** 2)
    SearchRunner(world, "", TpeMethod()).run()
    return world


def test_the_process_of_tpe_killed_and_cut_off_makes_the_same_trials() -> None:
    spec = experiment(Tpe(14, 2), {"x": Double(0, 1)})
    world = MemorySearch(spec, lambda hparams: (hparams["x"] - 0.3) ** 2)
    killer = Killer(5, 12, 25)
    with serving(world, "/api/v1/run/search", killer) as server:
        run_to_the_end(killer, TPE, environment(server))
    assert killer.kills == 3 and killer.drops > 3, "the faults must have happened"
    assert world.search.over == Over()
    assert described(world) == described(quiet(spec))


def test_a_method_outside_the_cluster_killed_and_cut_off_makes_the_same_trials() -> None:
    spec = experiment(Custom(), {"x": Double(0, 1)})
    world = MemorySearch(spec, lambda hparams: hparams["x"])
    killer = Killer(3, 6, 16)
    with serving(world, "/api/v1/experiments/my%20exp/search", killer) as server:
        run_to_the_end(killer, [sys.executable, "-c", OUTSIDE, str(HERE), server.address, TOKEN], {})
    assert killer.kills == 3 and killer.drops > 1
    assert world.search.over == Over()
    assert [trial.made.hparams["x"] for trial in world.search.trials.values()] == [n / 10 for n in range(1, 9)]


def test_what_a_master_refuses_is_raised() -> None:
    from clutch.wire.experiment_api import AnswerSearch

    world = MemorySearch(experiment(Custom(), {}), lambda hparams: 0.0)
    with serving(world, "/api/v1/experiments/e/search", lambda moment: False) as server:
        client = OutsideSearch((server.address,), TOKEN)
        assert client.search_events("e", 0, 0.0).events[0].kind == "begin"
        with pytest.raises(BadRequest) as caught:
            client.answer_search("e", AnswerSearch(cursor=99))
        assert caught.value.path == "cursor"
        client.close()


def test_a_member_needs_a_cluster() -> None:
    with pytest.raises(BadRequest):
        MemberSearch(Info())


def test_the_server_counts_what_it_is_asked() -> None:
    """A poll that finds nothing is repeated, an answer is not."""
    spec = experiment(Tpe(3, 1), {"x": Double(0, 1)})
    world = MemorySearch(spec, lambda hparams: hparams["x"])
    with serving(world, "/api/v1/run/search", lambda moment: False) as server:
        assert isinstance(server, SearchServer)
        client = MemberSearch(Info(masters=(server.address,), token=TOKEN, task="exp.search"))
        SearchRunner(client, "", TpeMethod()).run()
        client.close()
        assert server.calls.count("operations") == len(world.answers)
    assert world.search.over == Over()
