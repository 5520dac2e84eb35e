"""A trial that trains nothing and does what its hyperparameters say, in a language of a few words.

``do`` is a list of sentences that are carried out at each step, from the one behind the last checkpoint up to ``steps``
(or to what the search asks for, with ``operations: true``). A sentence may say when it counts::

    do:
      - report                    # a training metric that depends on everything that was done before
      - validate                  # ``loss``: ``base`` / step, and a little of the same
      - "every 5: checkpoint"     # with ``checkpoint BYTES`` that much more
      - "at 3: log something"     # a line of output
      - "at 7 first: fail 3"      # leave at once with 3, but only in the first run of the trial
      - "at 9: exit"              # end as if all were done

Further actions: ``sleep S``; ``wait PATH`` until that exists, or one of its name with ``.TRIAL`` behind it; ``touch
PATH``; ``invalid REASON``; ``text NAME=VALUE``, which reports a word, as nobody should; ``vanish``, a checkpoint whose
folder is gone before it is whole; ``stubborn``, which from then on does not leave when asked.

What it computes is a function of the seed and the steps that were done, one after the other: a trial that was
interrupted and went on from its checkpoint ends with the same numbers and files as one that was not, and a step that
was done twice or left out changes everything behind it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

import clutch

LOOK_S = 0.01


class Left(Exception):
    """It was asked to leave, or to end."""


class Unfinished(Left):
    """In the middle of a step, which counts as not done."""


class NoopTrial:
    def __init__(self, run: clutch.Run) -> None:
        self.run = run
        self.step = 0
        self.state = f"seed {run.seed}"
        self.saved = 0
        self.stubborn = False
        found = run.latest_checkpoint
        if found is not None:
            step, self.state = (Path(found) / "state").read_text().split(" ", 1)
            self.step = self.saved = int(step)
        self.do_log(f"begins at {self.step} in epoch {run.epoch}")

    def train(self, length: int) -> None:
        """Up to this step. ``Left`` when it leaves before."""
        while self.step < length:
            before = self.step, self.state
            self.step += 1
            self.state = hashlib.sha256(f"{self.state} {self.step}".encode()).hexdigest()
            try:
                for sentence in self.run.hparams.get("do", ["report", "validate"]):
                    self.carry_out(sentence)
            except Unfinished:
                self.step, self.state = before
                raise
            if self.run.should_stop() and not self.stubborn:
                raise Left

    def carry_out(self, sentence: str) -> None:
        when, colon, action = sentence.partition(": ")
        if not colon:
            when, action = "", sentence
        if self.counts(when.split()):
            verb, _, rest = action.strip().partition(" ")
            getattr(self, f"do_{verb}")(rest.strip())

    def counts(self, when: list[str]) -> bool:
        """``at N``, ``every N`` and ``first`` in any order; all of them must hold."""
        words = iter(when)
        for word in words:
            if word == "first":
                holds = self.run.epoch == 1
            elif word == "at":
                holds = self.step == int(next(words))
            elif word == "every":
                holds = self.step % int(next(words)) == 0
            else:
                raise ValueError(f"'{word}' is not a time; say at N, every N or first")
            if not holds:
                return False
        return True

    # -- actions ---------------------------------------------------------------------------------------------------

    @property
    def chance(self) -> float:
        """From 0 to 1, by all that was done."""
        return int(self.state[:8], 16) / 2**32 if self.step else 0.0

    def do_report(self, rest: str) -> None:
        self.run.report(self.step, chance=self.chance)

    def do_validate(self, rest: str) -> None:
        base = float(self.run.hparams.get("base", 1.0))
        self.run.validate(self.step, loss=base / self.step + self.chance / 1000)

    def do_checkpoint(self, rest: str) -> None:
        if self.saved >= self.step:
            return  # nothing was done since
        with self.run.checkpoint(self.step) as folder:
            (folder / "state").write_text(f"{self.step} {self.state}")
            if rest:
                (folder / "ballast").write_bytes(os.urandom(int(rest)))
        self.saved = self.step

    def do_vanish(self, rest: str) -> None:
        with self.run.checkpoint(self.step) as folder:
            (folder / "state").write_text("lost")
            shutil.rmtree(folder)

    def do_log(self, rest: str) -> None:
        sys.stdout.write(f"{rest}\n")
        sys.stdout.flush()

    def do_sleep(self, rest: str) -> None:
        time.sleep(float(rest))

    def do_wait(self, rest: str) -> None:
        gates = (Path(rest), Path(f"{rest}.{self.run.trial}"))
        while not any(gate.exists() for gate in gates):
            if self.run.should_stop() and not self.stubborn:
                raise Unfinished
            time.sleep(LOOK_S)

    def do_touch(self, rest: str) -> None:
        Path(rest).touch()

    def do_text(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self.run.report(self.step, {name: value})

    def do_invalid(self, rest: str) -> None:
        self.run.invalid_hparams(rest)

    def do_stubborn(self, rest: str) -> None:
        self.stubborn = True

    def do_fail(self, rest: str) -> None:
        os._exit(int(rest or 1))

    def do_exit(self, rest: str) -> None:
        self.run.finish()
        raise Left


def main() -> None:
    with clutch.init() as run:
        trial = NoopTrial(run)
        try:
            if run.hparams.get("operations"):
                for operation in run.operations():
                    trial.train(operation.length)
                    trial.do_checkpoint("")
                    operation.complete()
            else:
                trial.train(run.hparams.get("steps", 10))
        except Left:
            trial.do_checkpoint("")


if __name__ == "__main__":
    main()
