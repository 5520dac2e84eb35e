"""Every command the README shows is run as it stands, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


def readme_commands() -> list[str]:
    """Lines of the README's shell blocks that call ``clutch``."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```(?:bash|console|sh|shell)\n(.*?)```", text, re.S)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith("clutch ")]


def test_the_readme_shows_commands() -> None:
    assert len(readme_commands()) >= 4


def test_every_command_of_the_readme_works(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    env.pop("XDG_DATA_HOME", None)
    try:
        for command in readme_commands():
            out = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110, check=False
            )
            assert out.returncode == 0, f"{command}\n{out.stdout}{out.stderr}"
    finally:
        down = ["bash", "-c", "clutch down"]
        subprocess.run(down, cwd=tmp_path, env=env, capture_output=True, timeout=110, check=False)


@pytest.mark.parametrize("target", ["setup", "demo", "test", "soak", "check", "sim", "sim-consensus", "bench"])
def test_every_make_target_exists(target: str) -> None:
    out = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
