"""A member in a real process: asyncio, a real disk, real sockets, a real clock.

It owns everything that waits. Decisions are the member's; this file turns ticks, readable sockets and finished syncs
into calls, and nothing more. Small writes are synced in the loop itself (a hop to a thread costs more than the disk);
large ones, whose sync takes long enough to delay a heartbeat, in a thread.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
import zmq

from clutch.consensus import configuration as configurations
from clutch.consensus import snapshots
from clutch.consensus.files import DiskFiles, disk_error
from clutch.consensus.identity import Acquaintances
from clutch.consensus.member import Member
from clutch.consensus.opening import Founding, Nature, open_log
from clutch.consensus.proposals import Done
from clutch.consensus.rules import Rules
from clutch.consensus.server import Server
from clutch.consensus.state import Limits
from clutch.consensus.transport import KeyPair, Transport
from clutch.wire.errors import BadRequest, BrokenInvariant, ClutchError, Conflict, DiskFull
from clutch.wire.raft import Address, Configuration, Entry, Header, PeerMessage, RaftId, SnapshotMeta, Status

T = TypeVar("T")
INLINE_SYNC_BYTES = 128 << 10
RESERVE_BYTES = 64 << 20
"""Appends of clients are refused when the disk has less than this left, so that the group itself can go on."""


class DriverSettings(msgspec.Struct, frozen=True):
    """All that a member's process must be told."""

    group: str
    me: RaftId
    folder: str
    socket: str
    control: str
    bulk: str
    keys: KeyPair
    peers: tuple[Address, ...]
    """Members known from outside: all first voters for a founder, anyone to be reached for a learner."""
    founder: bool
    """Whether an empty folder begins the group (True) or waits to be added as a learner (False)."""
    restore_path: str = ""
    """A founder of a group that lost its majority begins from this file, the application's state at the index below."""
    restore_index: int = 0
    tick_s: float = 0.02
    limits: Limits = Limits()
    reserve_bytes: int = RESERVE_BYTES


