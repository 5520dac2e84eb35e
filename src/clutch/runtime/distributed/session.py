"""What a group of several processes holds open: its thread, its lines, its sockets. Made whole, or not at all."""

from __future__ import annotations

import os
import socket as sockets
import time
from contextlib import suppress

import msgspec
import zmq

from clutch.runtime.distributed.calls import Calls
from clutch.runtime.distributed.control import Control
from clutch.runtime.distributed.doors import Door, enter_door
from clutch.runtime.distributed.exchange import Exchange
from clutch.runtime.distributed.far import THREADS, Far
from clutch.runtime.distributed.meeting import Meeting, check_meeting
from clutch.runtime.distributed.near import Line, LineEnded
from clutch.runtime.distributed.shape import Seat, Shape, arrange
from clutch.wire.errors import BadRequest, PeerLost

LINES_WITHIN_S = 60.0
"""How long ranks that have all met may take to reach each other, though the last one came late."""
FLUSH_S = 10.0
"""How long what was said before a group is closed may take to go out."""


class Session:
    """Comes back when all ranks have met and every line stands."""

    def __init__(self, seat: Seat, meeting: Meeting, calls: Calls) -> None:
        check_meeting(meeting)
        self._until = time.monotonic() + meeting.within_s
        self._calls = calls
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=THREADS)
        self._lines: dict[int, Line] = {}
        self._door: Door | None = None
        self._far: Far | None = None
        self.control = Control(self._context, meeting, calls, seat.size)
        try:
            self.seats = self._meet(seat, meeting)
        except BaseException:
            self.close()
            raise

    def _meet(self, seat: Seat, meeting: Meeting) -> tuple[Seat, ...]:
        own_address = meeting.address
        if seat.rank == 0:
            port = self.control.listen()
            if meeting.publish is not None:
                meeting.publish(port)
            elif not meeting.ports:
                raise BadRequest("nobody would learn the chief's port", object="meeting", next_step="Give ports.")
        else:
            if not meeting.ports:
                raise BadRequest("the chief's port is not known", object="meeting", next_step="Give its ports.")
            own_address = _address_towards(meeting.address, meeting.ports[0])
        host = own_address if own_address in ("127.0.0.1", "::1") else "*"
        self._far = Far(self._context, seat.rank, meeting.keys, self._calls, host)
        self._door = Door()
        known = msgspec.structs.replace(
            seat,
            place=seat.place or machine_place(),
            address=own_address,
            port=self._far.port,
            door=self._door.path,
            process=os.getpid(),
        )
        self.control.start(known, self._until)
        welcome = self.control.wait_welcome(self._until)
        self._until = max(self._until, time.monotonic() + LINES_WITHIN_S)
        self._far.know(welcome.seats, welcome.keys)
        self._draw_lines(known, arrange(welcome.seats), welcome.secret)
        return welcome.seats

    def _draw_lines(self, seat: Seat, shape: Shape, secret: bytes) -> None:
        assert self._door is not None
        world = shape.world(seat.rank)
        self.control.scopes = {scope.key: scope for scope in (world, shape.local(seat.rank))}
        cell = world.cell
        look = self.control.look
        if seat.rank == cell[0]:
            self._lines = self._door.admit(cell[1:], secret, self._until, look)
        else:
            head = shape.seats[cell[0]]
            self._lines = {head.rank: enter_door(head.door, seat.rank, head.rank, secret)}
        self._door.close()
        far = self._far if seat.rank == cell[0] else None
        self.exchange = Exchange(seat.rank, self._calls, self._lines, far, look)
        call = self._calls.enter(world.key, "meeting", time.monotonic())
        try:
            self.exchange.meet(world, call, self._until)
        except LineEnded as error:
            raise PeerLost("it died", object=f"rank {error.rank}", ranks=(error.rank,)) from None
        finally:
            self._calls.leave()

    def close(self) -> None:
        linger_s = 0.0 if self.control.failed else FLUSH_S
        self.control.close()
        for line in self._lines.values():
            line.close()
        if self._door is not None:
            self._door.close()
        if self._far is not None:
            self._far.close(linger_s)
        self._context.term()


def machine_place() -> str:
    """Processes with the same answer can open each other's unix sockets."""
    parts = [str(os.geteuid())]
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/mnt"))  # noqa: PTH115
    return " ".join(parts) if len(parts) == 3 else ""


def _address_towards(address: str, port: int) -> str:
    """How this machine is seen on the way to the chief. Asking the kernel sends nothing."""
    with suppress(OSError):
        found = sockets.getaddrinfo(address, port, type=sockets.SOCK_DGRAM)[0]
        with sockets.socket(found[0], sockets.SOCK_DGRAM) as probe:
            probe.connect(found[4])
            return str(probe.getsockname()[0])
    return address
