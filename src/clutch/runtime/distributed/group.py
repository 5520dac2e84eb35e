"""A group: the processes of one training run speak with each other, in blocking calls.

Every rank makes the same calls in the same order. Each call has a deadline; the death of any rank is an error that
names it, on every rank, also in the next call of a rank that was busy meanwhile. Once a group has failed every later
call fails alike: what was half done cannot be continued.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from clutch.runtime.distributed.calls import Call, Calls, Step
from clutch.runtime.distributed.near import LineEnded
from clutch.runtime.distributed.notes import Failed, Waits
from clutch.runtime.distributed.payload import Packed, pack, unpack
from clutch.runtime.distributed.reducers import Reducer, as_two_steps, name_of
from clutch.runtime.distributed.shape import Scope, Seat, Shape, arrange, check_seat
from clutch.wire.errors import BadRequest, ClutchError, PeerLost, TimedOut, Unavailable

if TYPE_CHECKING:
    from clutch.runtime.distributed.exchange import Exchange
    from clutch.runtime.distributed.meeting import Meeting
    from clutch.runtime.distributed.near import Item
    from clutch.runtime.distributed.session import Session
    from clutch.wire.push import Roster

TIMEOUT_S = 600.0
LOOSE_MAX = 8
"""After so many calls that some ranks leave before others have come, all wait for each other once."""
T = TypeVar("T")


class Group:
    """Made by ``create``, ``from_roster``, ``from_environment`` or ``from_torch``; ended by ``close`` or ``with``.

    ``rank`` of ``size`` counts all processes, ``local_rank`` of ``local_size`` those of this node, ``cross_rank`` of
    ``cross_size`` the nodes. Results are in the order of ranks. Arrays that arrive may be written to.
    """

    def __init__(self, seat: Seat, meeting: Meeting | None = None) -> None:
        check_seat(seat)
        self._calls = Calls()
        self._session: Session | None = None
        self._exchange: Exchange | None = None
        self._process = os.getpid()
        self._closed = False
        self._turn = threading.Lock()
        self._loose: dict[str, int] = {}
        self.agreements = 0
        """How many agreements were made on this group, which is how ranks tell them apart."""
        shape = Shape((seat,), ((0,),))
        if seat.size > 1:
            from clutch.runtime.distributed.session import Session

            if meeting is None:
                raise BadRequest(
                    f"{seat.size} ranks have no place to meet", object="group", next_step="Give a meeting."
                )
            self._session = Session(seat, meeting, self._calls)
            self._exchange = self._session.exchange
            shape = arrange(self._session.seats)
        rank = seat.rank
        self._world, self._local = shape.world(rank), shape.local(rank)
        self.rank, self.size = rank, seat.size
        self.local_rank, self.local_size = seat.local_rank, seat.local_size
        self.cross_rank, self.cross_size = shape.node_of(rank), len(shape.nodes)
        if self._session is not None:
            atexit.register(_close_at_exit, weakref.ref(self))

    # ---------------------------------------------------------------------------------------------------- making

    @classmethod
    def create(
        cls, rank: int, size: int, meeting: Meeting | None = None, *, local_rank: int = 0, local_size: int = 1,
        node: str = "",
    ) -> Group:  # fmt: skip
        """With everything said by the caller. Ranks of one node count from that node's first rank, or name it."""
        return cls(Seat(rank, size, local_rank, local_size, node), meeting)

    @classmethod
    def from_roster(cls, roster: Roster, secret_key: str) -> Group:
        """One rank for each member, at the chief's reserved port."""
        from clutch.runtime.distributed.meeting import meeting_by_roster

        peer = roster.peers[roster.rank]
        seat = Seat(roster.rank, roster.size, roster.local_rank, roster.local_size, peer.node)
        return cls(seat, meeting_by_roster(roster, secret_key) if roster.size > 1 else None)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Group:
        """As launchers and boot have written it into the environment. Without them: a group of one."""
        from clutch.runtime.distributed.meeting import by_environment

        return cls(*by_environment(environment))

    @classmethod
    def from_torch(cls, *, timeout_s: float = TIMEOUT_S) -> Group:
        """The ranks of ``torch.distributed``, which must be initialized; its store tells them where to meet."""
        from clutch.runtime.distributed.by_torch import seat_and_meeting

        return cls(*seat_and_meeting(timeout_s))

    # ----------------------------------------------------------------------------------------------------- calls

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def is_local_chief(self) -> bool:
        return self.local_rank == 0

    def gather(self, value: Any, timeout_s: float = TIMEOUT_S) -> list[Any] | None:
        """The values of all ranks, on the chief; None elsewhere."""
        return self._gather(self._world, value, timeout_s)

    def gather_local(self, value: Any, timeout_s: float = TIMEOUT_S) -> list[Any] | None:
        """The values of all ranks of this node, on its local rank 0; None elsewhere."""
        return self._gather(self._local, value, timeout_s)

    def allgather(self, value: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """The values of all ranks, on every rank."""
        return self._allgather(self._world, value, timeout_s)

    def allgather_local(self, value: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """The values of all ranks of this node, on each of them."""
        return self._allgather(self._local, value, timeout_s)

    def broadcast(self, value: T, root: int = 0, timeout_s: float = TIMEOUT_S) -> T:
        """The value of ``root``, on every rank; what the others give is not looked at."""
        return self._broadcast(self._world, value, root, timeout_s)

    def broadcast_local(self, value: T, root: int = 0, timeout_s: float = TIMEOUT_S) -> T:
        """The value of this node's local rank ``root``, on every rank of the node."""
        return self._broadcast(self._local, value, root, timeout_s)

    def barrier(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns when all ranks have come."""
        self._barrier(self._world, timeout_s)

    def barrier_local(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns when all ranks of this node have come."""
        self._barrier(self._local, timeout_s)

    def reduce(self, value: Any, reducer: Reducer, timeout_s: float = TIMEOUT_S) -> Any:
        """What the reducer makes of all values, on the chief; None elsewhere."""
        return self._reduce(self._world, value, reducer, timeout_s)

    def reduce_local(self, value: Any, reducer: Reducer, timeout_s: float = TIMEOUT_S) -> Any:
        """What the reducer makes of this node's values, on its local rank 0; None elsewhere."""
        return self._reduce(self._local, value, reducer, timeout_s)

    def allreduce(self, value: Any, reducer: Reducer, timeout_s: float = TIMEOUT_S) -> Any:
        """What the reducer makes of all values, on every rank. It runs on the chief."""
        return self._allreduce(self._world, value, reducer, timeout_s)

    def allreduce_local(self, value: Any, reducer: Reducer, timeout_s: float = TIMEOUT_S) -> Any:
        """What the reducer makes of this node's values, on each of its ranks."""
        return self._allreduce(self._local, value, reducer, timeout_s)

    # --------------------------------------------------------------------------------------------------- closing

    def check(self) -> None:
        """Raise why this group cannot be used, if it cannot."""
        if os.getpid() != self._process:
            raise BadRequest(
                f"it belongs to process {self._process}, of which this is a fork",
                object=f"group of rank {self.rank}",
                next_step="Use it in the process that made it.",
            )
        if self._closed:
            raise Unavailable("it is closed", object=f"group of rank {self.rank}")
        if self._session is not None:
            self._session.control.look()

    @property
    def notices(self) -> tuple[str, ...]:
        """Who was refused, on the chief."""
        return tuple(self._session.control.notices) if self._session is not None else ()

    @property
    def session(self) -> Session | None:
        """What carries the notes of agreements; None for a group of one."""
        return self._session

    def close(self) -> None:
        """Say goodbye and let go of everything. What was said before still arrives. May be called again."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, size={self.size}, node={self.cross_rank} of {self.cross_size})"

    # --------------------------------------------------------------------------------------------- how it is done

    def _gather(self, scope: Scope, value: Any, timeout_s: float) -> list[Any] | None:
        packed = pack(value)
        found: list[Any] | None = self._loosely(scope, Step("gather", timeout_s), packed, _values)
        return found

    def _reduce(self, scope: Scope, value: Any, reducer: Reducer, timeout_s: float) -> Any:
        steps = as_two_steps(reducer)
        packed = pack(steps.per_rank(value))
        step = Step("reduce", timeout_s, detail=name_of(reducer))
        return self._loosely(scope, step, packed, lambda items: steps.across(_values(items)))

    def _allgather(self, scope: Scope, value: Any, timeout_s: float) -> list[Any]:
        packed = pack(value)
        if len(scope.ranks) == 1:
            return [self._alone(packed)]

        return self._call(
            scope,
            Step("allgather", timeout_s),
            lambda exchange, call, until: exchange.allgather(scope, call, packed, until),
        )

    def _barrier(self, scope: Scope, timeout_s: float) -> None:
        if len(scope.ranks) == 1:
            return self.check()
        return self._call(
            scope, Step("barrier", timeout_s), lambda exchange, call, until: exchange.meet(scope, call, until)
        )

    def _broadcast(self, scope: Scope, value: T, root: int, timeout_s: float) -> T:
        if not 0 <= root < len(scope.ranks):
            raise BadRequest(f"there is no rank {root} of {len(scope.ranks)}", object="root of a broadcast")
        source = scope.ranks[root]
        packed = pack(value) if source == self.rank else None
        if len(scope.ranks) == 1:
            self.check()
            return value

        def run(exchange: Exchange, call: Call, until: float) -> T:
            own = exchange.item(scope, packed) if packed is not None else None
            items = exchange.spread(scope, call, [own] if own is not None else None, source, until)
            found = value if own is not None else _values(items)[0]
            _let_go(items)
            self._settle(exchange, scope, call, until)
            return found

        return self._call(scope, Step("broadcast", timeout_s, root=source), run)

    def _allreduce(self, scope: Scope, value: Any, reducer: Reducer, timeout_s: float) -> Any:
        steps = as_two_steps(reducer)
        packed = pack(steps.per_rank(value))
        if len(scope.ranks) == 1:
            return steps.across([self._alone(packed)])

        def run(exchange: Exchange, call: Call, until: float) -> Any:
            own = exchange.item(scope, packed)
            items = exchange.gather(scope, call, [own], until)
            answer = _reduced(steps, items) if items is not None else None
            _let_go(items or (), own)
            made = exchange.item(scope, answer[0]) if answer is not None else None
            spread = exchange.spread(scope, call, [made] if made is not None else None, scope.chief, until)
            done, result = unpack(spread[0].packed)
            _let_go(spread)
            if answer is not None and answer[1] is not None:
                exchange.flush(until)
                raise _Theirs(answer[1])
            if not done:
                raise _Theirs(Unavailable(result, object=f"reducer on rank {scope.chief}"))
            return result

        return self._call(scope, Step("allreduce", timeout_s, detail=name_of(reducer)), run)

    def _loosely(self, scope: Scope, step: Step, packed: Packed, finish: Callable[[list[Item]], Any]) -> Any:
        """Gather, and ``finish`` on the chief."""
        if len(scope.ranks) == 1:
            self.check()
            from clutch.runtime.distributed.near import Item

            return finish([Item(self.rank, _copied(packed))])

        def run(exchange: Exchange, call: Call, until: float) -> Any:
            own = exchange.item(scope, packed)
            items = exchange.gather(scope, call, [own], until)
            self._settle(exchange, scope, call, until)
            try:
                return finish(items) if items is not None else None
            except Exception as error:
                raise _Theirs(error) from error
            finally:
                _let_go(items or (), own)

        return self._call(scope, step, run)

    def _alone(self, packed: Packed) -> Any:
        self.check()
        return unpack(_copied(packed))

    def _settle(self, exchange: Exchange, scope: Scope, call: Call, until: float) -> None:
        """Now and then wait for the slowest, so that what the quick ones have sent does not pile up."""
        loose = self._loose.get(scope.key, 0) + 1
        self._loose[scope.key] = loose % LOOSE_MAX
        if loose >= LOOSE_MAX:
            exchange.meet(scope, call, until)

    def _call(self, scope: Scope, step: Step, run: Callable[[Exchange, Call, float], T]) -> T:
        """One call, from its number to what is raised if it does not succeed."""
        with self._turn:
            self.check()
            session, exchange = self._session, self._exchange
            assert session is not None and exchange is not None
            began = time.monotonic()
            until = began + step.timeout_s
            call = self._calls.enter(scope.key, step.name, began, step.root, step.detail)
            try:
                session.control.look()  # somebody may have left before this call
                found = run(exchange, call, until)
                exchange.flush(until)
                return found
            except _Theirs as error:
                raise error.error from error.error.__cause__
            except PeerLost:
                raise
            except LineEnded as error:
                lost = PeerLost("it died", object=f"rank {error.rank}", ranks=(error.rank,))
                session.control.verdict(Failed(lost.view(), (error.rank,)))
                raise lost from None
            except TimedOut as error:
                if session.control.failed:
                    raise
                session.control.verdict(Waits(call, scope.ranks, late=True, timeout_s=step.timeout_s))
                raise TimedOut(
                    f"{error.object} did not come to {call} within {step.timeout_s:g} s", object="group"
                ) from error
            except ClutchError as error:
                if not session.control.failed:
                    session.control.verdict(Failed(error.view()))
                raise
            except BaseException as error:
                cause = f"it gave up {call}: {type(error).__name__}"
                session.control.tell(Failed(Unavailable(cause, object=f"rank {self.rank}").view()))
                raise
            finally:
                self._calls.leave()


class _Theirs(Exception):
    """An error of the caller's own code; the group itself is well."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _values(items: list[Item]) -> list[Any]:
    return [unpack(item.packed) for item in items]


def _let_go(items: Any, own: Item | None = None) -> None:
    for item in items if own is None else (*items, own):
        if item.segment is not None:
            item.segment.close()


def _copied(packed: Packed) -> Packed:
    return Packed(packed.body, [memoryview(bytearray(buffer)) for buffer in packed.buffers])


def _reduced(steps: Any, items: list[Item]) -> tuple[Packed, Exception | None]:
    """What to tell everybody, and what to raise here."""
    try:
        return pack((True, steps.across(_values(items)))), None
    except Exception as error:
        return pack((False, f"{type(error).__name__}: {error}")), error


def _close_at_exit(reference: weakref.ref[Group]) -> None:
    group = reference()
    if group is not None:
        group.close()
