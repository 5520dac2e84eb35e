"""A search method that is a process of its own: events for it are queued here, its answers become actions.

Events are numbered from 1. The process reads those behind its cursor, and answers up to one of them; an answer to
events that were answered before is ignored, so it may be sent twice, and a process that was overtaken does no harm.
What was answered is dropped: the process keeps what it needs in the ``state`` that comes back to it. Trials that it
asks for beyond the most at once are held back, with what it said about them meanwhile, until one has ended.

``tpe`` is this method too; its process is ``search_process/tpe.py``.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest, TooLarge
from clutch.wire.experiment_api import SearchEvents
from clutch.wire.experiment_words import (
    CloseTrial,
    MakeTrial,
    Operation,
    SearchEvent,
    SetProgress,
    Shutdown,
    TrainTo,
)
from clutch.wire.experiments import Custom, ExperimentSpec, Tpe
from clutch.workloads.experiment.search.base import (
    Answered,
    Began,
    Event,
    Exited,
    Extended,
    Finish,
    How,
    Make,
    Over,
    Stop,
    Train,
    Trained,
    Validated,
)
from clutch.workloads.experiment.search.checks import at_least
from clutch.workloads.experiment.search.plain import refuse_unknown
from clutch.workloads.experiment.search.sampling import overlay, sample
from clutch.workloads.experiment.search.turns import (
    Closed,
    Ended,
    Left,
    Made,
    Reopened,
    Revived,
    Roll,
    Turn,
    TurningMethod,
    fold_roll,
)

STATE_BYTES_MAX = 1 << 20
REQUEST_CHARACTERS_MAX = 200
EVENTS_MAX = 2_000
"""From so many unanswered events on, a trial's newest validation takes the place of its last unanswered one."""
EVENTS_AT_ONCE = 500

# -- state and facts ----------------------------------------------------------------------------------------------


OF_REQUEST = "request:"


def is_of_request(checkpoint: str) -> bool:
    """Whether the latest checkpoint of a trial is meant, by the process's own name for it."""
    return checkpoint.startswith(OF_REQUEST)


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A trial that was asked for and waits for its turn, and what was said about it meanwhile."""

    asked: MakeTrial
    length: int = 0
    closes: bool = False
    """Nothing more will be asked of it."""


class CustomState(msgspec.Struct, frozen=True):
    roll: Roll = Roll()
    events: tuple[SearchEvent, ...] = ()
    """Those not answered, oldest first."""
    next_event: int = 1
    answered: int = 0
    kept: bytes = b""
    """What the process wants back."""
    held: tuple[Held, ...] = ()
    requests: dict[str, int] = {}
    """Numbers of trials, by the process's own names; 0: not made, or never will be."""
    names: dict[int, str] = {}
    """Of live trials."""
    lengths: dict[int, int] = {}
    """To which length a live trial was asked to train."""
    fraction: float = 0.0
    shutdown: Shutdown | None = None


class Heard(msgspec.Struct, frozen=True, tag="heard", array_like=True):
    """An event for the process. ``instead`` of this one, if any."""

    event: SearchEvent
    instead: int = 0


class Read(msgspec.Struct, frozen=True, tag="read", array_like=True):
    """Everything up to ``cursor`` was answered."""

    cursor: int
    kept: bytes


class Wanted(msgspec.Struct, frozen=True, tag="wanted", array_like=True):
    """A trial was asked for."""

    asked: MakeTrial


class Granted(msgspec.Struct, frozen=True, tag="granted", array_like=True):
    """The first that waits is made."""

    trial: int


class Withdrawn(msgspec.Struct, frozen=True, tag="withdrawn", array_like=True):
    """One that waits is never made."""

    request: str


class Given(msgspec.Struct, frozen=True, tag="given", array_like=True):
    """A trial was given a length."""

    request: str
    length: int


class ClosedEarly(msgspec.Struct, frozen=True, tag="closed_early", array_like=True):
    """Nothing more will be asked of one that waits."""

    request: str


class Advanced(msgspec.Struct, frozen=True, tag="advanced", array_like=True):
    fraction: float


class ShutDown(msgspec.Struct, frozen=True, tag="shut_down", array_like=True):
    said: Shutdown | None
    """None: taken back, because the search goes on."""


Fact = (
    Made | Left | Ended | Revived | Closed | Reopened
    | Heard | Read | Wanted | Granted | Withdrawn | Given | ClosedEarly | Advanced | ShutDown
)  # fmt: skip


