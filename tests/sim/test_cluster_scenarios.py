"""Every story in ``scenarios/`` plays as it is written. ``CLUTCH_REWRITE=1`` writes what follows now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clutch.testing.scenario import play
from clutch.wire.errors import BadRequest

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    written = path.read_text()
    played = play(written)
    if os.environ.get("CLUTCH_REWRITE"):
        path.write_text(played)
        return
    assert played.splitlines() == written.splitlines(), "run again with CLUTCH_REWRITE=1 and review the diff"


def test_there_are_stories() -> None:
    assert len(FILES) >= 12
    for path in FILES:
        assert path.read_text().startswith("# "), f"{path.name} does not say what it is about"


def test_a_wrong_transcript_is_noticed() -> None:
    right = play("node n0\n----\n")
    assert play(right.replace("4 slots", "5 slots")) == right


@pytest.mark.parametrize("command", ["sing", "node", "submit t trial colour=red", "run", "node n0 n1 n2 n3"])
def test_what_is_no_command_is_refused(command: str) -> None:
    if command.startswith("submit"):
        assert "refused (bad_request)" in play(f"{command}\n----\n")
        return
    with pytest.raises(BadRequest):
        play(f"{command}\n----\n")


def test_a_block_without_its_answer_is_refused() -> None:
    with pytest.raises(BadRequest, match="nothing follows 'node n0'"):
        play("node n0\n")
