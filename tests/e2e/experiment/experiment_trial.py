"""A trial for tests: what it does is in its hyperparameters.

steps           it validates at 1, 2, ... up to this; ``loss`` is ``base / step``
save            a checkpoint at every so many steps
gate            a folder: it goes on to step N only when the file N is there, or TRIAL.N for that trial alone
print_at, text  it prints the text after that step
fail_at         it exits with 3 after that step, at each of its starts
operations      it asks what to do next instead of ending by itself
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import clutch


def main() -> None:
    with clutch.init() as run:
        wanted = run.hparams
        found = run.latest_checkpoint
        begin = int((Path(found) / "step").read_text()) if found is not None else 0
        print(f"begins at {begin}", flush=True)
        if wanted.get("operations"):
            for operation in run.operations():
                begin = train(run, wanted, begin, operation.length)
                if run.should_stop():
                    break
                operation.complete()
        else:
            train(run, wanted, begin, wanted["steps"])


def train(run: clutch.Run, wanted: dict, begin: int, end: int) -> int:
    for step in range(begin + 1, end + 1):
        if not opened(run, wanted, step):
            save(run, step - 1)
            return step - 1
        run.report(step, speed=1.0 * step)
        go_on = run.validate(step, loss=wanted["base"] / step)
        if wanted.get("save") and step % wanted["save"] == 0:
            save(run, step)
        if wanted.get("print_at") == step:
            print(wanted["text"], flush=True)
        if wanted.get("fail_at") == step:
            os._exit(3)
        if not go_on:
            save(run, step)
            return step
    return end


def opened(run: clutch.Run, wanted: dict, step: int) -> bool:
    """Waits for its gate; False when it shall leave instead."""
    gate = wanted.get("gate")
    names = (str(step), f"{run.trial}.{step}", "all")
    while gate and not any((Path(gate) / name).exists() for name in names):
        if run.should_stop():
            return False
        time.sleep(0.01)
    return True


def save(run: clutch.Run, step: int) -> None:
    if step and (run.latest_checkpoint is None or run.latest_checkpoint.step < step):
        with run.checkpoint(step) as folder:
            (folder / "step").write_text(str(step))


if __name__ == "__main__":
    sys.exit(main())