class Driver:
    """One running member."""

    def __init__(self, settings: DriverSettings, founding: Founding) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.folder = Path(settings.folder)
        self.stopped = asyncio.Event()
        self.failure: ClutchError | None = None
        self._loop = asyncio.get_running_loop()
        self._files = DiskFiles(self.folder)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="clutch-raft-disk")
        self._waking = False
        self._saving = False
        self._full: DiskFull | None = None
        self._book: dict[RaftId, Address] = {}
        self._transport: Transport | None = None
        try:
            log = open_log(self._files, settings.group, settings.me, founding, settings.limits)
            self._acquaintances = Acquaintances(self._files, settings.group, settings.me.generation)
            self._header = Header(settings.group, settings.me, log.identity.birth)
            self._transport = Transport(
                self._header, settings.keys, self._acquaintances.admit, self._on_message, self.work
            )
            self.server = Server(self)
            seed = int.from_bytes(os.urandom(8), "big")
            self.member = Member(log, self, Nature(settings.limits, Random(seed), Rules()))
            self._transport.on_gone = self.member.raft.report_gone
        except BaseException:
            self._close()
            raise

    # ---------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Take part until ``stop`` or until the member halts; then raises what halted it."""
        settings = self.settings
        try:
            assert self._transport is not None
            try:
                self._transport.bind(settings.control, settings.bulk)
                await self.server.listen(Path(settings.socket))
            except (OSError, zmq.ZMQError) as error:
                places = f"{settings.control}, {settings.bulk}, {settings.socket}"
                raise Conflict(f"cannot listen: {error}", object=places, next_step="Choose other addresses.") from error
            self.wake()
            self._loop.set_exception_handler(self._on_bug)
            ticker = asyncio.create_task(self._tick_for_ever())
            stopping = asyncio.create_task(self.stopped.wait())
            try:
                await asyncio.wait({ticker, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if ticker.done():
                    ticker.result()
            finally:
                ticker.cancel()
                stopping.cancel()
        finally:
            self.server.close()
            self._close()
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self.stopped.set()

    def wake(self) -> None:
        """There is something to do; do it once, after everything that is ready now has been taken in."""
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self.work)

    def work(self) -> None:
        """Do what there is to do, now: what arrived in one piece has been taken in."""
        self._waking = False
        if self.stopped.is_set():
            return
        try:
            self.member.pump()
        except ClutchError as error:
            self._fail(error)
        if self.member.halted is not None:
            self._fail(self.member.halted)
        self.server.flush()

    async def _tick_for_ever(self) -> None:
        """Ticks at an even rate; after a stall the missed ones are skipped, or every member would stand at once."""
        tick_s = self.settings.tick_s
        due = time.monotonic()
        count = 0
        while True:
            due = max(due + tick_s, time.monotonic())
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self._transport is not None:
                self._transport.poll()
            try:
                self.member.tick()
            except ClutchError as error:
                self._fail(error)
            count += 1
            if count % 50 == 0:
                self._measure_disk()
            self.work()

    def _on_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback failed in a way nobody foresaw: better no member than one that half works."""
        found = context.get("exception")
        error = found if isinstance(found, ClutchError) else BrokenInvariant(f"{context['message']}: {found!r}")
        self._fail(error)

    def _fail(self, error: ClutchError) -> None:
        self.failure = self.failure or error
        self.member.halt(error)
        self.stopped.set()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        self._pool.shutdown(wait=True)
        self._files.close()
        Path(self.settings.socket).unlink(missing_ok=True)

    def _on_message(self, message: PeerMessage) -> None:
        if self.stopped.is_set():
            return
        try:
            self.member.receive(message)
        except ClutchError as error:
            if error.blame == "bug":
                self._fail(error)
            elif self._transport is not None:
                self._transport.refused.append(error)
                del self._transport.refused[:-64]

    # ------------------------------------------------------------------------------------ the member's ports

    def send(self, message: PeerMessage) -> bool:
        return self._transport is not None and self._transport.send(message)

    def sync(self, name: str, size_bytes: int, done: Callable[[], None]) -> None:
        if size_bytes < INLINE_SYNC_BYTES:
            self._files.sync(name)
            done()
            return
        self._in_thread(lambda: self._files.sync(name), lambda _: self._finish_sync(done))

    def _finish_sync(self, done: Callable[[], None]) -> None:
        done()
        self.work()

    def applied(self, entries: list[Entry], upto: int) -> None:
        """Followers read from the log itself, at the next flush."""

    def restored(self, snapshot: SnapshotMeta) -> None:
        """Followers behind it are told at the next flush."""

    def configured(self, configuration: Configuration) -> None:
        """Only members may connect. Until a configuration is known, those are whom the settings name."""
        known = configuration.addresses or self.settings.peers
        self._book = {a.id: a for a in known}
        self._meet()

    def introduced(self, addresses: tuple[Address, ...]) -> None:
        self._book |= {a.id: a for a in addresses}
        self._meet()

    def _meet(self) -> None:
        if self._transport is not None:
            self._transport.meet(self._book[i] for i in sorted(self._book))

    # ----------------------------------------------------------------------------------- what the server asks

    def ticks_of(self, seconds: float) -> int:
        """At least one tick, at most a day; what is not a number is none."""
        return max(1, round(min(max(0.0, seconds), 86_400.0) / self.settings.tick_s))

    def disk_full(self) -> DiskFull | None:
        return self._full

    def status(self, request_id: int) -> Status:
        found = self.member.status(request_id)
        transport = self._transport
        if transport is not None and transport.refused_by and found.leader is None:
            error = next(iter(transport.refused_by.values()))
            return msgspec.structs.replace(found, reason=f"{error.code}: {error}")
        if transport is not None and transport.refused:
            error = transport.refused[-1]
            return msgspec.structs.replace(found, reason=f"{found.reason}; refused {error.code}: {error}")
        return found

    def save_snapshot(self, index: int, path: Path, done: Done) -> None:
        """Copy the application's file into the folder, in a thread, and compact the log."""
        try:
            plan = self.member.plan_snapshot(index)
        except ClutchError as error:
            done(error)
            return

        if self._saving:
            done(Conflict("another snapshot is being saved", object=self.settings.group))
            return
        self._saving = True

        def over(outcome: int | ClutchError) -> None:
            self._saving = False
            done(outcome)

        def work() -> SnapshotMeta:
            try:
                snapshots.write(self._files, plan.head(), _pieces(path))
            except OSError as error:  # the application's file, not ours
                raise disk_error(error, str(path)) from error
            return plan.meta

        def saved(meta: SnapshotMeta) -> None:
            self.member.snapshot_saved(meta, over)
            self.wake()

        self._in_thread(work, saved, over)

    # ------------------------------------------------------------------------------------------------ inside

    def _in_thread(self, work: Callable[[], T], then: Callable[[T], None], failed: Done | None = None) -> None:
        """Run ``work`` on the disk's thread, then ``then`` in the loop. Without ``failed`` an error ends the member."""

        def over(future: asyncio.Future[T]) -> None:
            if self.stopped.is_set() or future.cancelled():
                return
            error = future.exception()
            try:
                if error is None:
                    then(future.result())
                elif failed is not None and isinstance(error, ClutchError):
                    failed(error)
                    self.wake()
                else:
                    raise error
            except ClutchError as broken:
                self._fail(broken)

        self._loop.run_in_executor(self._pool, work).add_done_callback(over)

    def _measure_disk(self) -> None:
        free = self._files.free_bytes()
        if free < self.settings.reserve_bytes:
            self._full = DiskFull(
                f"{free} bytes left, {self.settings.reserve_bytes} are kept free", object=str(self.folder)
            )
        else:
            self._full = None


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def founding_of(settings: DriverSettings, birth: str) -> Founding:
    """How this member's folder begins, if it is new."""
    if not settings.founder:
        return Founding(birth)
    first = configurations.first(settings.peers)
    if not settings.restore_path:
        return Founding(birth, first)
    path = Path(settings.restore_path)
    if not path.is_file() or settings.restore_index < 1:
        raise BadRequest("a snapshot to begin from needs a file and its index", object=settings.restore_path)
    return Founding(birth, first, settings.restore_index, 1, path.read_bytes())
