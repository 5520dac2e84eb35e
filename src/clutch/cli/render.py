"""How things look in a terminal. No logic: values in, text out."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from clutch.testing.sim.run import Outcome


class SimReport:
    """Shows outcomes as they come: a bar and a summary for people, a line of JSON each for programs."""

    def __init__(self, expected: int, *, as_json: bool, in_full: bool) -> None:
        self.as_json = as_json
        self.in_full = in_full
        self.broken = 0
        self._count = self._facts = self._checks = self._faults = 0
        self._began = time.monotonic()
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("seeds"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=as_json or expected == 1 or not self._console.is_terminal,
        )
        self._bar = self._progress.add_task("seeds", total=expected)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if kind is not None or self.as_json or self.in_full:
            return
        verdict = f"{self.broken} BROKE A PROMISE" if self.broken else "every promise held"
        sys.stdout.write(
            f"{self._count} seeds, {verdict}: {self._facts} facts, {self._faults} faults, {self._checks} checks"
            f" in {time.monotonic() - self._began:.1f} s\n"
        )

    def show(self, outcome: Outcome) -> None:
        self._count += 1
        self._facts += outcome.facts
        self._checks += outcome.checks
        self._faults += sum(outcome.faults.values())
        self.broken += bool(outcome.broken)
        self._progress.advance(self._bar)
        if self.as_json:
            sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        elif outcome.broken or self.in_full:
            sys.stdout.write(outcome_text(outcome))


def outcome_text(outcome: Outcome) -> str:
    """One seed, in full: what it held, what went wrong in it, and whether a promise broke."""
    faults = ", ".join(f"{count} x {kind}" for kind, count in outcome.faults.items() if count) or "none"
    lines = [
        f"seed {outcome.seed}: {'BROKEN' if outcome.broken else 'every promise held'}",
        f"  {outcome.tasks} tasks, {outcome.facts} facts, {outcome.terms} terms in {outcome.virtual_s:.0f} virtual s",
        f"  faults: {faults}",
        f"  checks: {outcome.checks}; journal {outcome.digest[:16]}",
    ]
    if outcome.broken:
        lines += ["", outcome.broken, "", *outcome.story]
        options = f"--seed {outcome.seed}" + (f" {outcome.options}" if outcome.options else "")
        lines.append(f"\nreplay it with: clutch sim run {options}")
    return "\n".join(lines) + "\n"
