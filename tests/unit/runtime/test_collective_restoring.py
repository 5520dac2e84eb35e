"""The ranks of one node fetch a checkpoint once between them, whoever of them is killed meanwhile."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

FETCH = """
import sys, json, time
from pathlib import Path
from clutch.runtime.checkpoint_select import selected
from clutch.runtime.collective.restoring import NodeFolder
from clutch.wire.push import CheckpointFile, CheckpointView
place, log, name, selector = sys.argv[1], Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
def ask():
    with log.open("a") as file: file.write("view\\n")
    files = tuple(CheckpointFile(path, 1, "0" * 64) for path in ("a", "b", "c/d", "c/e"))
    return CheckpointView(id="1-x", task="t", step=1, epoch=1, member="m", committed_at=0, size_bytes=4, file_count=4,
                          files=files)
def get(files, target):
    for file in files:
        with log.open("a") as out: out.write(f"{file.path}\\n")
        (target / file.path).parent.mkdir(exist_ok=True)
        (target / file.path).write_text("x")
        if name == "slow":
            print("fetching", flush=True)
            sys.stdin.readline()
folder = NodeFolder(place, "1-x", "whose")
found = folder.fetch(selected(folder.view(ask).files, selector), get)
meant = [file.path for file in selected(folder.view(ask).files, selector)]
assert all((found / path).read_text() == "x" for path in meant)
print(found, flush=True)
sys.stdin.readline()
folder.close()
"""


class Reader:
    def __init__(self, folder: Path, name: str = "", selector: str = "null") -> None:
        arguments = [str(folder / "tmp"), str(folder / "log"), name, selector]
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(FETCH), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        self.process.communicate("\n", timeout=60)
        assert kill or self.process.returncode == 0


def fetched(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


def test_each_file_is_fetched_once_and_the_last_reader_removes_them(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    readers = [Reader(tmp_path, selector=one) for one in ("null", '["a"]', '["a", "c/"]', "null")]
    places = {reader.line() for reader in readers}
    assert len(places) == 1
    assert sorted(fetched(tmp_path)) == ["a", "b", "c/d", "c/e", "view"]
    for reader in readers[:-1]:
        reader.end()
    assert (Path(places.pop()) / "c" / "e").exists(), "somebody still reads"
    readers[-1].end()
    assert not list((tmp_path / "tmp").iterdir())


def test_selectors_fetch_the_union(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    first, second = Reader(tmp_path, selector='["a"]'), Reader(tmp_path, selector='["c/d", "a"]')
    place = Path(first.line())
    assert Path(second.line()) == place
    assert sorted(fetched(tmp_path)) == ["a", "c/d", "view"] and not (place / "b").exists()
    first.end()
    second.end()


def test_one_that_is_killed_while_it_fetches_is_followed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    slow = Reader(tmp_path, "slow")
    assert slow.line() == "fetching"
    other = Reader(tmp_path)
    slow.end(kill=True)
    assert Path(other.line()).is_dir()
    other.end()
    assert fetched(tmp_path).count("view") == 1
    assert not list((tmp_path / "tmp").iterdir())
