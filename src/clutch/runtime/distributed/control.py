"""The thread that keeps a group together: it meets the others, hears who dies, and carries notes to and from the chief.

It only listens, and sleeps while nothing happens. Heartbeats are ZeroMQ's and run in a thread of their own; see
``connections``.
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

from clutch.backends.transports.frames import raised
from clutch.runtime.distributed import notes
from clutch.runtime.distributed.calls import Call, Calls
from clutch.runtime.distributed.chief import Chief, Say, lost_rank
from clutch.runtime.distributed.connections import Gate, Upward, Visitors
from clutch.runtime.distributed.meeting import Meeting
from clutch.runtime.distributed.notes import AnyNote, Failed, Granted, Hello, IAmAt, Left, Reached, Waits, Welcome
from clutch.runtime.distributed.pulse import LOOKS_EVERY_S
from clutch.runtime.distributed.shape import Scope, Seat
from clutch.wire.errors import ClutchError, NotAllowed, PeerLost, TimedOut, Unavailable

WAITS_AFTER_S = 1.0
"""A rank that is in one call for so long says which, so that ranks in different calls are found."""
VERDICT_WITHIN_S = 2.0
PATIENCE_S = 30.0
"""How long behind its deadline rank 0 may be with its verdict before a rank that has reached it gives up by itself. If
rank 0 is dead, that is known within seconds."""
CONNECT_AGAIN_S = 0.25
LINGER_MS = 1_000
GOODBYE_WITHIN_S = 1.0


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
        self._again_at = 0.0
        self._reached_at: float | None = None
        self._told: Call | None = None
        self._gate = Gate(context, meeting.may_connect)
        self._visitors: Visitors | None = None
        self._upward: Upward | None = None
        # A daemon, so that a program that forgets to close its group still ends
        self._thread = threading.Thread(target=self._run, name="clutch-group", daemon=True)

    # ------------------------------------------------------------------------- for the thread that calls a group

    def listen(self) -> int:
        """The chief's port. ``Conflict`` if somebody else listens at every port it may use."""
        self._visitors = Visitors(self._context, self._meeting, time.monotonic())
        return self._visitors.port

    def start(self, seat: Seat, until: float) -> None:
        self._seat = seat
        if seat.rank == 0:
            self._chief = Chief(self._size, until, self._meeting.within_s, os.urandom(16))
            self._act(self._chief.come(Hello(seat, self._meeting.keys.public)))
        else:
            self._upward = Upward(self._context, self._meeting, time.monotonic())
        self._thread.start()

    def wait_welcome(self, until: float) -> Welcome:
        """Who has reached rank 0 hears from it, by rank 0's own deadline, that all have come or who is missing."""
        with self.changed:
            while self.welcome is None and self._failed is None:
                by = until + VERDICT_WITHIN_S
                if self._reached_at is not None:
                    by = max(by, self._reached_at + self._meeting.within_s + PATIENCE_S)
                left = by - time.monotonic()
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
        """Tell the chief what went wrong here, and raise what it makes of it. Returns if it says nothing.

        A chief that has left says nothing more, but it may have said before why: then its end is what we saw first.
        """
        self.tell(note)
        until = time.monotonic() + VERDICT_WITHIN_S
        with self.changed:
            while self._failed is None and 0 not in self.left and time.monotonic() < until:
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
        """As long as the connections are the same."""
        here = self._visitors or self._upward
        poller = self._poller()
        while not self._closing and here is (self._visitors or self._upward):
            ready = dict(poller.poll(int(LOOKS_EVERY_S * 1000)))
            if self._bell in ready:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            self._listen_around()
            while self._outbox:
                self._say_up(self._outbox.popleft())
            self._tick(time.monotonic())

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._bell, zmq.POLLIN)
        poller.register(self._gate.socket, zmq.POLLIN)
        here = self._visitors or self._upward
        if here is not None:
            poller.register(here.socket, zmq.POLLIN)
            poller.register(here.monitor, zmq.POLLIN)
        return poller

    def _listen_around(self) -> None:
        """Ends before beginnings: see ``Visitors.ended``."""
        self._hear_connections()
        while (request := self._gate.asked()) is not None:
            self._hear_connections()
            if who := self._gate.answer(request):
                self._refused(who)
        self._drain()

    def _hear_connections(self) -> None:
        if self._visitors is not None:
            self._hear_visitors(self._visitors)
        elif self._upward is not None:
            self._hear_chief(self._upward)

    def _tick(self, now: float) -> None:
        call, entered_at = self._calls.current, self._calls.entered_at
        if call is not None and call is not self._told and now - entered_at > WAITS_AFTER_S:
            scope = self.scopes.get(call.scope)
            if scope is not None and call is self._calls.current:
                self._told = call
                self._say_up(Waits(call, scope.ranks))
        if self._chief is not None and self._visitors is not None:
            for rank in self._visitors.silent(now):
                self._act(self._chief.lost(rank, self._meeting.dead_after_s))  # it hears of it, should it come back
                self._visitors.forget(rank)
            self._act(self._chief.tick(now))
        elif self._upward is not None and self._upward.silent(now):
            self._lose_chief(self._meeting.dead_after_s)
        if self._again_at and now >= self._again_at:
            self._again_at = 0.0
            if self._upward is not None:
                self._upward.try_again()

    def _leave(self, until: float) -> None:
        """Who ends a connection with something unread in it takes its own last words back, so both sides take turns:
        a rank waits for the chief to repeat its goodbye, the chief for the others to hang up."""
        while self._outbox:
            self._say_up(self._outbox.popleft())
        if self._visitors is None and (self._upward is None or not self._upward.up):
            return
        if self.welcome is not None:
            self._say_up(Left(self._seat.rank, dict(self._calls.made)))
        elif self._visitors is None or self._failed is None:
            return  # only a chief has said something before the welcome: why there will be none
        poller = self._poller()
        while self._expected() and (left := until - time.monotonic()) > 0:
            poller.poll(int(min(left, LOOKS_EVERY_S) * 1000) + 1)
            self._listen_around()
            self._tick(time.monotonic())  # nobody waits for the goodbye of the dead

    def _expected(self) -> bool:
        """Whether somebody has yet to answer our goodbye."""
        if self._visitors is not None:
            return self._visitors.somebody_is_there
        return self._upward is not None and self._upward.up and self._seat.rank not in self.left

    def _close_sockets(self) -> None:
        self._gate.close()
        for connection in (self._visitors, self._upward):
            if connection is not None:
                connection.close(LINGER_MS)
        self._upward = None

    # ------------------------------------------------------------------------------------------------ connections

    def _hear_visitors(self, visitors: Visitors) -> None:
        """At the chief: whose connections have ended."""
        assert self._chief is not None
        for descriptor in visitors.ended():
            self._drain()  # its last words come before its end; they may be its first
            rank = visitors.unseat(descriptor)
            if rank is not None:
                visitors.forget(rank)  # if it has not left
                self._act(self._chief.lost(rank))
            elif self.welcome is not None and not self._closing:
                self._refused("a program that did not introduce itself")

    def _hear_chief(self, upward: Upward) -> None:
        """At the others: what became of the connection to the chief."""
        for what in upward.happened():
            if what == "up":
                with self.changed:
                    self._reached_at = time.monotonic()
                    self.changed.notify_all()
                self._say_up(Hello(self._seat, self._meeting.keys.public))
            elif what == "ended":
                self._drain()
                self._lose_chief()
            elif what == "refused":
                refused = NotAllowed(
                    "the chief does not let this key in", object=f"rank {self._seat.rank}", next_step="Meet again."
                )
                self._set_failed(Failed(refused.view()))
            else:
                self._again_at = time.monotonic() + CONNECT_AGAIN_S

    def _lose_chief(self, silent_s: float = 0.0) -> None:
        if 0 in self.left:
            return
        failed = Failed(lost_rank(0, silent_s).view(), (0,))
        self._set_failed(failed)
        if self._upward is not None:
            self._say_up(failed)  # a chief that was only stopped hears why nobody is there any more
            self._upward.up = False

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
        elif self._upward is not None:
            self._upward.send(notes.encode(note))

    def _drain(self) -> None:
        while (here := self._visitors or self._upward) is not None:
            try:
                frames: list[Any] = here.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                note = notes.decode(frames[-1].buffer)
            except msgspec.MsgspecError:
                continue
            if self._visitors is not None:
                self._from_route(self._visitors, frames[0], note)
            else:
                self._on_note(note)

    def _from_route(self, visitors: Visitors, route: Any, note: AnyNote) -> None:
        assert self._chief is not None
        rank = visitors.rank_of(route)
        if rank is not None:
            self._from_rank(rank, note)
        elif isinstance(note, Hello):
            try:
                said = self._chief.come(note)
            except ClutchError as error:
                visitors.refuse(route, notes.encode(Failed(error.view())))
                return
            visitors.seat(route, note.seat.rank)
            self._act(said)

    def _from_rank(self, rank: int, note: AnyNote) -> None:
        assert self._chief is not None
        if isinstance(note, notes.Refused):
            self._refused(note.who)
        else:
            self._act(self._chief.heard(rank, note, time.monotonic()))

    def _act(self, said: list[Say]) -> None:
        for to, note in said:
            if self._visitors is not None:
                self._visitors.send(to, notes.encode(note))
            if to is None or to == 0:
                self._on_note(note)
            if isinstance(note, Left) and self._visitors is not None:
                self._visitors.forget(note.rank)  # this was the last that it hears

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
            if hangs_up and self._upward is not None:
                self._upward.close(0)
                self._upward = None

    def _set_failed(self, failed: Failed) -> None:
        with self.changed:
            if self._failed is None:
                self._failed = failed
            self.changed.notify_all()


__all__ = ["Control", "Reached"]
