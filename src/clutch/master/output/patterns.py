"""Looking for users' regular expressions in processes of their own, each request with a deadline."""

from __future__ import annotations

import asyncio
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

from clutch.master.output import matcher
from clutch.wire.errors import BadRequest, TimedOut, Unavailable

_SPARE_S = 5.0
"""A process gets this much to start, and to read what it is sent, besides the time for matching."""
_ANSWER_MAX = 64 * 2**20


class Patterns:
    """At most ``workers`` processes, kept between requests; one that is too slow is ended and replaced."""

    def __init__(self, workers: int = 2, allowed_s: int = 2) -> None:
        self.allowed_s = allowed_s
        self._room = asyncio.Semaphore(workers)
        self._idle: list[Process] = []

    async def matching(self, pattern: str, ignore_case: bool, lines: bytes) -> list[int]:
        """The numbers of the lines (separated by newlines) in which the pattern is found. ``TimedOut`` when that takes
        too long."""
        asked = matcher.request(pattern, ignore_case, self.allowed_s, lines)
        async with self._room:
            worker = self._idle.pop() if self._idle else await self._start()
            answer = None
            try:
                async with asyncio.timeout(self.allowed_s + _SPARE_S):
                    answer = await _exchange(worker, asked)
            except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
                raise TimedOut(
                    f"the regular expression takes longer than {self.allowed_s} s for a piece of the output",
                    object=pattern,
                    next_step="Make it simpler: nested repeats such as (a+)+ are what takes so long.",
                ) from error
            finally:
                if answer is None:
                    await _end(worker)
                else:
                    self._idle.append(worker)
        found = matcher.answered(answer)
        if isinstance(found, str):
            raise BadRequest(f"this is no regular expression: {found}", object=pattern, path="regex")
        return found

    async def _start(self) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", matcher.__file__, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
            )
        except OSError as error:
            step = "Check how many processes may run here, or search for a text."
            raise Unavailable(f"no process to match in: {error}", object="output", next_step=step) from error

    async def close(self) -> None:
        while self._idle:
            await _end(self._idle.pop())


async def _exchange(worker: Process, asked: bytes) -> bytes:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(asked)
    await worker.stdin.drain()
    (size,) = struct.unpack("<I", await worker.stdout.readexactly(4))
    return await worker.stdout.readexactly(min(size, _ANSWER_MAX))


async def _end(worker: Process) -> None:
    if worker.returncode is None:
        worker.kill()
    if worker.stdin is not None:
        worker.stdin.close()
    await worker.wait()
