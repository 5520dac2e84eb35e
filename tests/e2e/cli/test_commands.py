"""The command line as a user meets it: in its own process, with its exit code and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CLUTCH = str(Path(sys.executable).with_name("clutch"))


def clutch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CLUTCH, *arguments], capture_output=True, text=True, timeout=100, check=False)


def test_help_lists_the_commands() -> None:
    out = clutch("--help")
    assert out.returncode == 0
    for command in ("demo", "sim", "backup", "restore"):
        assert command in out.stdout


def test_version() -> None:
    assert clutch("--version").stdout.startswith("clutch 0.")


def test_sim_run_one_seed_in_full() -> None:
    out = clutch("sim", "run", "--seed", "7", "--nodes", "3")
    assert out.returncode == 0, out.stderr
    assert "every promise held" in out.stdout
    assert "faults:" in out.stdout


def test_sim_run_many_seeds_at_once_as_json() -> None:
    out = clutch("sim", "run", "--seeds", "0-5", "--jobs", "2", "--json")
    rows = [json.loads(line) for line in out.stdout.splitlines()]
    assert [row["seed"] for row in rows] == list(range(6))
    assert all(row["broken"] == "" for row in rows)


def test_sim_story() -> None:
    out = clutch("sim", "story", "--seed", "7", "n0")
    assert out.returncode == 0, out.stderr
    assert "node reported" in out.stdout
    as_json = json.loads(clutch("sim", "story", "--seed", "7", "n0", "--json").stdout)
    assert as_json == out.stdout.splitlines()


def test_a_saved_journal_is_backed_up_and_restored_as_the_next_generation(tmp_path: Path) -> None:
    first, second, file = (str(tmp_path / name) for name in ("first.db", "second.db", "copy"))
    assert clutch("sim", "save", "--seed", "3", first).returncode == 0
    again = clutch("sim", "save", "--seed", "3", first)
    assert again.returncode == 2 and "empty" in again.stderr
    made = json.loads(clutch("backup", "--journal", first, file, "--json").stdout)
    filled = json.loads(clutch("restore", "--journal", second, file, "--json").stdout)
    assert filled["origin"]["last_index"] == made["origin"]["last_index"] > 100
    assert filled["origin"]["generation"] == made["origin"]["generation"] + 1


def test_a_journal_that_is_not_there_is_not_backed_up(tmp_path: Path) -> None:
    out = clutch("backup", "--journal", str(tmp_path / "nothing.db"), str(tmp_path / "copy"))
    assert out.returncode == 2
    assert "no journal" in out.stderr
    assert not list(tmp_path.iterdir()), "nothing was made"


def test_errors_say_cause_object_and_next_step() -> None:
    out = clutch("sim", "story", "--seed", "7", "nobody")
    assert out.returncode == 2
    assert "nobody" in out.stderr
    assert "Try: " in out.stderr
    out = clutch("sim", "run", "--seeds", "9-3")
    assert out.returncode == 2
    assert "0-99" in out.stderr


def test_the_demo_ends_well() -> None:
    out = clutch("demo", "day", "--plain")
    assert out.returncode == 0, out.stdout + out.stderr
    assert "every promise held" in out.stdout
    assert "what went wrong on the way" in out.stdout
    hint = out.stdout.rpartition("clutch demo day --story ")[2].split()[0]
    told = clutch("demo", "day", "--story", hint)
    assert told.returncode == 0, told.stderr
    assert hint in told.stdout
