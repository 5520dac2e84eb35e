"""Members meet: ``rendezvous`` and rounds of ``all_gather``, over the pure barriers of ``core``.

Who waits and who has come is in memory only: with the master it is lost, members repeat their call and the meeting
fills again. But *that a meeting opened* is stored before anybody is told. Some members may have gone on and never come
again (a rendezvous is followed by exec); those that had no answer yet, and a member that is restarted hours later under
another master, find the stored meeting and are answered from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from clutch.backends.blobs.base import FullBlobs
from clutch.core.barriers import Answer, Barrier, Entry, Kind, Seat, convene, expire, join
from clutch.master.push.bells import Bells
from clutch.master.push.standing import Standing
from clutch.wire.errors import BadRequest, Conflict, Corrupt, NotFound
from clutch.wire.ids import TaskId
from clutch.wire.push import ROUNDS_KEPT

FOLDER = "push/meetings"
RENDEZVOUS = "rendezvous"
ROUNDS_OPEN_MAX = 16

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Barrier)

Look = Callable[[], Standing]
"""Where the caller stands now; ``Stale`` when it may not speak any more."""


class Coming(msgspec.Struct, frozen=True):
    """How a member comes to a meeting: with what, how long this call waits, and how long the meeting may take."""

    data: bytes
    timeout_s: float
    within_s: float


class Meeting:
    """One meeting in memory: the barrier, and those who wait for an answer."""

    def __init__(self, barrier: Barrier) -> None:
        self.barrier = barrier
        self.version = barrier.version
        self.lock = asyncio.Lock()
        self.answers: dict[str, list[asyncio.Future[Answer]]] = {}

    def tell(self, answers: tuple[Answer, ...]) -> None:
        for answer in answers:
            for waiting in self.answers.pop(answer.waiter, []):
                if not waiting.done():
                    waiting.set_result(answer)


class Meetings:
    """All meetings of live allocations."""

    def __init__(
        self, blobs: FullBlobs, now: Callable[[], float], bells: Bells, discard: Callable[[str], None]
    ) -> None:
        self._blobs = blobs
        self._discard = discard
        self._now = now
        self._bells = bells
        self._live: dict[tuple[TaskId, int], dict[str, Meeting]] = {}
        self._entering = asyncio.Lock()

    async def come(self, look: Look, name: str, coming: Coming) -> tuple[Answer | None, Barrier]:
        """The answer once all are there, or None when this call's time is over; and the meeting as it is then.

        ``TimedOut`` when the meeting's own deadline passed, ``Stale`` when the caller is not current any more.
        """
        standing = look()
        meeting = await self._enter(standing, name, coming.within_s)
        waiter = f"{standing.seat[0]}.{standing.seat[1]}@{standing.fence}"
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        meeting.answers.setdefault(waiter, []).append(answer)
        try:
            await self._join(meeting, standing, coming, waiter)
            await self._wait(meeting, look, answer, coming.timeout_s)
        finally:
            waiting = meeting.answers.get(waiter, [])
            if answer in waiting:
                waiting.remove(answer)
            if not waiting:
                meeting.answers.pop(waiter, None)
        if not answer.done():
            return None, meeting.barrier
        told = answer.result()
        error = told.error()
        if error is not None:
            raise error
        return told, meeting.barrier

    async def _enter(self, standing: Standing, name: str, within_s: float) -> Meeting:
        """The meeting of this name: the one in memory, the one that a master before us stored, or a new one."""
        key = (standing.task.task, standing.allocation.epoch)
        found = self._live.get(key, {}).get(name)
        if found is not None:
            return found
        async with self._entering:
            meetings = self._live.setdefault(key, {})
            if name in meetings:
                return meetings[name]
            barrier = await self._load(key, name)
            if barrier is None:
                still_open = [other for other, meeting in meetings.items() if not meeting.barrier.is_open]
                if len(still_open) >= ROUNDS_OPEN_MAX:
                    raise Conflict(
                        f"{len(still_open)} rounds are under way",
                        object=name,
                        next_step="Finish one round before the next; all members count the same.",
                    )
                kind = Kind.RENDEZVOUS if name == RENDEZVOUS else Kind.ALL_GATHER
                barrier = convene(name, kind, standing.seats, self._now(), within_s)
            meetings[name] = Meeting(barrier)
            return meetings[name]

    async def _join(self, meeting: Meeting, standing: Standing, coming: Coming, waiter: str) -> None:
        """Take a seat. If that opens the meeting or changes an open one, it is stored before anybody hears of it."""
        async with meeting.lock:
            before = seated(meeting.barrier, standing.seats)
            barrier, answers = join(before, standing.seat, standing.fence, coming.data, waiter)
            if barrier.is_open and not before.is_open:
                barrier = msgspec.structs.replace(barrier, version=max(barrier.version, meeting.version + 1))
            if barrier.is_open and barrier != meeting.barrier:
                key = (standing.task.task, standing.allocation.epoch)
                await self._store(key, barrier)
                self._forget_rounds(key, barrier)
            meeting.barrier = barrier
            meeting.version = max(meeting.version, barrier.version)
            meeting.tell(answers)
        if answers:
            self._bells.ring(standing.task.task)

    async def _wait(self, meeting: Meeting, look: Look, answer: asyncio.Future[Answer], timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while not answer.done():
            standing = look()
            now = self._now()
            _, late = expire(meeting.barrier, now, 0.0)
            if late:
                self._give_up(standing, meeting, late)
            left = until - loop.time()
            if answer.done() or left <= 0:
                return
            deadline = left if meeting.barrier.is_open else meeting.barrier.deadline - now
            await self._bells.wait(standing.task.task, max(0.001, min(left, deadline)))

    def _give_up(self, standing: Standing, meeting: Meeting, late: tuple[Answer, ...]) -> None:
        """Those who wait are told who is missing. Who still wants to meet comes again, to a new meeting."""
        meetings = self._live.get((standing.task.task, standing.allocation.epoch), {})
        if meetings.get(meeting.barrier.name) is meeting:
            del meetings[meeting.barrier.name]
        meeting.tell(late)
        self._bells.ring(standing.task.task)

    # -- what outlives a master ----------------------------------------------------------------------------------

    async def _load(self, key: tuple[TaskId, int], name: str) -> Barrier | None:
        where = _key(key, name)
        try:
            return _decoder.decode(await self._blobs.get(where))
        except NotFound:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"the stored meeting does not decode: {error}", object=f"blob {where}") from error

    async def _store(self, key: tuple[TaskId, int], barrier: Barrier) -> None:
        await self._blobs.put(_key(key, barrier.name), _encoder.encode(barrier))

    def _forget_rounds(self, key: tuple[TaskId, int], barrier: Barrier) -> None:
        """Complete rounds that no member can still be waiting for."""
        if barrier.kind is not Kind.ALL_GATHER:
            return
        oldest = int(barrier.name.rpartition("-")[2]) - ROUNDS_KEPT
        for name in [n for n in self._live.get(key, {}) if n != RENDEZVOUS and int(n.rpartition("-")[2]) <= oldest]:
            del self._live[key][name]
            self._discard(_key(key, name))

    def drop(self, task: TaskId, epoch: int) -> str:
        """An allocation has ended: its meetings go. Answers with the folder of what is stored of them."""
        self._live.pop((task, epoch), None)
        return f"{FOLDER}/{task}/{epoch}"


def round_name(number: int) -> str:
    if not 1 <= number < 2**53:
        raise BadRequest(f"there is no round {number}", object="all_gather", path="round", next_step="Count from 1.")
    return f"round-{number}"


def seated(barrier: Barrier, seats: tuple[Seat, ...]) -> Barrier:
    """The same meeting for the members there are now: a role may have been resized since it began.

    Who stays keeps its entry. With a newcomer a rendezvous is open again only when that one has come; a round of
    ``all_gather`` that is complete stays as it was.
    """
    if barrier.seats == seats or (barrier.is_open and barrier.kind is Kind.ALL_GATHER):
        return barrier
    entries: dict[Seat, Entry | None] = dict(zip(barrier.seats, barrier.entries, strict=True))
    kept = tuple(entries.get(seat) for seat in seats)
    version = barrier.version + 1 if barrier.is_open and all(entry is not None for entry in kept) else 0
    return msgspec.structs.replace(barrier, seats=seats, entries=kept, version=version)


def _key(key: tuple[TaskId, int], name: str) -> str:
    task, epoch = key
    return f"{FOLDER}/{task}/{epoch}/{name}"
