"""The parent of ``push_child``: starts it, talks to it, kills it; and HTTP as a member speaks it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import msgspec

from clutch.testing.ports import free_port

CHILD = Path(__file__).with_name("push_child.py")
DEADLINE_S = 60.0


class Master:
    """One folder and one port; started as often as it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | None = None
        self.known: dict[str, Any] = {}
        """Members that several tests share."""
        self._said: Queue[Any] = Queue()
        self._ear: threading.Thread | None = None

    def start(self) -> Master:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), str(self.folder), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said = Queue()
        self._ear = threading.Thread(target=self._listen, args=(self.process, self._said))
        self._ear.start()
        assert "serving" in self._next()
        return self

    def _listen(self, process: subprocess.Popen[str], said: Queue[Any]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):  # the rest is its log
                said.put(msgspec.json.decode(line))
        said.put({"error": "it has ended"})

    def _next(self) -> Any:
        return self._said.get(timeout=DEADLINE_S)

    def do(self, *words: object) -> Any:
        """What the child answers to a line."""
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self._next()
        assert "error" not in answer, answer["error"]
        return answer["done"]

    def kill(self) -> None:
        assert self.process is not None and self._ear is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=DEADLINE_S)
        self._ear.join(timeout=DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None

    def close(self) -> None:
        if self.process is not None:
            self.kill()

    def member(self, token: str) -> Member:
        return Member(self.url, token)


class Member:
    """HTTP with one incarnation's token."""

    def __init__(self, url: str, token: str) -> None:
        self.url = f"{url}/api/v1/run"
        self.token = token
        self.headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self._ask("GET", path, params=query or None)

    def post(self, path: str, body: Any = None, **query: Any) -> httpx.Response:
        return self._ask("POST", path, json=body, params=query or None)

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        address = f"{self.url}{path}"
        return httpx.request(method, address, headers=self.headers, timeout=DEADLINE_S, trust_env=False, **more)


def said(answer: httpx.Response, status: int = 200) -> Any:
    """What was answered, with the status it must have."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
    return answer.json() if answer.content else None
