"""What a trial that does nothing costs here, with Ray Tune and with Optuna, above the same interpreters started bare.

    python benchmarks/experiment_peers.py [--trials 1000] [--ray-trials 100]

Eight at a time, all in one run on one machine. *Ray Tune* uses its worker processes again for the next trial, as it
does by itself, and once starts a new one for each, as a trial here has. *Optuna* has no processes: its trial is a call
in one of eight threads, with its study in SQLite; in the other row that call starts an interpreter and waits for it,
which is what a user of it does whose trials must not share memory. Ray Tune is given fewer trials, since it takes
longer for each.

The peers are installed into a virtual environment of their own (``.venv-peers``), which is made when it is missing.
They speak to nobody but themselves.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from experiments import NOTHING, SLOTS, bare, overhead

PEERS = Path(__file__).resolve().parent.parent / ".venv-peers"
WANTED = ("ray[tune]>=2.40", "optuna>=4.2")
WITHIN_S = 1500.0
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
}

RAY = f"""
import sys, time
import ray
from ray import tune
count, folder, again = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "again"
ray.init(num_cpus={SLOTS}, include_dashboard=False, log_to_driver=False, configure_logging=False,
         _node_ip_address="127.0.0.1", _temp_dir=folder)
def nothing(config):
    return {{"loss": 1.0}}
def search(count):
    began = time.perf_counter()
    tuner = tune.Tuner(nothing, param_space={{"lr": tune.loguniform(1e-5, 1e-1)}},
                       tune_config=tune.TuneConfig(num_samples=count, max_concurrent_trials={SLOTS},
                                                   reuse_actors=again),
                       run_config=tune.RunConfig(verbose=0, storage_path=folder + "/results"))
    found = tuner.fit()
    assert len(found) == count and not found.num_errors
    return time.perf_counter() - began
search({SLOTS})
print(search(count))
"""
OPTUNA = f"""
import subprocess, sys, time, optuna
count, folder, starts = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "process"
optuna.logging.set_verbosity(optuna.logging.ERROR)
def trial(trial):
    if starts:
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    return trial.suggest_float("lr", 1e-5, 1e-1, log=True)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(), storage=f"sqlite:///{{folder}}/study.db")
began = time.perf_counter()
study.optimize(trial, n_trials=count, n_jobs={SLOTS})
took = time.perf_counter() - began
assert len(study.trials) == count
print(took)
"""


def ready() -> Path:
    """The interpreter of the peers' environment."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        venv.create(PEERS, with_pip=True)
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *WANTED],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return python


def measured(python: Path, program: str, count: int, way: str) -> float | str:
    """Seconds that a peer took for so many trials, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        process = subprocess.Popen(
            [str(python), "-c", program, str(count), folder, way],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET},
            start_new_session=True,
        )
        try:
            said, wrong = process.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            return f"not done within {WITHIN_S:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        return f"failed: {wrong.strip().splitlines()[-1:]}"
    return float(said.strip().splitlines()[-1])


def say(name: str, count: int, took: float | str, alone: float | None) -> None:
    if isinstance(took, str):
        print(f"  {name:<44} {took}", flush=True)
        return
    above = "" if alone is None else f"{1e3 * (took / count - alone):9.1f} ms above a bare interpreter"
    print(f"  {name:<44} {count:5} in {took:7.1f} s {1e3 * took / count:9.1f} ms each {above}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--ray-trials", type=int, default=100)
    given = parser.parse_args()
    python = ready()
    with tempfile.TemporaryDirectory(prefix="clutch-bench-") as folder:
        lone = Path(folder) / "nothing.py"
        lone.write_text(NOTHING)
        alone = bare(lone, given.trials) / given.trials
        say("bare interpreters", given.trials, alone * given.trials, None)
        took, ours = overhead(Path(folder), NOTHING, given.trials)
        say("Clutch, a process each", given.trials, took, ours / given.trials)
    for name, program, way, count in (
        ("Ray Tune, a process each", RAY, "new", given.ray_trials),
        ("Ray Tune, processes used again", RAY, "again", given.ray_trials),
        ("Optuna with SQLite, a process each", OPTUNA, "process", given.trials),
    ):
        say(name, count, measured(python, program, count, way), alone)
    say("Optuna with SQLite, calls in threads", given.trials, measured(python, OPTUNA, given.trials, "call"), None)
    print(f"  machine: {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    sys.exit(main())
