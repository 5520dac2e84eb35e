"""An agent's shelf of blobs, for the master: what is asked over a tunnel is answered from a folder of this machine.

Only a master can open a tunnel, so who asks need not be asked for. The folder is made when it is asked for first.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

from clutch.backends.blobs.directory import DirectoryBlobs
from clutch.backends.blobs.shelf import BlobShelf, Writing
from clutch.wire.errors import BadRequest, ClutchError, NotFound, Unavailable
from clutch.wire.shelf import (
    PAGE_ENTRIES,
    Answer,
    Entry,
    Messages,
    Question,
    ShelfBegin,
    ShelfCommit,
    ShelfDone,
    ShelfDrop,
    ShelfFailed,
    ShelfGet,
    ShelfKept,
    ShelfList,
    ShelfPage,
    ShelfPiece,
    ShelfSweep,
    ShelfVerify,
    packed,
)


class Stream(Protocol):
    """Bytes both ways; a ``TunnelEnd`` is one."""

    async def read(self) -> bytes: ...
    async def write(self, data: bytes) -> None: ...


class ShelfDoor:
    """The shelf in this folder; ``serve`` answers on one tunnel until that ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shelf: BlobShelf | None = None
        self._opening = asyncio.Lock()

    async def serve(self, stream: Stream) -> None:
        async with self._opening:
            if self._shelf is None:
                await asyncio.to_thread(self._folder.mkdir, 0o700, parents=True, exist_ok=True)  # nobody else's eyes
                self._shelf = BlobShelf(await DirectoryBlobs.open(self._folder))
        await ShelfServer(self._shelf, stream).run()


class ShelfServer:
    """One tunnel to a shelf."""

    def __init__(self, shelf: BlobShelf, stream: Stream) -> None:
        self._shelf = shelf
        self._stream = stream
        self._messages = Messages(Question)

    async def run(self) -> None:
        while (question := await self._next()) is not None:
            try:
                await self._answer(question)
            except _Broken as broken:
                raise broken.error from None
            except ClutchError as error:
                await self._say(ShelfFailed(error.view()))

    async def _next(self) -> object | None:
        """The next question; None at the tunnel's end."""
        while (message := self._messages.next()) is None:
            data = await self._stream.read()
            if not data:
                return None
            self._messages.feed(data)
        return message

    async def _say(self, answer: Answer) -> None:
        try:
            await self._stream.write(packed(answer))
        except ClutchError as error:
            raise _Broken(error) from error

    async def _answer(self, question: object) -> None:
        match question:
            case ShelfList():
                entries = await self._shelf.entries()
                for first in range(0, len(entries), PAGE_ENTRIES):
                    await self._say(ShelfPage(tuple(entries[first : first + PAGE_ENTRIES])))
                await self._say(ShelfDone(len(entries)))
            case ShelfBegin(key):
                await self._take(key)
            case ShelfGet(key, stamp, start, stop):
                entry = await self._entry(key, stamp)
                async with aclosing(self._shelf.read(entry, start, stop)) as pieces:
                    async for piece in pieces:
                        await self._say(ShelfPiece(piece))
                await self._say(ShelfDone())
            case ShelfVerify(key, stamp):
                await self._shelf.verify(await self._entry(key, stamp))
                await self._say(ShelfDone())
            case ShelfDrop(key, stamp):
                await self._shelf.drop(key, stamp)
                await self._say(ShelfDone())
            case ShelfSweep(older_than_s):
                await self._say(ShelfDone(await self._shelf.sweep(older_than_s)))
            case _:
                raise BadRequest("this was not asked for now", object="shelf")

    async def _entry(self, key: str, stamp: int) -> Entry:
        found = await self._shelf.find(key)
        if found is None or found.stamp != stamp:
            raise NotFound("this version is not here", object=f"blob {key}", next_step="Ask another shelf.")
        return found

    async def _take(self, key: str) -> None:
        """A version, piece by piece. What fails is said when all of it has been sent, and nothing is left of it."""
        failed: ClutchError | None = None
        writing: Writing | None = None
        try:
            try:
                writing = await self._shelf.begin(key)
            except ClutchError as error:
                failed = error
            while isinstance(message := await self._next(), ShelfPiece):
                if writing is not None and failed is None:
                    try:
                        await writing.write(message.data)
                    except ClutchError as error:
                        failed = error
            if message is None:
                raise _Broken(Unavailable("it ended in the middle of a blob", object=f"blob {key}"))
            if failed is not None or writing is None:
                raise failed or BadRequest("nothing was begun", object=f"blob {key}")
            if not isinstance(message, ShelfCommit):
                raise BadRequest("it was not committed", object=f"blob {key}")
            entry = await writing.commit(message.mark)
            writing = None
            await self._say(ShelfKept(entry))
        finally:
            if writing is not None:
                await writing.abort()


class _Broken(Exception):
    """The tunnel is over: nobody hears an answer."""

    def __init__(self, error: ClutchError) -> None:
        super().__init__(str(error))
        self.error = error
