"""Ranks as real processes, from the tests' side. See ``comms_house.py``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).with_name("comms_house.py")


class House:
    """One run of some ranks. ``about`` is where they meet, ``finish`` what they saw."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HOUSE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(orders))
        self._process.stdin.close()
        self._process.stdin = None
        self.about = json.loads(self._process.stdout.readline())
        self.errors = ""

    def finish(self, within_s: float = 90.0) -> tuple[list[dict[str, Any]], dict[int, float]]:
        out, self.errors = self._process.communicate(timeout=within_s)
        assert self._process.returncode == 0, self.errors
        found = json.loads(out)
        return found["ranks"], {int(rank): at for rank, at in found["hurt_at"].items()}

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def house(nodes: list[int], story: str, **orders: Any) -> Iterator[House]:
    found = House({"nodes": nodes, "story": story, **orders})
    try:
        yield found
    finally:
        found.end()


def play(nodes: list[int], story: str, **options: Any) -> list[Any]:
    """What each rank returned. Fails if one did not return."""
    with house(nodes, story, options=options) as ranks:
        found, _ = ranks.finish()
        bad = [one for one in found if "result" not in one]
        assert not bad, f"{bad[:3]} {ranks.errors[-2000:]}"
        return [one["result"] for one in found]


def hurt(nodes: list[int], story: str, wounds: list[list[Any]], **options: Any) -> tuple[list[Any], dict[int, float]]:
    with house(nodes, story, options=options, hurt=wounds) as ranks:
        return ranks.finish()


def at_once(works: list[Callable[[], Any]]) -> list[Any]:
    """What each of them returns. They run at the same time: most of it is waiting. Raises what one of them raises."""
    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result() for future in [threads.submit(work) for work in works]]
