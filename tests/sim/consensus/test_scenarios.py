"""Each text scenario still plays as its transcript says.

After a change on purpose: ``CLUTCH_REGENERATE=1 pytest tests/sim/consensus/test_scenarios.py``, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clutch.testing.raft_scenario import perform

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_scenario_plays_as_written(path: Path) -> None:
    written = path.read_text()
    played = perform(written)
    if os.environ.get("CLUTCH_REGENERATE"):
        path.write_text(played)
    assert played == path.read_text()


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 9
