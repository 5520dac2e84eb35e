"""Real boots, as an agent starts them: code arrives, peers meet, the command finds its variables; and how it fails."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import msgspec
from push_ground import DEADLINE_S, Master

from clutch.testing.ports import free_port

SCRIPT = b"""
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CLUTCH_PUBLIC_KEY")
found = {name: os.environ.get(name) for name in names}
found["argv"], found["cwd"], found["helper"] = sys.argv[1:], os.getcwd(), __import__("helper").VALUE
if "CLUTCH_ROSTER_FILE" in os.environ:
    found["roster"] = json.load(open(os.environ["CLUTCH_ROSTER_FILE"]))
print(json.dumps(found))
sys.exit(3)
"""


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    return path


def boot(place: Path, argv: list[str], **said: str) -> subprocess.Popen[str]:
    """A boot in an empty folder of its own, with an environment of its own."""
    place.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "TMPDIR": str(place.parent),
        "CLUTCH_CACHE": str(place.parent / "cache"),
        **{f"CLUTCH_{name}": value for name, value in said.items()},
    }
    return subprocess.Popen(
        [sys.executable, "-m", "clutch.runtime.boot", "--", *argv],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, Any, str]:
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, msgspec.json.decode(out) if out.startswith("{") else out, err


def test_two_members_boot_through_the_death_of_their_master(master: Master, tmp_path: Path) -> None:
    packed = archive(tmp_path / "code.tgz", {"train.py": SCRIPT, "helper.py": b"VALUE = 7"})
    made = master.do("program", "t", 2, packed)
    masters = f"http://127.0.0.1:{free_port()},{master.url}"

    def start(rank: int) -> subprocess.Popen[str]:
        said = {"TASK": "t", "RANK": str(rank), "TOKEN": made["tokens"][str(rank)], "MASTERS": masters}
        said |= {"CODE": made["digest"], "RENDEZVOUS": "1", "SLOTS": str(rank), "NODE": "n1", "MEET_WITHIN_S": "60"}
        return boot(tmp_path / f"m{rank}", [sys.executable, "train.py", "--lr", "1"], **said)

    first = start(0)
    deadline = time.monotonic() + DEADLINE_S
    while master.do("waiting") < 1:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.02)
    master.kill()
    master.start()
    second = start(1)
    results = [outcome(first), outcome(second)]
    for rank, (code, found, err) in enumerate(results):
        assert (code, err) == (3, ""), "the command's own code, and boot is silent"
        assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == (str(rank), "2", str(rank))
        assert found["argv"] == ["--lr", "1"] and found["helper"] == 7 and found["cwd"] == str(tmp_path / f"m{rank}")
        assert found["roster"]["peers"][rank]["public_key"] == found["CLUTCH_PUBLIC_KEY"]
        assert found["roster"]["peers"][rank]["slots"] == [rank]
    one, two = (found for _, found, _ in results)
    assert one["roster"]["peers"] == two["roster"]["peers"] and one["MASTER_ADDR"] == two["MASTER_ADDR"] == "127.0.0.1"
    assert one["MASTER_PORT"] == two["MASTER_PORT"] == str(one["roster"]["peers"][0]["ports"][0])
    cached = list((tmp_path / "cache").iterdir())
    assert [path.name for path in cached] == [f"{made['digest'].removeprefix('sha256:')}.tar"]
    # What lies in the cache is checked again: a spoilt archive is fetched anew
    cached[0].write_bytes(b"spoilt")
    said = {"TASK": "t", "TOKEN": made["tokens"]["0"], "MASTERS": masters, "CODE": made["digest"]}
    assert outcome(boot(tmp_path / "again", ["cat", "helper.py"], **said))[:2] == (0, "VALUE = 7")
    assert hashlib.sha256(cached[0].read_bytes()).hexdigest() in made["digest"]


def test_how_boot_fails(shared: Master, tmp_path: Path) -> None:
    evil = archive(tmp_path / "evil.tgz", {"../evil.py": b"x"})
    made = shared.do("program", "boot-evil", 1, evil)
    alone = shared.do("submit", "boot-alone", 2, "end")
    here = {"TASK": "t", "TOKEN": made["tokens"]["0"], "MASTERS": shared.url, "CODE": made["digest"]}
    nobody = {"TASK": "t", "TOKEN": "x", "MASTERS": f"http://127.0.0.1:{free_port()}", "MEET_WITHIN_S": "0.5"}
    meeting = {"TASK": "t", "MASTERS": shared.url, "RENDEZVOUS": "1", "MEET_WITHIN_S": "0.5"}
    cases: list[tuple[dict[str, str], list[str], int, str]] = [
        (here, ["true"], 118, "evil.py"),
        ({**here, "CODE": "sha256:" + "0" * 64}, ["true"], 117, "digest"),
        ({**here, "CODE": "md5:1"}, ["true"], 118, "digest"),
        ({**meeting, "TOKEN": alone["0"]}, ["true"], 117, "main.1"),
        ({**meeting, "TOKEN": "clutch_t_x.y"}, ["true"], 117, "token"),
        ({**nobody, "RENDEZVOUS": "1"}, ["true"], 117, "no answer"),
        ({"RANK": "x"}, ["true"], 118, "CLUTCH_RANK"),
        ({}, [], 118, "no command"),
        ({}, ["no-such-command-anywhere"], 127, "no such command"),
        ({}, ["/"], 126, "cannot be executed"),
    ]
    for number, (said, argv, code, words) in enumerate(cases):
        got, out, err = outcome(boot(tmp_path / f"b{number}", argv, **said))
        assert (got, out) == (code, ""), err
        assert err.startswith("clutch boot: ") and words in err and err.count("\n") == 1 and err.endswith("\n")
        assert "Traceback" not in err
    assert not (tmp_path / "evil.py").exists()
