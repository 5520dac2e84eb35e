"""The experiment's controller: one door for each of the things that ``core.controller`` asks for.

It relies on one thing the core does: each note is folded before the next wish is taken. So a decision is a generator
that reads the experiment as it is after what it has wished for so far, like every decision in the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import msgspec

from clutch.core import controller as c
from clutch.wire import experiment_words as w
from clutch.wire.errors import BadRequest
from clutch.wire.experiment_open import New, opening
from clutch.wire.experiment_views import ExperimentArchive
from clutch.wire.experiments import KIND, ExperimentSpec, ExperimentState
from clutch.wire.journal import Gone
from clutch.wire.views import View
from clutch.workloads.experiment.controller import continuing, happenings, reports, requests, rows
from clutch.workloads.experiment.controller.ending import PATIENCE_S, move, settle
from clutch.workloads.experiment.controller.own import Frozen, Own, Wishes, wish
from clutch.workloads.experiment.controller.searching import begin_searcher, feed
from clutch.workloads.experiment.machine import notes as n
from clutch.workloads.experiment.machine.experiment import opened
from clutch.workloads.experiment.machine.fold import fold
from clutch.workloads.experiment.search import base as s
from clutch.workloads.experiment.search.opening import method_for

MakeMethod = Callable[[ExperimentSpec], s.SearchMethod]

SAID: dict[type[w.Said], Callable[[Own, Any, float], Wishes]] = {
    w.Validated: reports.validated,
    w.OperationDone: reports.operation_done,
    w.EarlyExit: reports.early_exit,
    w.SetMetadata: reports.set_metadata,
    w.Matched: reports.matched,
    w.SearchAnswered: reports.search_answered,
    w.PauseExperiment: requests.pause,
    w.ResumeExperiment: requests.resume,
    w.CancelExperiment: requests.cancel,
    w.KillExperiment: requests.kill,
    w.StopTrial: requests.stop_trial,
    w.EditExperiment: requests.edit,
    w.PinCheckpoints: requests.pin,
    w.DeleteCheckpoints: requests.delete_checkpoints,
    w.DescribeCheckpoint: requests.describe,
    w.DeleteExperiment: requests.delete,
    w.Forgotten: requests.forgotten,
    w.ContinueExperiment: continuing.continue_experiment,
    w.DetachedBegan: continuing.detached_began,
    w.DetachedSaved: continuing.detached_saved,
    w.DetachedEnded: continuing.detached_ended,
}
HAPPENED: dict[type[c.Happening], Callable[[Own, Any, float], Wishes]] = {
    c.RunBegan: happenings.began,
    c.RunEnded: happenings.run_ended,
    c.CheckpointSaved: happenings.saved,
    c.TaskEnded: happenings.task_ended,
    c.Refused: happenings.refused,
}


class ExperimentController:
    kind = KIND

    def __init__(self, make_method: MakeMethod = method_for) -> None:
        self._make_method = make_method
        self._frozen: msgspec.msgpack.Decoder[Frozen] = msgspec.msgpack.Decoder(Frozen)

    def open(self, controller: str, spec: bytes) -> Own:
        try:
            how = opening(spec)
        except msgspec.MsgspecError as error:
            raise BadRequest(
                str(error), object=f"experiment {controller}", next_step="Send what new_experiment or reopen gives."
            ) from error
        if isinstance(how, New):
            method = self._make_method(how.spec)
            return Own(opened(controller, how.spec, how.paused), method, method.open())
        try:
            own = self.load(how.archive)
        except msgspec.MsgspecError as error:
            raise BadRequest(
                f"this is no archive: {error}", object=f"experiment {controller}", next_step="Send a whole archive."
            ) from error
        if own.exp.experiment != controller:
            raise BadRequest(
                f"this is the archive of {own.exp.experiment}",
                object=f"experiment {controller}",
                next_step="Open it under its own id.",
            )
        own.waits = True
        return own

    def decide(self, own: Own, happening: c.Happening, now: float, rng: Random) -> Wishes:
        match happening:
            case c.Opened():
                yield from self._begin(own, now)
                if own.waits:
                    return
            case c.Told(payload):
                yield from self._told(own, payload, now)
            case c.Woken() | c.MemberGone():
                pass
            case _:
                yield from HAPPENED[type(happening)](own, happening, now)
        yield from settle(own, now)

    def _begin(self, own: Own, now: float) -> Wishes:
        if own.waits:
            yield c.Wake(now + PATIENCE_S)
            return
        yield wish(n.Began(now))
        state = ExperimentState.PAUSED if own.exp.paused_at_first else ExperimentState.ACTIVE
        yield from move(own, state, now)
        yield from begin_searcher(own)
        yield from feed(own, s.Began(), now)

    def _told(self, own: Own, payload: bytes, now: float) -> Wishes:
        try:
            said = w.heard(payload)
        except msgspec.MsgspecError as error:
            raise BadRequest(
                str(error), object=f"experiment {own.exp.experiment}", next_step="Say one of experiment_words."
            ) from error
        yield from SAID[type(said)](own, said, now)

    def apply(self, own: Own, note: bytes) -> Own:
        """The same value, changed in place: see ``machine/experiment.py``."""
        fact = n.noted(note)
        fold(own.exp, fact)
        if isinstance(fact, n.Remembered):
            own.search = own.method.apply(own.search, fact.fact)
        return own

    def rows(self, own: Own, notes: Sequence[bytes]) -> Iterable[View | Gone]:
        facts = [n.noted(note) for note in notes]
        found: list[Any] = list(rows.changed(own, facts))
        if any(isinstance(fact, n.Closing) for fact in facts):
            found.append(ExperimentArchive(key=own.exp.experiment, payload=self.dump(own)))
        return found

    def dump(self, own: Own) -> bytes:
        return msgspec.msgpack.encode(Frozen(own.exp, own.method.dump(own.search)))

    def load(self, payload: bytes) -> Own:
        frozen = self._frozen.decode(payload)
        method = self._make_method(frozen.exp.spec)
        return Own(frozen.exp, method, method.load(frozen.search))
