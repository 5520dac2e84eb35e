"""Experiments, timed on a real cluster: what a trial costs above its interpreter, and how fast slots come back.

    python benchmarks/experiments.py [trials|init|stop ...] [--count 1000]    peers: benchmarks/experiment_peers.py

*trials*: 1,000 trials that do nothing on 8 slots, above the same 1,000 interpreters started bare, 8 at a time.
*init*: the same with ``clutch.init()`` and one validation in each.
*stop*: from the moment a search decides to stop a trial to the moment its slots are free again.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clutch.sdk.experiment import Experiment
from clutch.testing.cluster import Cluster

SLOTS = 8
NOTHING = "pass\n"
REPORTS = "import clutch\nwith clutch.init() as run:\n    run.validate(1, loss=1.0)\n"
STOPPED = """\
import time, clutch
with clutch.init() as run:
    step = run.latest_checkpoint.step if run.latest_checkpoint else 0
    while True:
        step += 1
        run.validate(step, loss=float(run.trial))
        if run.should_stop():
            break
        time.sleep(0.02)
"""


def say(what: str, figure: str, beside: str = "") -> None:
    print(f"  {what:<58} {figure:>14}   {beside}", flush=True)


def bare(program: Path, count: int) -> float:
    """Seconds for so many interpreters, so many at a time, and nothing around them."""

    def one(_: int) -> None:
        subprocess.run([sys.executable, str(program)], check=True, stdout=subprocess.DEVNULL)

    began = time.perf_counter()
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(one, range(count)))
    return time.perf_counter() - began


def submitted(made: Cluster, folder: Path, config: dict[str, object]) -> Experiment:
    base = {"name": "bench", "entrypoint": [sys.executable, "train.py"], "max_restarts": 0}
    return made.client.create_experiment({**base, **config}, folder)


def random_search(count: int) -> dict[str, object]:
    return {
        "hyperparameters": {"lr": {"type": "log", "minval": -5, "maxval": -1}},
        "searcher": {"name": "random", "metric": "loss", "max_trials": count, "max_concurrent_trials": SLOTS},
    }


def overhead(folder: Path, program: str, count: int) -> tuple[float, float]:
    """Seconds that so many trials took, and those of the same interpreters bare."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(program)
    with Cluster(folder / "cluster") as made:
        made.start()
        made.add_agent("one", slots=SLOTS)
        made.wait_nodes("one")
        submitted(made, code, random_search(SLOTS)).wait(60)  # warm: the code is there, files are in memory
        alone = bare(_lone(folder, program), count)
        began = time.perf_counter()
        view = submitted(made, code, random_search(count)).wait(600)
        took = time.perf_counter() - began
        assert view.state == "completed" and view.trials == count, view
    return took, alone


def tell(what: str, count: int, took: float, alone: float) -> None:
    say(
        f"{what}: a trial above its interpreter",
        f"{(took - alone) / count * 1e3:.1f} ms",
        f"bar 50 ms; {count / took:.0f} trials/s, {count} in {took:.1f} s, bare {alone:.1f} s",
    )


def _lone(folder: Path, program: str) -> Path:
    place = folder / "lone.py"
    place.write_text("" if "clutch" in program else program)
    return place


def trials(folder: Path, count: int = 1000) -> None:
    tell("trials that do nothing", count, *overhead(folder, NOTHING, count))


def init(folder: Path, count: int = 300) -> None:
    tell("trials with clutch.init() and a validation", count, *overhead(folder, REPORTS, count))


def stop(folder: Path, count: int = 20) -> None:
    """The journal says when each trial was asked to leave and when its slots were free."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(STOPPED)
    with Cluster(folder / "cluster") as made:
        made.start()
        made.add_agent("one", slots=4)
        made.wait_nodes("one")
        config = {
            "hyperparameters": {"lr": 0.1},
            "searcher": {
                "name": "asha", "metric": "loss", "max_trials": count, "max_time": 64, "num_rungs": 3, "divisor": 4,
                "max_concurrent_trials": 4,
            },
        }  # fmt: skip
        experiment = submitted(made, code, config)
        experiment.wait(120)
        took = stop_times(made, experiment)
    say(
        "early stop to slots free again",
        f"{statistics.median(took) * 1e3:.0f} ms",
        f"worst {max(took) * 1e3:.0f} of {len(took)}; bar 1000 ms",
    )


def stop_times(made: Cluster, experiment: Experiment) -> list[float]:
    """Seconds from ``leave_asked`` to ``allocation_ended``, for each trial that was stopped."""
    from clutch.sdk import calls

    asked: dict[str, float] = {}
    took: list[float] = []
    for event in made.client.items(calls.list_events(limit=1000)):
        if not event.object.startswith(f"{experiment.id}."):
            continue
        if event.kind == "leave_asked":
            asked[event.object] = event.at
        elif event.kind == "allocation_ended" and event.object in asked:
            took.append(event.at - asked.pop(event.object))
    return took


RUNS = {"trials": trials, "init": init, "stop": stop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", choices=[[], *RUNS], default=[])
    parser.add_argument("--count", type=int, default=0, help="so many trials instead of each run's own number")
    given = parser.parse_args()
    for name in given.runs or RUNS:
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory(prefix="clutch-bench-") as folder:
            RUNS[name](Path(folder), *([given.count] if given.count else []))


if __name__ == "__main__":
    main()
