"""What others need for the same 1,000 trials that do nothing: Ray Tune (processes) and Optuna (threads, one process).

    python benchmarks/experiment_peers.py

They are installed into a virtual environment of their own (``.venv-peers``), which is made when it is missing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
PEERS = HERE / ".venv-peers"
WANTED = ("ray[tune]>=2.40", "optuna>=4.2")
COUNT, SLOTS = 1000, 8

RAY = f"""
import os, time
os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
os.environ["RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS"] = "0"
import ray
from ray import tune
ray.init(num_cpus={SLOTS}, include_dashboard=False, log_to_driver=False, configure_logging=False,
         _node_ip_address="127.0.0.1")
def nothing(config):
    return {{"loss": 1.0}}
for count in (8, {COUNT}):
    began = time.perf_counter()
    tuner = tune.Tuner(nothing, param_space={{"lr": tune.loguniform(1e-5, 1e-1)}},
                       tune_config=tune.TuneConfig(num_samples=count, max_concurrent_trials={SLOTS}),
                       run_config=tune.RunConfig(verbose=0))
    tuner.fit()
    took = time.perf_counter() - began
print(took)
"""
OPTUNA = f"""
import time, optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
began = time.perf_counter()
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(), storage="sqlite:///{{}}")
study.optimize(lambda trial: trial.suggest_float("lr", 1e-5, 1e-1, log=True), n_trials={COUNT}, n_jobs={SLOTS})
print(time.perf_counter() - began)
"""


def main() -> None:
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *WANTED], check=True)
    for name, program in (("Ray Tune", RAY), ("Optuna (SQLite, threads)", OPTUNA)):
        place = PEERS / "study.db"
        place.unlink(missing_ok=True)
        done = subprocess.run(
            [str(python), "-c", program.replace("{}", str(place))], capture_output=True, text=True, timeout=1500
        )
        if done.returncode:
            print(f"  {name}: failed: {done.stderr.strip().splitlines()[-1:]}")
            continue
        took = float(done.stdout.strip().splitlines()[-1])
        print(f"  {name:<30} {COUNT} trials in {took:7.1f} s, {took / COUNT * 1e3:6.1f} ms each", flush=True)


if __name__ == "__main__":
    main()
