"""The thread that keeps a group together: it meets the others, hears who dies, and carries notes to and from the chief.

Heartbeats are ZeroMQ's and run in its own thread, so a rank that computes for minutes is alive and a rank that is
stopped, killed or cut off is not. This thread only listens; it sleeps while nothing happens.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from clutch.backends.transports.frames import raised
from clutch.runtime.distributed import notes
from clutch.runtime.distributed.calls import Call, Calls
from clutch.runtime.distributed.chief import Chief, Say
from clutch.runtime.distributed.far import ZAP_DOMAIN, bracketed
from clutch.runtime.distributed.meeting import Meeting
from clutch.runtime.distributed.notes import AnyNote, Failed, Granted, Hello, IAmAt, Left, Reached, Waits, Welcome
from clutch.runtime.distributed.shape import Scope, Seat
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotAllowed, PeerLost, TimedOut, Unavailable

TICK_MS = 200
WAITS_AFTER_S = 1.0
"""A rank that is in one call for so long says which, so that ranks in different calls are found."""
VERDICT_WITHIN_S = 2.0
CONNECT_AGAIN_S = 0.25
LINGER_MS = 1_000
GOODBYE_WITHIN_S = 1.0
_ZAP = "inproc://zeromq.zap.01"
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_WATCHED = _FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Control:
    """One rank's side; on rank 0 also the chief's. Made and closed by the group; ``look`` raises what went wrong."""

    def __init__(self, context: zmq.Context[Any], meeting: Meeting, calls: Calls, size: int) -> None:
        self._context = context
        self._meeting = meeting
        self._calls = calls
        self._size = size
        self._seat = Seat(0, size)
        self._failed: Failed | None = None
        self.left: dict[int, dict[str, int]] = {}
        self.granted: dict[int, Granted] = {}
        self.welcome: Welcome | None = None
        self.scopes: dict[str, Scope] = {}
        self.notices: list[str] = []
        self.changed = threading.Condition()
        self._outbox: deque[AnyNote] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._chief: Chief | None = None
        self._connections: dict[int, int] = {}
        self._routes: dict[int, bytes] = {}
        self._rank_of: dict[bytes, int] = {}
        self._up = False
        self._again_at = 0.0
        self._told: Call | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._zap: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._zap.set(zmq.LINGER, 0)
        self._zap.bind(_ZAP)
        # A daemon, so that a program that forgets to close its group still ends
        self._thread = threading.Thread(target=self._run, name="clutch-group", daemon=True)

    # ------------------------------------------------------------------------- for the thread that calls a group

    def listen(self) -> int:
        """The chief's port. ``Conflict`` if somebody else listens at every port it may use."""
        meeting = self._meeting
        host = meeting.address if meeting.address in ("127.0.0.1", "::1") else "*"
        for port in meeting.ports or (0,):
            socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
            self._prepare(socket)
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            socket.set(zmq.BACKLOG, 1024)
            try:
                if port:
                    socket.bind(f"tcp://{bracketed(host)}:{port}")
                    found = port
                else:
                    found = socket.bind_to_random_port(f"tcp://{bracketed(host)}")
            except zmq.ZMQError as error:
                socket.close(0)
                if error.errno != zmq.EADDRINUSE:
                    raise BadRequest(f"cannot listen: {error.strerror}", object=f"{host}:{port}") from error
                continue
            self._socket, self._monitor = socket, socket.get_monitor_socket(_WATCHED)
            return found
        tried = ", ".join(map(str, meeting.ports))
        raise Conflict(
            f"other programs listen at port {tried}",
            object="meeting of a group",
            next_step="Reserve another port for it, or give it several.",
        )

    def start(self, seat: Seat, until: float) -> None:
        self._seat = seat
        if seat.rank == 0:
            self._chief = Chief(self._size, until, self._meeting.within_s, os.urandom(16))
            self._act(self._chief.come(Hello(seat, self._meeting.keys.public)))
        else:
            self._connect()
        self._thread.start()

    def wait_welcome(self, until: float) -> Welcome:
        until += VERDICT_WITHIN_S  # the chief says by then who is missing
        with self.changed:
            while self.welcome is None and self._failed is None:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self.changed.wait(left)
        self.look()
        if self.welcome is None:
            meeting = self._meeting
            raise TimedOut(
                f"rank 0 did not come within {meeting.within_s:g} s, at {meeting.address} port "
                f"{', '.join(map(str, meeting.ports))}",
                object="meeting of a group",
                next_step="See whether it runs and can be reached, and whether the keys are right.",
            )
        return self.welcome

    def look(self) -> None:
        """Raise why the group is over, or why the call that we are in cannot end."""
        if self._failed is not None:
            error = raised(self._failed.error)
            if isinstance(error, PeerLost):
                error.ranks = self._failed.ranks
            raise error
        call = self._calls.current
        if self.left and call is not None:
            gone = [rank for rank in self.scopes[call.scope].ranks if self._made_less(rank, call)]
            if gone:
                raise PeerLost(
                    f"it closed its group before {call}",
                    object=f"rank {gone[0]}",
                    next_step="Close groups after the last call of all ranks.",
                    ranks=tuple(gone),
                )

    def tell(self, note: AnyNote) -> None:
        self._outbox.append(note)
        with suppress(OSError):
            os.eventfd_write(self._bell, 1)

    def verdict(self, note: AnyNote) -> None:
        """Tell the chief what went wrong here, and raise what it makes of it. Returns if it says nothing."""
        self.tell(note)
        if 0 in self.left:
            return
        until = time.monotonic() + VERDICT_WITHIN_S
        with self.changed:
            while self._failed is None and time.monotonic() < until:
                self.changed.wait(max(0.0, until - time.monotonic()))
        self.look()

    @property
    def failed(self) -> bool:
        return self._failed is not None

    def close(self) -> None:
        self._closing = True
        with suppress(OSError):
            os.eventfd_write(self._bell, 1)
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._close_sockets()
        os.close(self._bell)

    def _made_less(self, rank: int, call: Call) -> bool:
        made = self.left.get(rank)
        return made is not None and made.get(call.scope, 0) < call.number

    # ------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._once()
            self._leave(time.monotonic() + GOODBYE_WITHIN_S)
        except Exception as error:  # whatever it is, nobody may wait for ever
            cause = f"the thread of its group failed: {type(error).__name__}: {error}"
            with suppress(Exception):
                self._say_up(Failed(Unavailable(cause, object=f"rank {self._seat.rank}").view()))
            self._set_failed(Failed(Unavailable(cause, object=f"rank {self._seat.rank}").view()))
        finally:
            self._close_sockets()

    def _once(self) -> None:
        poller = zmq.Poller()
        poller.register(self._bell, zmq.POLLIN)
        poller.register(self._zap, zmq.POLLIN)
        if self._socket is not None and self._monitor is not None:
            poller.register(self._socket, zmq.POLLIN)
            poller.register(self._monitor, zmq.POLLIN)
        while not self._closing:
            ready = dict(poller.poll(TICK_MS))
            if self._bell in ready:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            if self._zap in ready:
                self._on_zap()
            while self._outbox:
                self._say_up(self._outbox.popleft())
            socket = self._socket
            if socket is not None:
                if socket in ready:
                    self._drain()
                if self._monitor is not None and self._monitor in ready:
                    self._hear_connections()
            self._tick(time.monotonic())
            if socket is not self._socket:
                return  # another socket: poll that one

    def _tick(self, now: float) -> None:
        call, entered_at = self._calls.current, self._calls.entered_at
        if call is not None and call is not self._told and now - entered_at > WAITS_AFTER_S:
            scope = self.scopes.get(call.scope)
            if scope is not None and call is self._calls.current:
                self._told = call
                self._say_up(Waits(call, scope.ranks))
        if self._chief is not None:
            self._act(self._chief.tick(now))
        if self._again_at and now >= self._again_at:
            self._again_at = 0.0
            self._connect()

    def _leave(self, until: float) -> None:
        """Who ends a connection with something unread in it takes its own last words back, so both sides take turns:
        a rank waits for the chief to repeat its goodbye, the chief for the others to hang up."""
        while self._outbox:
            self._say_up(self._outbox.popleft())
        if self.welcome is None or self._socket is None or (self._chief is None and not self._up):
            return
        self._say_up(Left(self._seat.rank, dict(self._calls.made)))
        poller = zmq.Poller()
        for socket in (self._socket, self._monitor, self._zap):
            poller.register(socket, zmq.POLLIN)
        while self._expected() and (left := until - time.monotonic()) > 0:
            poller.poll(int(left * 1000) + 1)
            self._on_zap()
            self._drain()
            self._hear_connections()

    def _expected(self) -> bool:
        """Whether somebody has yet to answer our goodbye."""
        if self._chief is not None:
            return bool(self._routes)
        return self._up and self._seat.rank not in self.left

    def _close_sockets(self) -> None:
        self._zap.close(0)
        self._close_connection(LINGER_MS)

    def _close_connection(self, linger_ms: int) -> None:
        if self._socket is not None and self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(linger_ms)
            self._socket = self._monitor = None

    # ------------------------------------------------------------------------------------------------ connections

    def _prepare(self, socket: zmq.Socket[bytes]) -> None:
        """Before anything is bound or connected: later it would not count."""
        meeting = self._meeting
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.IPV6, 1 if ":" in meeting.address else 0)
        socket.set(zmq.HEARTBEAT_IVL, int(meeting.heartbeat_s * 1000))
        socket.set(zmq.HEARTBEAT_TIMEOUT, int(meeting.dead_after_s * 1000))
        socket.set(zmq.HEARTBEAT_TTL, int(meeting.dead_after_s * 1000))
        socket.set(zmq.HANDSHAKE_IVL, 10_000)
        socket.set(zmq.CURVE_PUBLICKEY, meeting.keys.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, meeting.keys.secret.encode())

    def _connect(self) -> None:
        """To every port at which the chief may be. Only one of them can prove the chief's key."""
        self._close_connection(0)
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._prepare(socket)
        socket.set(zmq.IMMEDIATE, 1)
        socket.set(zmq.RECONNECT_IVL, 30)
        socket.set(zmq.RECONNECT_IVL_MAX, 500)
        socket.set(zmq.CONNECT_TIMEOUT, 2_000)
        socket.set(zmq.CURVE_SERVERKEY, self._meeting.server_key.encode())
        self._socket, self._monitor = socket, socket.get_monitor_socket(_WATCHED)
        for port in self._meeting.ports:
            socket.connect(f"tcp://{bracketed(self._meeting.address)}:{port}")

    def _hear_connections(self) -> None:
        while self._monitor is not None:
            try:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, value = int(event["event"]), int(event["value"])
            if self._chief is not None:
                self._on_visitor(kind, value)
            else:
                self._on_chief(kind, bytes(event["endpoint"]).decode())

    def _on_visitor(self, kind: int, value: int) -> None:
        """At the chief: a connection came or went."""
        assert self._chief is not None
        if kind != zmq.EVENT_DISCONNECTED:
            return
        self._drain()  # its last words come before its end
        rank = self._connections.pop(value, None)
        if rank is not None:
            self._routes.pop(rank, None)  # if it has not left
            self._act(self._chief.lost(rank))
        elif self.welcome is not None and not self._closing:
            self._refused("a program that did not introduce itself")

    def _on_chief(self, kind: int, endpoint: str) -> None:
        """At the others: what became of the connection to the chief."""
        assert self._socket is not None
        if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED and not self._up:
            self._up = True
            for port in self._meeting.ports:
                other = f"tcp://{bracketed(self._meeting.address)}:{port}"
                if len(self._meeting.ports) > 1 and other != endpoint:
                    with suppress(zmq.ZMQError):
                        self._socket.disconnect(other)
            self._say_up(Hello(self._seat, self._meeting.keys.public))
        elif self._up and kind == zmq.EVENT_DISCONNECTED:
            self._drain()
            self._up = False
            if 0 not in self.left:
                cause = "it died, or its node cannot be reached"
                error = PeerLost(cause, object="rank 0", next_step="See why, then start the ranks again.")
                self._set_failed(Failed(error.view(), (0,)))
        elif not self._up and kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            error_here = NotAllowed(
                "the chief does not let this key in", object=f"rank {self._seat.rank}", next_step="Meet again."
            )
            self._set_failed(Failed(error_here.view()))
        elif not self._up and kind & _FAILED:
            self._again_at = time.monotonic() + CONNECT_AGAIN_S  # ZeroMQ itself has given this one up

    def _on_zap(self) -> None:
        """ZeroMQ asks whether a key may connect."""
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, sequence, _, address, _, mechanism, *credentials = request
            key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and credentials else ""
            if key in self._meeting.may_connect:
                self._zap.send_multipart((version, sequence, b"200", b"OK", key.encode(), b""))
            else:
                self._zap.send_multipart((version, sequence, b"400", b"unknown key", b"", b""))
                self._refused(f"a program at {address.decode(errors='replace')} with an unknown key")

    def _refused(self, who: str) -> None:
        if self._chief is None:
            self._say_up(notes.Refused(who))
            return
        self.notices.append(f"{who} tried to join the group of {self._size} ranks and was refused")
        if len(self.notices) == 1:  # one line is a warning, a thousand are a way to fill a disk
            sys.stderr.write(f"clutch: {self.notices[0]}.\n")
            sys.stderr.flush()
        del self.notices[100:]

    # ------------------------------------------------------------------------------------------------------ notes

    def _say_up(self, note: AnyNote) -> None:
        """To the chief, which may be ourselves."""
        if self._chief is not None:
            self._from_rank(0, note)
        elif self._socket is not None and self._up:
            with suppress(zmq.Again):
                self._socket.send(notes.encode(note), zmq.NOBLOCK)

    def _drain(self) -> None:
        while self._socket is not None:
            try:
                frames: list[Any] = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                note = notes.decode(frames[-1].buffer)
            except msgspec.MsgspecError:
                continue
            if self._chief is None:
                self._on_note(note)
            else:
                self._from_route(frames[0], note)

    def _from_route(self, route: Any, note: AnyNote) -> None:
        assert self._chief is not None and self._socket is not None
        rank = self._rank_of.get(route.bytes)
        if rank is not None:
            self._from_rank(rank, note)
        elif isinstance(note, Hello):
            try:
                said = self._chief.come(note)
            except ClutchError as error:
                self._socket.send_multipart([route.bytes, notes.encode(Failed(error.view()))])
                return
            self._rank_of[route.bytes] = note.seat.rank
            self._routes[note.seat.rank] = route.bytes
            with suppress(zmq.ZMQError):
                self._connections[int(route.get(zmq.SRCFD))] = note.seat.rank
            self._act(said)

    def _from_rank(self, rank: int, note: AnyNote) -> None:
        assert self._chief is not None
        if isinstance(note, notes.Refused):
            self._refused(note.who)
        else:
            self._act(self._chief.heard(rank, note, time.monotonic()))

    def _act(self, said: list[Say]) -> None:
        for to, note in said:
            encoded = notes.encode(note)
            for rank, route in self._routes.items():
                if (to is None or to == rank) and self._socket is not None:
                    self._socket.send_multipart([route, encoded], zmq.NOBLOCK)
            if to is None or to == 0:
                self._on_note(note)
            if isinstance(note, Left):
                self._routes.pop(note.rank, None)  # this was the last that it hears

    def _on_note(self, note: AnyNote) -> None:
        """What the chief says to this rank."""
        if isinstance(note, Failed):
            self._set_failed(note)
        elif isinstance(note, notes.WhereAreYou):
            self._say_up(IAmAt(note.number, dict(self._calls.made), self._calls.current))
        else:
            hangs_up = False
            with self.changed:
                if isinstance(note, Welcome):
                    self.welcome = note
                elif isinstance(note, Left):
                    self.left = {**self.left, note.rank: note.made}
                    hangs_up = note.rank == 0 and self._chief is None
                elif isinstance(note, Granted):
                    self.granted[note.agreement] = note
                self.changed.notify_all()
            if hangs_up:
                self._up = False
                self._close_connection(0)

    def _set_failed(self, failed: Failed) -> None:
        with self.changed:
            if self._failed is None:
                self._failed = failed
            self.changed.notify_all()


__all__ = ["Control", "Reached"]
