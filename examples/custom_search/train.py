"""What is searched: how far a point is from the top of a hill. It trains for as long as the search asks.

Alone:          python train.py
As a search:    clutch experiment create search.yaml .        (the method is a task of the experiment)
                clutch experiment create outside.yaml . --detach; python search.py EXPERIMENT     (it runs here)
"""

from __future__ import annotations

from pathlib import Path

import clutch


def main() -> None:
    with clutch.init(hparams={"x": 0.0}, max_length=5) as run:
        step = int((Path(run.latest_checkpoint) / "step").read_text()) if run.latest_checkpoint else 0
        for operation in run.operations():
            while step < operation.length and not run.should_stop():
                step += 1
                run.report(step, height=height(run.hparams["x"], step))
            with run.checkpoint(step) as folder:
                (folder / "step").write_text(str(step))
            if step < operation.length:
                break  # asked to leave; the operation goes on after the restart
            run.validate(step, height=height(run.hparams["x"], step))
            operation.complete()


def height(x: float, step: int) -> float:
    """The more steps, the nearer to what it will be."""
    return (1 - (x - 2.0) ** 2) * step / (step + 1)


if __name__ == "__main__":
    main()
