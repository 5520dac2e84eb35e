"""A trial that looks at the container it is in, and says what it sees in one line of JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import clutch

DATA, OUT = Path("/data"), Path("/out")


def refused(path: Path) -> str:
    """Why nothing can be written there; empty when it can."""
    try:
        path.write_text("written")
    except OSError as error:
        return error.strerror or "refused"
    return ""


with clutch.init() as run:
    seen = {
        "pid_1": Path("/proc/1/comm").read_text().strip(),
        "data": (DATA / "part" / "file").read_text(),
        "data_refused": refused(DATA / "part" / "mine"),
        "mine": os.environ.get("MINE"),
        "tmp": os.environ.get("TMPDIR"),
        "uid": os.getuid(),
        "has_home": Path("/home").exists(),
    }
    with multiprocessing.Manager() as manager:  # its sockets are in TMPDIR, and their paths are bounded
        seen["shared"] = list(manager.list([1, 2]))
    (OUT / f"trial{run.trial}").write_text(str(run.hparams["x"]))
    run.report(1, x=run.hparams["x"])
    with run.checkpoint(1) as folder:
        (folder / "state").write_text("saved")
    run.validate(1, loss=run.hparams["x"])
    print(json.dumps(seen), flush=True)