def search_events(state: CustomState, after: int, *, over: bool = False) -> SearchEvents:
    """What a process that has seen everything up to ``after`` reads next. ``over``: the experiment has ended.

    The kept state comes along when the process is not where the answers are: it begins, or was overtaken.
    """
    cursor = max(after, state.answered)
    waiting = tuple(event for event in state.events if event.number > cursor)[:EVENTS_AT_ONCE]
    kept = state.kept if after != state.answered or after == 0 else b""
    ended = over or (state.roll.over and not waiting)
    return SearchEvents(events=waiting, answered=state.answered, state=kept, over=ended)


class CustomMethod(TurningMethod[CustomState]):
    def __init__(self, spec: ExperimentSpec, method: Custom | Tpe) -> None:
        super().__init__(Fact, CustomState)
        at_least(0, max_concurrent_trials=method.max_concurrent_trials)
        if isinstance(method, Tpe):
            at_least(1, max_trials=method.max_trials, startup_trials=method.startup_trials)
        self._spec = spec
        self._method = method

    def open(self) -> CustomState:
        return CustomState()

    def progress(self, state: CustomState) -> float:
        return 1.0 if state.roll.over else state.fraction

    def turn(self, turn: Turn[CustomState], event: Event) -> None:
        match event:
            case Began():
                if turn.state.next_event == 1:
                    self._tell(turn, "begin", hparams=self._description())
            case Validated() | Trained():
                self._report(turn, event)
            case Exited(trial=trial, how=how):
                if trial in turn.state.roll.live:
                    self._end(turn, trial, how)
            case Answered():
                self._answer(turn, event)
            case Extended():
                self._extend(turn, event)
        self._grant(turn)
        self._close(turn)

    # -- what the process is told ---------------------------------------------------------------------------------

    def _tell(self, turn: Turn[CustomState], kind: str, trial: int = 0, **more: Any) -> None:
        state = turn.state
        request = more.pop("request", state.names.get(trial, ""))
        event = SearchEvent(number=state.next_event, kind=kind, trial=trial, request=request, **more)
        instead = 0
        if kind == "validated" and len(state.events) >= EVENTS_MAX:
            instead = max((one.number for one in state.events if one.kind == kind and one.trial == trial), default=0)
        turn.remember(Heard(event, instead))

    def _report(self, turn: Turn[CustomState], event: Validated | Trained) -> None:
        """Numbers that JSON has no word for are left out; a value that is none is None."""
        if not turn.state.roll.listens(event.trial):
            return
        value = event.value if math.isfinite(event.value) else None
        if isinstance(event, Trained):
            self._tell(turn, "trained", event.trial, length=event.length, value=value)
            self._is_through(turn, event)
        else:
            values = {name: one for name, one in event.values.items() if math.isfinite(one)}
            self._tell(turn, "validated", event.trial, step=event.step, value=value, values=values)

    def _is_through(self, turn: Turn[CustomState], event: Trained) -> None:
        """One that was continued finishes a length that it had been given before its end: it rests now like any other,
        and ends with the search."""
        state = turn.state
        if event.trial in state.lengths or event.trial not in state.names:
            return
        turn.remember(Given(state.names[event.trial], event.length))
        if state.shutdown is not None:
            turn.leave(event.trial, Finish(event.trial))

    def _end(self, turn: Turn[CustomState], trial: int, how: How) -> None:
        kind = "closed" if how in (How.COMPLETED, How.STOPPED) else "exited"
        self._tell(turn, kind, trial, reason=how.value)
        turn.remember(Ended(trial, how))

    def _description(self) -> dict[str, Any]:
        """What a method has to know of the experiment: it is in the first event, and nowhere else."""
        search = self._spec.search
        described: dict[str, Any] = msgspec.to_builtins(
            {
                "hyperparameters": self._spec.hyperparameters,
                "method": self._method,
                "seed": self._spec.seed,
                "metric": search.metric,
                "smaller_is_better": search.smaller_is_better,
                "max_time": search.max_time,
                "unit": search.unit,
            }
        )
        return described

    # -- what it answers ------------------------------------------------------------------------------------------

    def _answer(self, turn: Turn[CustomState], event: Answered) -> None:
        state = turn.state
        if event.cursor <= state.answered:
            return
        if event.cursor >= state.next_event:
            raise BadRequest(
                f"there is no event {event.cursor} yet, the last is {state.next_event - 1}",
                object="search answer",
                next_step="Answer only events that were read.",
                path="cursor",
            )
        if len(event.state) > STATE_BYTES_MAX:
            raise TooLarge(
                f"the method's state has {len(event.state)} bytes, at most {STATE_BYTES_MAX} are kept",
                object="search answer",
                next_step="Keep less, or keep it elsewhere.",
                path="state",
            )
        turn.remember(Read(event.cursor, event.state))
        for number, operation in enumerate(event.operations):
            self._operate(turn, operation, f"operations.{number}")

    def _operate(self, turn: Turn[CustomState], operation: Operation, path: str) -> None:
        match operation:
            case MakeTrial():
                self._want(turn, operation, path)
            case TrainTo(request=request, length=length):
                trial = _known(turn.state, request, path)
                if length < 1:
                    raise BadRequest(f"{length} is no length", object=f"request {request}", path=f"{path}.length")
                if turn.state.roll.listens(trial):
                    turn.remember(Given(request, length))
                    turn.do(Train(trial, length))
                elif _waits(turn.state, request):
                    turn.remember(Given(request, length))
            case CloseTrial(request=request, now=now):
                trial = _known(turn.state, request, path)
                if turn.state.roll.listens(trial):
                    turn.leave(trial, Stop(trial) if now else Finish(trial))
                elif _waits(turn.state, request) and not now:
                    turn.remember(ClosedEarly(request))
                elif _waits(turn.state, request):
                    turn.remember(Withdrawn(request))
                    self._tell(turn, "closed", request=request, reason="withdrawn")
            case SetProgress(fraction=fraction):
                turn.remember(Advanced(min(max(fraction, 0.0), 1.0)))
            case Shutdown():
                self._shut_down(turn, operation)

    def _want(self, turn: Turn[CustomState], asked: MakeTrial, path: str) -> None:
        if not 0 < len(asked.request) <= REQUEST_CHARACTERS_MAX:
            raise BadRequest(
                f"a trial's name has 1 to {REQUEST_CHARACTERS_MAX} characters",
                object="search answer",
                next_step="Name each trial, in any way.",
                path=f"{path}.request",
            )
        if asked.request in turn.state.requests:
            raise BadRequest(
                "a trial of this name was asked for before",
                object=f"request {asked.request}",
                next_step="Name each trial differently.",
                path=f"{path}.request",
            )
        if is_of_request(asked.checkpoint):
            _known(turn.state, asked.checkpoint.removeprefix(OF_REQUEST), path)
        if turn.state.shutdown is None:
            turn.remember(Wanted(asked))

    def _shut_down(self, turn: Turn[CustomState], said: Shutdown) -> None:
        """Trials that were given lengths end when they are through; others run to their own end. Those that wait are
        made when it is their turn. If it failed, all of them are stopped."""
        if turn.state.shutdown is not None:
            return
        turn.remember(ShutDown(said))
        if said.failed:
            for held in turn.state.held:
                turn.remember(Withdrawn(held.asked.request))
        for trial, leaves in turn.state.roll.live.items():
            if leaves:
                continue
            if said.failed:
                turn.leave(trial, Stop(trial))
            elif trial in turn.state.lengths:
                turn.leave(trial, Finish(trial))

    # -- what follows from both -----------------------------------------------------------------------------------

    def _grant(self, turn: Turn[CustomState]) -> None:
        most = self._method.max_concurrent_trials
        while turn.state.held and not 0 < most <= len(turn.state.roll.live):
            held = turn.state.held[0]
            asked = held.asked
            trial = turn.state.roll.made + 1
            space = self._spec.hyperparameters
            hparams = overlay(space, sample(space, self._spec.seed, trial), asked.hparams)
            source = asked.checkpoint.removeprefix(OF_REQUEST)
            parent = turn.state.requests.get(source, 0) if source != asked.checkpoint else 0
            turn.remember(Granted(trial))
            turn.do(
                Make(
                    trial,
                    hparams,
                    from_trial=parent,
                    from_checkpoint=asked.checkpoint if source == asked.checkpoint else "",
                    request=asked.request,
                )
            )
            self._tell(turn, "created", trial, hparams=hparams)
            if held.length:
                turn.do(Train(trial, held.length))
            if held.closes or (held.length and turn.state.shutdown is not None):
                turn.leave(trial, Finish(trial))

    def _close(self, turn: Turn[CustomState]) -> None:
        state = turn.state
        if state.shutdown is None or state.roll.live or state.held or state.roll.over:
            return
        none_of_use = state.roll.counted > 0 and not state.roll.useful and state.roll.failed > 0
        detail = state.shutdown.detail or ("every trial failed" if none_of_use else "")
        self._tell(turn, "ended")
        turn.close(Over(state.shutdown.failed or none_of_use, detail))

    def _extend(self, turn: Turn[CustomState], event: Extended) -> None:
        """The method is told, and says what follows from it."""
        refuse_unknown(event, turn.state.roll)
        if turn.state.roll.over:
            turn.remember(Reopened())
        if turn.state.shutdown is not None:
            turn.remember(ShutDown(None))
        for trial in event.trials:
            if trial not in turn.state.roll.live:
                turn.remember(Revived(trial))
                self._tell(turn, "created", trial, reason="continued")
        values = {"max_trials": float(event.max_trials), "max_time": float(event.max_time)}
        self._tell(turn, "extended", values=values)

    def fold(self, state: CustomState, fact: Fact) -> CustomState:
        replace = msgspec.structs.replace
        match fact:
            case Heard(event, instead):
                waiting = state.events
                if instead:
                    waiting = tuple(one for one in waiting if one.number != instead)
                return replace(state, events=(*waiting, event), next_event=event.number + 1)
            case Read(cursor, kept):
                waiting = tuple(one for one in state.events if one.number > cursor)
                return replace(state, events=waiting, answered=cursor, kept=kept)
            case Advanced(fraction):
                return replace(state, fraction=fraction)
            case ShutDown(said):
                return replace(state, shutdown=said)
            case Reopened():
                waiting = tuple(one for one in state.events if one.kind != "ended")
                return replace(state, events=waiting, roll=fold_roll(state.roll, fact))
            case Wanted() | Granted() | Withdrawn() | Given() | ClosedEarly() | Ended() | Revived():
                return _fold_trial(state, fact)
            case _:
                return replace(state, roll=fold_roll(state.roll, fact))


