"""Every shell block of the README is run as it stands, one after the other, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


def readme_blocks() -> list[str]:
    """The README's shell blocks that call ``clutch``, each as it stands."""
    blocks = re.findall(r"```(?:bash|console|sh|shell)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    plain = [re.sub(r"^\$ ", "", block, flags=re.M) for block in blocks]
    return [block for block in plain if re.search(r"^clutch ", block, re.M)]


def test_the_readme_shows_commands() -> None:
    assert sum(line.startswith("clutch ") for block in readme_blocks() for line in block.splitlines()) >= 12


def test_every_command_of_the_readme_works(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    env.pop("XDG_DATA_HOME", None)
    try:
        for block in readme_blocks():
            script = ["bash", "-ex", "-c", block]  # stops at what fails, and says what it ran
            out = subprocess.run(
                script, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110, check=False
            )
            assert out.returncode == 0, f"{block}\n{out.stdout}{out.stderr}"
            if "--search" in block:
                assert "8 ended" in out.stdout and "completed" in out.stdout, out.stdout
    finally:
        down = ["bash", "-c", "clutch down"]
        subprocess.run(down, cwd=tmp_path, env=env, capture_output=True, timeout=110, check=False)


@pytest.mark.parametrize("target", ["setup", "demo", "test", "soak", "check", "sim", "sim-consensus", "bench"])
def test_every_make_target_exists(target: str) -> None:
    out = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
