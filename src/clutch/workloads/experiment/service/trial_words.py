"""What trials, and the processes of custom searches, hear and say: operations, early exits, metadata, events.

A trial that asks what to do next waits for an answer other than ``wait``; it is woken when its own answer has changed,
not whenever its experiment notes something.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from clutch.core.recorded import Recorded
from clutch.core.state import State
from clutch.master.push.service import Member, poll_s
from clutch.master.services import Services
from clutch.wire.errors import BadRequest, ClutchError, Conflict, NotFound, TooLarge
from clutch.wire.experiment_api import (
    AnswerSearch,
    BestValidation,
    FinishOperation,
    OperationView,
    SayEarlyExit,
    SearchEvents,
)
from clutch.wire.experiment_views import TrialView
from clutch.wire.experiment_words import EarlyExit, OperationDone, SearchAnswered, SetMetadata
from clutch.wire.experiments import KIND, trial_of
from clutch.wire.facts import ControllerClosed, ControllerNoted
from clutch.wire.metrics import heard
from clutch.workloads.experiment.controller.reading import best_of, operation_of
from clutch.workloads.experiment.service.own import search_events_of
from clutch.workloads.experiment.service.telling import Teller

WAIT, OVER = "wait", "over"
REASONS = ("invalid_hp", "done")
METADATA_MAX_BYTES = 64 * 2**10
SEARCH_STATE_MAX_BYTES = 2**20
DETAIL_MAX = 2_000

Answer = Callable[[State], Any]


class TrialWords:
    """``heard`` is the loop's listener."""

    def __init__(self, services: Services, teller: Teller) -> None:
        self._services = services
        self._teller = teller
        self._waiting: dict[str, dict[asyncio.Future[None], tuple[Answer, Any]]] = {}
        """By experiment: who waits, for an answer other than this one."""
        self._searched_at: dict[str, float] = {}
        """By experiment: when somebody last asked for its search's events. Soft."""

    def heard(self, recorded: Iterable[Recorded]) -> None:
        noted: dict[str, None] = {}
        for entry in recorded:
            if isinstance(entry.fact, ControllerNoted | ControllerClosed):
                noted[entry.fact.controller] = None
        for experiment in noted:
            for rung, (answer, known) in self._waiting.get(experiment, {}).items():
                if not rung.done() and self._is_other(answer, known):
                    rung.set_result(None)

    def _is_other(self, answer: Answer, known: Any) -> bool:
        try:
            return bool(answer(self._services.loop.state) != known)
        except ClutchError:  # whoever waits has no standing any more, and is told so when it looks
            return True

    async def _changed(self, experiment: str, answer: Answer, known: Any, task: str, left_s: float) -> None:
        """Until the answer is another one, the task's bell rings (it must leave, or the master ends), or time is up."""
        bells = self._services.push.bells
        rung: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(experiment, {})
        waiting[rung] = (answer, known)
        bell = asyncio.ensure_future(bells.wait(task, left_s))
        try:
            await asyncio.wait((rung, bell), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if bell.done():
                bell.result()
        finally:
            bell.cancel()
            waiting.pop(rung, None)
            if not waiting and self._waiting.get(experiment) is waiting:
                del self._waiting[experiment]

    async def _poll(
        self, experiment: str, answer: Answer, enough: Callable[[Any], bool], wait: tuple[str, float]
    ) -> Any:
        loop = asyncio.get_running_loop()
        task, timeout_s = wait
        until = loop.time() + poll_s(timeout_s)
        while True:
            found = answer(await self._services.loop.settled())
            left_s = until - loop.time()
            if enough(found) or left_s <= 0:
                return found
            await self._changed(experiment, answer, found, task, left_s)

    # -- what to do next -----------------------------------------------------------------------------------------

    async def operation(self, member: Member, timeout_s: float) -> OperationView:
        """What the trial shall do; waits while that is to wait. A trial that is asked to leave is answered at once."""
        task = member[0].task
        experiment = self._experiment_of(task)

        def answer(state: State) -> tuple[OperationView, bool]:
            workload = state.workloads.get(experiment)
            known = OperationView(state=OVER) if workload is None else operation_of(workload.own, task)
            return known, self._services.push.stand(member).preemption(0.0).asked

        def enough(found: tuple[OperationView, bool]) -> bool:
            return found[0].state != WAIT or found[1]

        found = await self._poll(experiment, answer, enough, (task, timeout_s))
        view: OperationView = found[0]
        return view

    async def operation_done(self, member: Member, said: FinishOperation) -> OperationView:
        """It has trained up to this length. What it shall do then, as far as that is known already."""
        task, epoch = member[0].task, member[1].epoch
        value = heard(said.value) if said.value is not None else None
        if isinstance(value, str):
            raise BadRequest(f"{value[:80]!r} is not a number", object=f"trial {task}", path="value")
        experiment = self._experiment_of(task)
        word = OperationDone(task=task, epoch=epoch, length=said.length, value=None if value is None else float(value))
        await self._say(experiment, word, member)
        return await self.operation(member, 0.0)

    async def early_exit(self, member: Member, said: SayEarlyExit) -> None:
        if said.reason not in REASONS:
            raise BadRequest(
                f"{said.reason[:80]!r} is no reason to exit early",
                object=f"trial {member[0].task}",
                path="reason",
                next_step=f"Say one of: {', '.join(REASONS)}.",
            )
        word = EarlyExit(member[0].task, member[1].epoch, said.reason, said.detail[:DETAIL_MAX])
        await self._say(self._experiment_of(member[0].task), word, member)

    async def _say(self, experiment: str, word: OperationDone | EarlyExit | SetMetadata, member: Member) -> None:
        self._services.push.stand(member)
        try:
            await self._teller.tell(experiment, word, f"task:{member[0]}")
        except NotFound as error:
            if error.object == f"workload {experiment}":
                raise Conflict("its experiment is over", object=f"experiment {experiment}") from error
            raise

    def _experiment_of(self, task: str) -> str:
        found = trial_of(task)
        workload = self._services.loop.state.workloads.get(found[0]) if found is not None else None
        if found is None or workload is None or workload.kind != KIND:
            raise NotFound(
                "it is no trial of a live experiment", object=f"task {task}", next_step="Ask only from inside a trial."
            )
        return found[0]

    # -- what it keeps, and what the others reached --------------------------------------------------------------

    async def set_metadata(self, member: Member, metadata: dict[str, Any]) -> dict[str, Any]:
        size = len(json.dumps(metadata))
        if size > METADATA_MAX_BYTES:
            raise TooLarge(f"{size} bytes of JSON, at most {METADATA_MAX_BYTES}", object="metadata", path="metadata")
        await self._say(self._experiment_of(member[0].task), SetMetadata(member[0].task, metadata), member)
        return await self.metadata(member)

    async def metadata(self, member: Member) -> dict[str, Any]:
        self._services.push.stand(member)
        experiment = self._experiment_of(member[0].task)
        number = trial_of(member[0].task)
        assert number is not None
        view = await self._services.journal.view(TrialView.table, f"{experiment}.{number[1]}")
        found: dict[str, Any] = json.loads(view.metadata) if isinstance(view, TrialView) and view.metadata else {}
        return found

    async def best(self, member: Member) -> BestValidation:
        self._services.push.stand(member)
        experiment = self._experiment_of(member[0].task)
        return best_of((await self._services.loop.settled()).workload(experiment).own)

    # -- custom searches -----------------------------------------------------------------------------------------

    async def search_events(self, experiment: str, after: int, timeout_s: float) -> SearchEvents:
        """Events behind a cursor; waits for one. ``over`` when nothing more will come."""

        def answer(state: State) -> SearchEvents:
            workload = state.workloads.get(experiment)
            if workload is None:
                return SearchEvents(events=(), answered=after, over=True)
            return search_events_of(workload.own, after)

        def enough(found: SearchEvents) -> bool:
            self._searched_at[experiment] = self._services.clock.now()
            return bool(found.events) or found.over

        events: SearchEvents = await self._poll(experiment, answer, enough, (f"search:{experiment}", timeout_s))
        return events

    def search_silent_s(self, experiment: str) -> float:
        """For how long nobody has asked for its search's events; since this master leads, if nobody ever has."""
        since = self._searched_at.get(experiment, self._services.loop.led_at)
        return self._services.clock.now() - since

    async def answer_search(self, experiment: str, said: AnswerSearch, cause: str) -> None:
        if len(said.state) > SEARCH_STATE_MAX_BYTES:
            raise TooLarge(
                f"its state has {len(said.state)} bytes, at most {SEARCH_STATE_MAX_BYTES} are kept",
                object=f"search of {experiment}",
                path="state",
            )
        word = SearchAnswered(cursor=said.cursor, operations=said.operations, state=said.state)
        await self._teller.tell(experiment, word, cause)
