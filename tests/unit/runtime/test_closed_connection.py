"""A master that closes its connections after each answer is asked again over a new one."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from clutch.runtime.http import MasterConnection


class Closing(BaseHTTPRequestHandler):
    """HTTP/1.0: every answer is the last of its connection."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_connection_that_was_closed_is_opened_again() -> None:
    with HTTPServer(("127.0.0.1", 0), Closing) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        connection = MasterConnection((f"http://127.0.0.1:{server.server_port}",), "token")
        try:
            assert [connection.ask("GET", "/", within_s=5.0) for _ in range(3)] == [b"here"] * 3
        finally:
            connection.close()
            server.shutdown()
            serving.join()