TrialFact = Wanted | Granted | Withdrawn | Given | ClosedEarly | Ended | Revived


def _fold_trial(state: CustomState, fact: TrialFact) -> CustomState:
    replace = msgspec.structs.replace
    match fact:
        case Wanted(asked):
            return replace(state, held=(*state.held, Held(asked)), requests={**state.requests, asked.request: 0})
        case Granted(trial):
            first, *rest = state.held
            request = first.asked.request
            return replace(
                state,
                roll=fold_roll(state.roll, Made(trial)),
                held=tuple(rest),
                requests={**state.requests, request: trial},
                names={**state.names, trial: request},
                lengths={**state.lengths, trial: first.length} if first.length else state.lengths,
            )
        case Withdrawn(request):
            return replace(state, held=tuple(held for held in state.held if held.asked.request != request))
        case Given(request, length):
            trial = state.requests[request]
            if trial:
                return replace(state, lengths={**state.lengths, trial: length})
            return replace(state, held=_said_of(state.held, request, length=length))
        case ClosedEarly(request):
            return replace(state, held=_said_of(state.held, request, closes=True))
        case Ended(trial, _):
            return replace(
                state,
                roll=fold_roll(state.roll, fact),
                names={number: name for number, name in state.names.items() if number != trial},
                lengths={number: length for number, length in state.lengths.items() if number != trial},
            )
        case Revived(trial):
            request = next((name for name, number in state.requests.items() if number == trial), "")
            return replace(state, roll=fold_roll(state.roll, fact), names={**state.names, trial: request})


def _said_of(held: tuple[Held, ...], request: str, **said: Any) -> tuple[Held, ...]:
    return tuple(msgspec.structs.replace(one, **said) if one.asked.request == request else one for one in held)


def _known(state: CustomState, request: str, path: str) -> int:
    """The trial's number, 0 while it waits. What is said to one that has ended comes too late, and that is no error."""
    if request not in state.requests:
        raise BadRequest(
            "no trial of this name was asked for",
            object=f"request {request[:REQUEST_CHARACTERS_MAX]}",
            next_step="Create it first.",
            path=f"{path}.request",
        )
    return state.requests[request]


def _waits(state: CustomState, request: str) -> bool:
    return any(held.asked.request == request for held in state.held)
