"""The loop around a search method of a user's own: read events, let the method answer, hand its answer in.

The master keeps the cursor and the method's state, together, with every answer. So nothing is lost when this process is
killed at any point, or the master is: whoever starts again is given the state that belongs to the last answer, and the
events behind it. An answer that was handed in and not acknowledged is handed in again; the second one is ignored.

One process answers at a time. A second one for the same experiment does no harm to the search, but the two see each
other's trials only when they start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from clutch.runtime.info import read_info
from clutch.wire.errors import ClutchError, NotFound, TimedOut, Unavailable
from clutch.wire.experiment_api import AnswerSearch, SearchEvents
from clutch.wire.experiment_words import Operation, SearchEvent
from clutch.workloads.experiment.search_process.client import MemberSearch, SearchClient

T = TypeVar("T")

POLL_S = 30.0
PATIENCE_S = 3600.0
"""For so long a process waits for a master that does not answer."""
PAUSE_S = 0.2
ENDED = "ended"


class Method(Protocol):
    """What a user writes. ``save`` gives at most 1 MiB, from which ``load`` makes it what it was."""

    def on_event(self, event: SearchEvent) -> Iterable[Operation]:
        """What shall happen now. The first event is ``begin``; its ``hparams`` describe the experiment."""
        ...

    def save(self) -> bytes: ...

    def load(self, state: bytes) -> None: ...


class SearchRunner:
    """Runs a method for an experiment until its search is over."""

    def __init__(
        self, client: SearchClient, experiment: str, method: Method, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._client = client
        self._experiment = experiment
        self._method = method
        self._patience_s = patience_s

    def run(self) -> None:
        """Returns when nothing more will come. What the method raises, and what the master refuses, is raised."""
        found = self._read(0, 0.0)
        if found.state:
            self._method.load(found.state)
        cursor = found.answered
        while True:
            if found.answered > cursor:  # somebody else has answered meanwhile: go on from where they are
                if found.state:
                    self._method.load(found.state)
                cursor = found.answered
            behind = tuple(event for event in found.events if event.number > cursor)
            if behind:
                cursor = behind[-1].number
                if self._answer(behind):
                    return
            elif found.over:
                return
            found = self._read(cursor, POLL_S)

    def _answer(self, events: tuple[SearchEvent, ...]) -> bool:
        """Whether the search is over."""
        operations = tuple(operation for event in events for operation in self._method.on_event(event))
        answer = AnswerSearch(cursor=events[-1].number, operations=operations, state=self._method.save())
        over = events[-1].kind == ENDED  # one that is followed by something was taken back
        try:
            self._patiently(lambda: self._client.answer_search(self._experiment, answer))
        except NotFound:  # the experiment has ended between its events and this answer; the next question says so
            return over
        except ClutchError:
            if not over:  # after the end there may be nobody left to tell
                raise
        return over

    def _read(self, after: int, timeout_s: float) -> SearchEvents:
        return self._patiently(lambda: self._client.search_events(self._experiment, after, timeout_s))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """The client tries for a while by itself; this is for longer outages."""
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except (Unavailable, TimedOut):
                if time.monotonic() >= until:
                    raise
                time.sleep(PAUSE_S)


def run_as_task(method: Method) -> None:
    """Run a method inside the experiment's own task of kind ``searcher``."""
    client = MemberSearch(read_info())
    try:
        SearchRunner(client, "", method).run()
    finally:
        client.close()
