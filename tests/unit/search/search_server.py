"""The routes of a custom search over a real socket, before a search in memory; it drops calls and kills callers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import msgspec
from search_world import MemorySearch

from clutch.wire.errors import ClutchError
from clutch.wire.experiment_api import AnswerSearch

TOKEN = "a-token"


class SearchServer(ThreadingHTTPServer):
    """``mishap`` is asked before each call is carried out, and after: True drops the connection without an answer."""

    daemon_threads = False

    def __init__(self, world: MemorySearch, place: str, mishap: Callable[[str], bool]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.world = world
        self.place = place
        self.mishap = mishap
        self.lock = threading.Lock()
        self.calls: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Callers that were killed do not read their answers."""


class _Handler(BaseHTTPRequestHandler):
    server: SearchServer
    protocol_version = "HTTP/1.1"
    timeout = 5.0

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = parse_qs(asked.query)
        after, timeout_s = int(query["after"][0]), float(query["timeout_s"][0])
        self._serve("events", asked.path, lambda world: world.search_events("", after, timeout_s))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = msgspec.json.decode(body, type=AnswerSearch)
        self._serve("operations", self.path, lambda world: world.answer_search("", answer))

    def _serve(self, verb: str, path: str, call: Callable[[MemorySearch], object]) -> None:
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        assert path == f"{self.server.place}/{verb}"
        with self.server.lock:
            self.server.calls.append(verb)
            if self.server.mishap(f"before {verb}"):
                self.close_connection = True
                return
            try:
                status, body = 200, msgspec.json.encode(call(self.server.world))
            except ClutchError as error:
                status, body = error.status, msgspec.json.encode(error.view())
            if self.server.mishap(f"after {verb}"):
                self.close_connection = True
                return
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(world: MemorySearch, place: str, mishap: Callable[[str], bool]) -> Iterator[SearchServer]:
    server = SearchServer(world, place, mishap)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def environment(server: SearchServer) -> dict[str, str]:
    """Of a member of the experiment's search task."""
    return {"CLUTCH_MASTERS": server.address, "CLUTCH_TOKEN": TOKEN, "CLUTCH_TASK": "exp.search"}


def described(world: MemorySearch) -> str:
    return json.dumps([trial.made.hparams for trial in world.search.trials.values()], sort_keys=True)
