"""The push API for code inside a task: one method for each thing a member may say. Blocking, standard library only.

Everything may be repeated, and is, over all addresses, until its time is over. ``Stale`` and ``NotAuthenticated`` mean
that this incarnation is over: stop.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from clutch.runtime.http import MasterConnection
from clutch.runtime.info import Info
from clutch.wire.errors import TimedOut, Unavailable
from clutch.wire.metrics import MetricBatch
from clutch.wire.push import (
    POLL_MAX_S,
    RUN,
    Acknowledged,
    Announce,
    BeginCheckpoint,
    CheckpointBegun,
    CheckpointView,
    CommitManifest,
    Gather,
    Gathered,
    MetricsTaken,
    Preemption,
    Progress,
    PushMetrics,
    Roster,
    RunInfo,
)

T = TypeVar("T")
TRY_S = 60.0


class PushClient:
    """One member's voice. Not for several threads at once: a thread that polls has a client of its own."""

    def __init__(self, connection: MasterConnection, *, try_s: float = TRY_S) -> None:
        self.connection = connection
        self._try_s = try_s

    @classmethod
    def open(cls, info: Info, *, try_s: float = TRY_S) -> PushClient:
        return cls(MasterConnection(info.masters, info.token, ca_file=info.ca_file), try_s=try_s)

    def close(self) -> None:
        self.connection.close()

    def abort(self) -> None:
        """End a call under way, from any thread; every later one is refused."""
        self.connection.abort()

    def info(self) -> RunInfo:
        return self._ask("GET", "/info", RunInfo)

    def rendezvous(self, announce: Announce) -> Roster:
        """One poll: the roster if all are there, else who is missing."""
        return self._ask("POST", "/rendezvous", Roster, announce, waits_s=announce.timeout_s)

    def all_gather(self, round: int, data: bytes, *, within_s: float = 600.0) -> tuple[bytes, ...]:
        """What every member brought to this round. ``TimedOut`` when some do not come.

        While no master answers the call goes on trying; a new master is told everything again.
        """
        until = time.monotonic() + within_s
        while True:
            left = until - time.monotonic()
            wanted = Gather(round=round, data=data, timeout_s=max(0.0, min(left, POLL_MAX_S)), within_s=within_s)
            try:
                found = self._ask("POST", "/all_gather", Gathered, wanted, waits_s=wanted.timeout_s)
            except Unavailable:
                if time.monotonic() >= until:
                    raise
                continue
            if found.ready:
                return found.data
            if time.monotonic() >= until:
                raise TimedOut(
                    f"{len(found.missing)} members did not come: {', '.join(found.missing[:10])}",
                    object=f"all_gather round {round}",
                    next_step="See why they did not get as far.",
                )

    def preemption(self, timeout_s: float = POLL_MAX_S) -> Preemption:
        path = f"/preemption?timeout_s={timeout_s}"
        return self._ask("GET", path, Preemption, waits_s=timeout_s)

    def acknowledge(self) -> Preemption:
        return self._ask("POST", "/preemption/ack", Preemption)

    def finished(self) -> None:
        self._ask("POST", "/finished", Acknowledged)

    def metrics(self, batches: tuple[MetricBatch, ...]) -> int:
        """Up to which batch the store has everything."""
        return self._ask("POST", "/metrics", MetricsTaken, PushMetrics(batches=batches)).sequence

    def metric_lines(self, batches: list[bytes]) -> int:
        """The same for batches that are JSON already."""
        content = b'{"batches":[' + b",".join(batches) + b"]}"
        answer = self.connection.ask("POST", f"{RUN}/metrics", content, within_s=self._try_s)
        return msgspec.json.decode(answer, type=MetricsTaken).sequence

    def progress(self, fraction: float, message: str = "") -> None:
        self._ask("POST", "/progress", Acknowledged, Progress(fraction=fraction, message=message))

    def begin_checkpoint(self, step: int, label: str = "") -> CheckpointBegun:
        return self._ask("POST", "/checkpoints", CheckpointBegun, BeginCheckpoint(step=step, label=label))

    def commit_checkpoint(self, checkpoint: str, manifest: CommitManifest) -> CheckpointView:
        path = f"/checkpoints/{quote(checkpoint, safe='')}/commit"
        return self._ask("POST", path, CheckpointView, manifest)

    def checkpoint(self, checkpoint: str) -> CheckpointView:
        """A committed checkpoint of this task, with its files."""
        return self._ask("GET", f"/checkpoints/{quote(checkpoint, safe='')}", CheckpointView)

    def checkpoints(self) -> tuple[CheckpointView, ...]:
        return self._ask("GET", "/checkpoints", tuple[CheckpointView, ...])

    def _ask(self, method: str, path: str, kind: type[T], body: Any = None, *, waits_s: float = 0.0) -> T:
        content = msgspec.json.encode(body) if body is not None else None
        answer = self.connection.ask(method, f"{RUN}{path}", content, within_s=self._try_s, waits_s=waits_s)
        return msgspec.json.decode(answer, type=kind)
