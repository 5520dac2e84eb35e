"""Engines of tests that were killed leave nothing behind: the next one that begins takes it away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clutch.testing import docker

OWNER = Path(__file__).with_name("docker_owner.py")


def processes_of(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command:
            found.append(f"{entry.name} {command!r}")
    return found


def mounts_in(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {folder}/" in line]


def test_what_a_killed_owner_leaves_is_swept_and_a_living_engine_is_not(engine_socket: Path) -> None:
    if docker.given_socket() is not None:
        pytest.skip("DOCKER_HOST names an engine: nobody makes private ones")
    with subprocess.Popen(
        [sys.executable, OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        docker.sweep()
        assert (folder / "docker.sock").exists() and mounts_in(folder), "its owner lives"
        owner.kill()
    docker.sweep()
    assert not folder.exists() and not mounts_in(folder) and not processes_of(folder)
    assert docker.DockerEngine(engine_socket.parent).answers()
