"""A run that nobody schedules and that reports all the same: begun with a user's token, then it speaks as a member.

It says that it lives (``/run/heartbeat``), what it prints (``/run/output``) and how it ended (``/run/ended``). The same
key begins the same run again, in a new epoch; the old one hears that it was replaced.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from clutch.runtime.http import MasterConnection
from clutch.runtime.info import Info
from clutch.wire.errors import ClutchError, NotAuthenticated, Stale
from clutch.wire.experiment_api import BeginDetached, DetachedBegun, DetachedOutput, OutputTaken
from clutch.wire.push import RUN

if TYPE_CHECKING:
    from clutch.runtime.trial_client import TrialClient

DETACHED = "/api/v1/detached"
BEGIN_WITHIN_S = 60.0
SHIP_S = 1.0
PIECE_BYTES = 256 << 10
WAITING_MAX_BYTES = 16 << 20
"""Printed bytes that may wait for a master; what comes then is not kept."""
ENDED_WITHIN_S = 30.0
JOIN_S = 10.0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, and who asks."""

    masters: tuple[str, ...]
    token: str
    ca_file: str = ""


def begin(place: Place, wanted: BeginDetached, info: Info) -> tuple[Info, DetachedBegun]:
    """The run as the cluster knows it now, and the surroundings in which it speaks as a member."""
    connection = MasterConnection(place.masters, place.token, ca_file=place.ca_file)
    try:
        answer = connection.ask("POST", DETACHED, msgspec.json.encode(wanted), within_s=BEGIN_WITHIN_S)
    finally:
        connection.close()
    begun = msgspec.json.decode(answer, type=DetachedBegun)
    return msgspec.structs.replace(
        info,
        task=begun.task,
        role="main",
        fence=f"e{begun.epoch}",
        masters=place.masters,
        ca_file=place.ca_file,
        token=begun.token,
        checkpoint=begun.checkpoint,
    ), begun


class Attendance:
    """Says that the run lives and what it prints, until it says how it ended. ``on_over``: another start took over."""

    def __init__(self, open_client: Callable[[], TrialClient], heartbeat_s: float, on_over: Callable[[], None]) -> None:
        self._open_client = open_client
        self._heartbeat_s = heartbeat_s
        self._on_over = on_over
        self._streams = {"stdout": _Stream("stdout"), "stderr": _Stream("stderr")}
        self._tees: list[_Tee] = []
        self._stop = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="clutch-attendance", daemon=True)

    def start(self) -> None:
        for name, stream in self._streams.items():
            tee = _Tee(getattr(sys, name), stream)
            setattr(sys, name, tee)
            self._tees.append(tee)
        self._thread.start()

    def close(self, *, failed: bool, detail: str) -> None:
        """Everything printed goes on its way, then the end is said; each within its bound."""
        for tee in self._tees:
            if getattr(sys, tee.stream.name) is tee:
                setattr(sys, tee.stream.name, tee.below)
        self._stop.set()
        self._thread.join(JOIN_S)
        if self._over or self._thread.is_alive():
            return
        client = self._open_client()
        until = time.monotonic() + ENDED_WITHIN_S
        try:
            while True:
                try:
                    self._ship(client)
                    client.ended(failed=failed, detail=detail)
                    return
                except (Stale, NotAuthenticated):
                    return
                except ClutchError:
                    if time.monotonic() > until:
                        return  # the master notices by itself that nothing is heard any more
                    time.sleep(0.5)
        finally:
            client.close()

    def _run(self) -> None:
        client = self._open_client()
        heard_at = time.monotonic()
        try:
            while not self._stop.wait(SHIP_S):
                try:
                    self._ship(client)
                    if time.monotonic() - heard_at >= self._heartbeat_s:
                        client.heartbeat()
                        heard_at = time.monotonic()
                except (Stale, NotAuthenticated):
                    self._over = True
                    self._on_over()
                    return
                except ClutchError:
                    continue  # it is said again in a moment
        finally:
            client.close()

    def _ship(self, client: TrialClient) -> None:
        for stream in self._streams.values():
            while piece := stream.piece():
                offset, data = piece
                said = DetachedOutput(stream=stream.name, offset=offset, data=data, at=time.time())
                answer = client.connection.ask("POST", f"{RUN}/output", msgspec.json.encode(said), within_s=SHIP_S)
                stream.reached(msgspec.json.decode(answer, type=OutputTaken).offset)


class _Stream:
    """Printed bytes that are not durable yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._offset = 0

    def add(self, data: bytes) -> None:
        with self._lock:
            if len(self._waiting) < WAITING_MAX_BYTES:
                self._waiting += data

    def piece(self) -> tuple[int, bytes] | None:
        with self._lock:
            return (self._offset, bytes(self._waiting[:PIECE_BYTES])) if self._waiting else None

    def reached(self, offset: int) -> None:
        with self._lock:
            done = max(0, min(offset - self._offset, len(self._waiting)))
            del self._waiting[:done]
            self._offset += done


class _Tee(io.TextIOBase):
    """A text stream that is written to the one below and remembered."""

    def __init__(self, below: Any, stream: _Stream) -> None:
        self.below = below
        self.stream = stream

    def write(self, text: str) -> int:
        written = self.below.write(text)
        self.stream.add(text.encode("utf-8", "replace"))
        return int(written)

    def flush(self) -> None:
        with contextlib.suppress(ValueError):  # it may be closed by now
            self.below.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return bool(self.below.isatty())

    def fileno(self) -> int:
        return int(self.below.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]  # as the stream below
        return str(self.below.encoding)

    @property
    def buffer(self) -> Any:
        return self.below.buffer
