"""How the process of a search method reaches the experiment that it searches for: two questions, over HTTP.

``OutsideSearch`` asks as a user, from anywhere. ``MemberSearch`` asks as the experiment's own task of kind
``searcher``, with the token that every member has; which experiment it is follows from that.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote

import msgspec

from clutch.runtime.http import MasterConnection
from clutch.runtime.info import Info
from clutch.wire.api import API
from clutch.wire.errors import BadRequest
from clutch.wire.experiment_api import AnswerSearch, SearchEvents
from clutch.wire.push import RUN

TRY_S = 60.0
"""For so long one question is asked again, at every address, while no master answers."""


class SearchClient(Protocol):
    """Whoever holds the events of an experiment's search. Both may be asked twice."""

    def search_events(self, experiment: str, after: int, timeout_s: float) -> SearchEvents:
        """What comes behind the cursor ``after``; waits for something at most so long."""
        ...

    def answer_search(self, experiment: str, answer: AnswerSearch) -> None: ...


class OutsideSearch:
    """As a user, with a token of theirs."""

    def __init__(self, masters: tuple[str, ...], token: str, *, ca_file: str = "", try_s: float = TRY_S) -> None:
        self._connection = MasterConnection(masters, token, ca_file=ca_file)
        self._try_s = try_s

    def search_events(self, experiment: str, after: int, timeout_s: float) -> SearchEvents:
        return _read(self._connection, self._place(experiment), after, timeout_s, self._try_s)

    def answer_search(self, experiment: str, answer: AnswerSearch) -> None:
        _write(self._connection, self._place(experiment), answer, self._try_s)

    def close(self) -> None:
        self._connection.close()

    def _place(self, experiment: str) -> str:
        return f"{API}/experiments/{quote(experiment, safe='')}/search"


class MemberSearch:
    """As a task of the experiment."""

    def __init__(self, info: Info, *, try_s: float = TRY_S) -> None:
        if not info.on_cluster:
            raise BadRequest(
                "this process is no task of a cluster",
                object="search process",
                next_step="Name the experiment and use OutsideSearch.",
            )
        self._connection = MasterConnection(info.masters, info.token, ca_file=info.ca_file)
        self._try_s = try_s

    def search_events(self, experiment: str, after: int, timeout_s: float) -> SearchEvents:
        return _read(self._connection, f"{RUN}/search", after, timeout_s, self._try_s)

    def answer_search(self, experiment: str, answer: AnswerSearch) -> None:
        _write(self._connection, f"{RUN}/search", answer, self._try_s)

    def close(self) -> None:
        self._connection.close()


def _read(connection: MasterConnection, place: str, after: int, timeout_s: float, try_s: float) -> SearchEvents:
    path = f"{place}/events?after={after}&timeout_s={timeout_s}"
    answer = connection.ask("GET", path, within_s=try_s, waits_s=timeout_s)
    return msgspec.json.decode(answer, type=SearchEvents)


def _write(connection: MasterConnection, place: str, answer: AnswerSearch, try_s: float) -> None:
    connection.ask("POST", f"{place}/operations", msgspec.json.encode(answer), within_s=try_s)
