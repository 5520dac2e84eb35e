"""A trial that is killed with -9 while it reports; its hyperparameters say when.

``points``: so many are reported once the gate is open, every tenth also validated; it dies when its spool has them.
``after_s`` instead: it reports for ever and dies that long after the gate was opened.
``junk``: it writes these files in place of its spool and exits.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import clutch
from clutch.runtime.info import read_info
from clutch.runtime.opening import spool_name


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def report(run: clutch.Run, step: int) -> None:
    run.report(step, cost=step * 0.5)
    if step % 10 == 0:
        run.validate(step, loss=1_000.0 - step)


def in_file(path: Path, mark: bytes) -> int:
    """How often a file has these bytes; a spool is made with its first batch, by a thread of the run's."""
    try:
        return path.read_bytes().count(mark)
    except FileNotFoundError:
        return 0


def main() -> None:
    info = read_info()
    spool = Path(info.tmp) / spool_name(info)
    run = clutch.init()
    hparams = run.hparams
    if hparams.get("junk"):
        spool.mkdir()
        for name, text in hparams["junk"].items():
            (spool / name).write_text(text)
        return
    report(run, 10)
    gate, step = Path(hparams["gate"]), 10
    gate.with_suffix(f".{run.epoch}").touch()
    while not gate.exists():
        time.sleep(0.005)
    if after_s := hparams.get("after_s"):
        threading.Timer(after_s, die).start()
        while True:
            step += 1
            report(run, step)
            time.sleep(0.0005)
    last = 10 + hparams["points"]
    while step < last:
        step += 1
        report(run, step)
    mark = f'"step":{last},'.encode()
    patience = time.monotonic() + 30.0
    while in_file(spool / "spool.jsonl", mark) < 2:  # the point and the validation
        time.sleep(0.005)
        if time.monotonic() > patience:
            reporter = run._reporter
            text = f"failure {reporter.failure!r}, outlet {vars(reporter._opened)}, {len(reporter._pending)} in memory"
            gate.with_suffix(".why").write_text(text)
            break
    die()


main()
