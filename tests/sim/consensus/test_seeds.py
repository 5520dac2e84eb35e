"""The seeded world finds nothing wrong with the raft, and something wrong with every mutant of it.

Short form of ``make sim-consensus``. Bounds of the mutants are stated per mutant: within so many seeds it is caught.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clutch.testing.raft_checks import Violation
from clutch.testing.raft_mutants import MUTANTS, CommitsOlderTerms
from clutch.testing.raft_scenario import perform
from clutch.testing.raft_world import RaftWorld, report, run_seed

SEEDS = range(100_000, 100_120)

# The seeds a mutant must be caught in. ``1 mod 4`` are the seeds of fast elections, ``3 mod 4`` of changing members.
CAUGHT_WITHIN: dict[str, range] = {
    "skips fsync": range(40),
    "votes twice": range(1, 400, 4),
    "commits older terms by counting": range(1, 1200, 4),
    "votes for anyone": range(40),
    "skips the match": range(1, 400, 4),
    "counts half as a quorum": range(40),
    "counts itself early": range(0, 800, 2),
    "reads at once": range(1, 800, 4),
    "reads before its commit": range(100),
    "changes members at will": range(3, 200, 4),
    "answers before persist": range(100),
    "acknowledges proposals": range(20),
    "forgets keys": range(40),
}


def test_seeds_find_nothing() -> None:
    outcomes = [run_seed(seed) for seed in SEEDS]
    assert report(outcomes, 0.0) == 0
    fired: dict[str, int] = {}
    for outcome in outcomes:
        for name, count in outcome.faults.items():
            fired[name] = fired.get(name, 0) + count
    # A fault that a run plans must have fired, or the run proves nothing about it.
    planned = ["crash", "crash all", "crash leader", "partition", "one-way cut", "disk full", "slow disk"]
    planned += [
        "slow follower",
        "snapshot",
        "transfer",
        "replace",
        "grow",
        "coup",
        "ambush",
        "weather",
        "broken connection",
    ]
    assert [name for name in planned if not fired.get(name)] == []
    assert sum(o.acknowledged for o in outcomes) > 3_000
    assert sum(o.reads for o in outcomes) > 1_000
    assert sum(o.deaths for o in outcomes) > 300


def test_the_same_seed_is_the_same_run() -> None:
    for seed in (4, 5, 7):
        one, other = RaftWorld(seed), RaftWorld(seed)
        one.story, other.story = [], []
        one.run()
        other.run()
        assert one.story == other.story
        assert len(one.story) > 50


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    for seed in CAUGHT_WITHIN[name]:
        try:
            MUTANTS[name](seed).run()
        except Violation:
            return
    pytest.fail(f"'{name}' was not caught within {len(CAUGHT_WITHIN[name])} seeds")


def test_every_mutant_has_a_bound() -> None:
    assert list(CAUGHT_WITHIN) == list(MUTANTS)


def test_a_failure_tells_its_seed_and_story(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_seed(0, MUTANTS["acknowledges proposals"])
    assert "acknowledged too early" in outcome.violation
    assert report([outcome], 0.0) == 1
    printed = capsys.readouterr().out
    assert "seed 0 FAILED" in printed
    assert "start  n0" in printed
    assert "--seeds 0" in printed


def test_figure_8_in_the_words_of_the_paper() -> None:
    """The mutant that counts copies of older terms commits "two" in the scenario; the right rules do not."""
    text = (Path(__file__).parent / "scenarios" / "figure_8.txt").read_text()
    assert "applies 2/1 two" not in perform(text)
    before_e_returns = text[: text.index("# (d)")]
    assert "a applies 2/1 two" in perform(before_e_returns, CommitsOlderTerms())
