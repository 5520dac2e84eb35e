"""A connection to one other party that is made anew whenever it breaks, by callers and pushers alike.

A broken connection gets a fresh socket, so nothing queued for a party that died is ever sent to its next start, and a
handshake that ZeroMQ gave up for good is tried again: the other side may know our key by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zmq

from clutch.backends.transports.base import Address, Options
from clutch.backends.transports.inbox import Doorbell
from clutch.backends.transports.keys import KeyPair
from clutch.backends.transports.zmq_socket import FAILED, LoopSocket, prepare, prepare_to_connect
from clutch.wire.errors import ClutchError, Conflict, NotAllowed, Unavailable

AGAIN_AFTER_S = 0.25


class Link:
    """One connection. ``up`` when the other side has proved its key and is ready to be spoken to."""

    def __init__(
        self,
        make: Callable[[], zmq.Socket[bytes]],
        address: Address,
        options: Options,
        keys: KeyPair | None,
        on_frames: Callable[[list[Any]], None],
    ) -> None:
        self._make = make
        self.address = address
        self._options = options
        self._keys = keys
        self._on_frames = on_frames
        self._changed = Doorbell()
        self._retry: asyncio.TimerHandle | None = None
        self._refusals = 0
        self._refusal: ClutchError | None = None
        self._final = False
        self.up = False
        self.on_connected: Callable[[], None] = self.ready
        self.on_lost: Callable[[ClutchError], None] = lambda error: None
        self.closed = False
        self.wire = self._connect()

    def _connect(self) -> LoopSocket:
        socket = self._make()
        prepare(socket, self._options, self._keys)
        prepare_to_connect(socket, self.address.public_key if self._keys else "")
        speaks_only = socket.type == zmq.PUSH
        wire = LoopSocket(socket, self._on_frames, self._on_event, wants=lambda: not speaks_only)
        socket.connect(self.address.endpoint)
        return wire

    async def wait_up(self, until: float) -> None:
        """Until it can be spoken to; raises why not."""
        refusals = self._refusals
        while not self.up:
            if self.closed:
                raise Unavailable("this endpoint is closed", object=self.address.name)
            if self._refusal is not None and (self._final or self._refusals - refusals > _borne(self._refusal)):
                raise self._refusal
            if not await self._changed.wait(until):
                raise self._refusal or Unavailable(
                    "it cannot be reached", object=self.address.name, next_step="Is it running, and is its key right?"
                )

    def ready(self) -> None:
        self.up = True
        self._refusal = None
        self._changed.ring()

    def refuse(self, error: ClutchError, *, final: bool = False) -> None:
        """The other side does not hear us: tell whoever waits, and try again after a while unless it is final."""
        self._refusals += 1
        self._refusal = error
        self._final = final
        self.drop(error, again_after_s=AGAIN_AFTER_S)

    def drop(self, error: ClutchError, again_after_s: float = 0.0) -> None:
        """This connection is over."""
        self.up = False
        self.wire.close()
        self.on_lost(error)
        self._changed.ring()
        if self._retry is None and not self.closed and not self._final:
            self._retry = asyncio.get_running_loop().call_later(again_after_s, self._again)

    def close(self, linger_s: float) -> None:
        if self.closed:
            return
        self.closed = True
        self.up = False
        if self._retry is not None:
            self._retry.cancel()
        self.wire.close(linger_s)
        self.on_lost(Unavailable("this endpoint is closed", object=self.address.name))
        self._changed.ring()

    def _again(self) -> None:
        self._retry = None
        self.wire = self._connect()

    def _on_event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.on_connected()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            error = NotAllowed("it refuses this key", object=self.address.name, next_step="Have the key allowed.")
            self.refuse(error)
        elif event & FAILED:
            self.drop(gone(self.address.name), again_after_s=AGAIN_AFTER_S)
        elif event == zmq.EVENT_DISCONNECTED:
            self.drop(gone(self.address.name))


def _borne(refusal: ClutchError) -> int:
    """How many such refusals prove nothing yet. Two connections are heard in any order: whoever closed one and made
    another at once may be refused for the first, whose end has not been heard."""
    return 1 if isinstance(refusal, Conflict) else 0


def gone(name: str) -> Unavailable:
    return Unavailable("its connection broke", object=name, next_step="Wait for its next start, or stop.")
