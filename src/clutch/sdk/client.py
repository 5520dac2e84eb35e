"""``clutch.Client``: a cluster as a blocking object.

Everything the API can do is a ``Call`` (``sdk.calls``, ``sdk.access_calls``) that ``perform`` carries out; what people
do most has a method of its own.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import msgspec

from clutch.sdk import calls, experiment_calls
from clutch.sdk.call import Call, decode, rebuild
from clutch.sdk.code import Packed, Progress, pack
from clutch.sdk.connection import Address, Broken, Connections, Unreached, parse_address
from clutch.sdk.experiment import Checkpoint, Experiment, Trial
from clutch.sdk.retry import STATUSES, Attempts, Mishap, explain
from clutch.sdk.task import Task
from clutch.sdk.where import Given, find, split_masters, surroundings
from clutch.sdk.wish import Wish, submission
from clutch.wire.api import Page, SubmitTask
from clutch.wire.errors import ClutchError, NotFound
from clutch.wire.experiment_api import AnswerSearch, SearchEvents, SubmitExperiment
from clutch.wire.experiment_views import ExperimentView
from clutch.wire.version import VERSION
from clutch.wire.views import TaskView

T = TypeVar("T")
PATIENCE_S = 30.0
PIECE_BYTES = 64 * 2**10
SILENCE_S = 45.0
"""The longest a stream may say nothing at all; then its reader asks again from where it was."""


class Client:
    """A cluster. ``masters`` is one address, several (standbys), or nothing: then the login or ``clutch up`` of this
    machine is used. ``patience_s`` is how long a call is tried again while no master answers."""

    def __init__(
        self,
        masters: str | Sequence[str] = (),
        token: str = "",
        *,
        ca_file: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        named = split_masters(masters) if isinstance(masters, str) else tuple(masters)
        if not named:
            where = find(surroundings(), Given(token=token, ca_file=ca_file))
            named, token, ca_file = where.masters, where.token, where.ca_file
        self.addresses: tuple[Address, ...] = tuple(parse_address(text) for text in named)
        self.patience_s = patience_s
        self._connections = Connections(token, ca_file, f"clutch/{VERSION}")
        self._current = 0

    @classmethod
    def find(cls, environment: Mapping[str, str], *, patience_s: float = PATIENCE_S) -> Self:
        """The cluster that an environment names (the process's own: CLUTCH_MASTER, CLUTCH_TOKEN), or this machine's."""
        where = find(environment)
        return cls(where.masters, where.token, ca_file=where.ca_file, patience_s=patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connections.close()

    # -- calls ----------------------------------------------------------------------------------------------------

    def perform(self, call: Call[T], *, packed: Packed | None = None, progress: Progress | None = None) -> T:
        """The answer of a call, however many tries and masters that takes."""
        attempts = self._attempts(call)
        while True:
            body = packed.chunks(progress) if packed is not None else None
            size = packed.size_bytes if packed is not None else 0
            address = self.addresses[attempts.index]
            try:
                status, answer = self._connections.ask(address, call, attempts.answer_s(call.answer_s), body, size)
            except Unreached as error:
                self._pause(attempts, Mishap.UNREACHED, explain(Mishap.UNREACHED, str(error), self._names()))
            except Broken as error:
                self._pause(attempts, Mishap.BROKEN, explain(Mishap.BROKEN, str(error), str(address)))
            else:
                if status not in STATUSES:
                    self._current = attempts.index
                    return decode(call, status, answer)
                self._pause(attempts, STATUSES[status], rebuild(status, answer, call))

    def lines(self, call: Call[Any], *, silence_s: float = SILENCE_S) -> Iterator[bytes]:
        """The lines of a streamed answer as they come, empty ones too; one that broke off is not given, because it
        comes again. Ends when the master ends it; ``Unavailable`` when it breaks, and then the caller asks again from
        where it was."""
        rest = b""
        for piece in self.pieces(call, silence_s=silence_s):
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole

    def pieces(self, call: Call[Any], *, silence_s: float = SILENCE_S) -> Iterator[bytes]:
        """The bytes of a streamed answer as they come."""
        attempts = self._attempts(call)
        while True:
            address = self.addresses[attempts.index]
            try:
                with self._connections.stream(address, call, silence_s) as response:
                    if response.status not in STATUSES:
                        self._current = attempts.index
                        if response.status >= 400:
                            raise rebuild(response.status, response.read(), call)
                        yield from _pieces(response, str(address))
                        return
                    error: ClutchError = rebuild(response.status, response.read(), call)
                    mishap = STATUSES[response.status]
            except Unreached as unreached:
                mishap, error = Mishap.UNREACHED, explain(Mishap.UNREACHED, str(unreached), self._names())
            except Broken as broken:
                mishap, error = Mishap.BROKEN, explain(Mishap.BROKEN, str(broken), str(address))
            self._pause(attempts, mishap, error)

    def items(self, call: Call[Page[T]]) -> Iterator[T]:
        """Everything of a list, page by page."""
        while True:
            page = self.perform(call)
            yield from page.items
            if not page.next:
                return
            kept = tuple(pair for pair in call.query if pair[0] != "after")
            call = msgspec.structs.replace(call, query=(*kept, ("after", page.next)))

    def _attempts(self, call: Call[Any]) -> Attempts:
        until = time.monotonic() + self.patience_s
        return Attempts(len(self.addresses), repeatable=call.repeatable, until=until, first=self._current)

    def _pause(self, attempts: Attempts, mishap: Mishap, error: ClutchError) -> None:
        pause = attempts.failed(mishap, time.monotonic(), random.random())
        if pause is None:
            raise error
        time.sleep(pause)

    @property
    def address(self) -> Address:
        """The master that answered last."""
        return self.addresses[self._current]

    def _names(self) -> str:
        return ", ".join(str(address) for address in self.addresses)

    # -- what people do most --------------------------------------------------------------------------------------

    def run(
        self,
        *argv: str,
        code: str | Path | None = ".",
        progress: Progress | None = None,
        **wish: Unpack[Wish],
    ) -> Task:
        """A command on the cluster, in a copy of the folder ``code`` (None: in an empty one)."""
        digest = self.upload(Path(code), progress=progress) if code is not None else ""
        return self.submit(submission(argv, digest, os.urandom(16).hex(), wish))

    def submit(self, task: SubmitTask) -> Task:
        """A task as it stands. Without a key it gets one, so that it is safe to try again."""
        if not task.key:
            task = msgspec.structs.replace(task, key=os.urandom(16).hex())
        submitted = self.perform(calls.submit(task))
        return Task(self, submitted.task, submitted.name)

    def upload(self, directory: Path, *, progress: Progress | None = None) -> str:
        """The digest of a working directory that the cluster has from then on. Only what it lacks is sent."""
        with pack(directory) as packed:
            return self.upload_packed(packed, progress=progress)

    def upload_packed(self, packed: Packed, *, progress: Progress | None = None) -> str:
        try:
            self.perform(calls.has_code(packed.digest))
        except NotFound:
            self.perform(calls.put_code(packed.digest), packed=packed, progress=progress)
        return packed.digest

    def create_experiment(
        self,
        config: Mapping[str, Any],
        code: str | Path | None = ".",
        *,
        progress: Progress | None = None,
        **about: Any,
    ) -> Experiment:
        """An experiment of this configuration, its code a copy of the folder ``code`` (None: none). ``about``:
        ``source``, ``template``, ``workspace``, ``project``, ``parent``, ``paused``, ``key``."""
        digest = self.upload(Path(code), progress=progress) if code is not None else ""
        about.setdefault("key", os.urandom(16).hex())
        wanted = msgspec.convert({"config": dict(config), "code": digest, **about}, SubmitExperiment)
        submitted = self.perform(experiment_calls.submit_experiment(wanted))
        return Experiment(self, submitted.experiment, submitted.name)

    def experiment(self, experiment: str) -> Experiment:
        """An experiment by its id, its name or a unique prefix. ``NotFound`` if there is none."""
        found = self.perform(experiment_calls.get_experiment(experiment)).view
        return Experiment(self, found.key, found.name)

    def experiments(self, **filters: Any) -> Iterator[ExperimentView]:
        """Experiments, the newest first; see ``experiment_calls.list_experiments`` for the filters."""
        return self.items(experiment_calls.list_experiments(**filters))

    def trial(self, trial: str) -> Trial:
        """A trial by ``EXPERIMENT.NUMBER``."""
        return Trial(self, self.perform(experiment_calls.get_trial(trial)).view.key)

    def checkpoint(self, checkpoint: str) -> Checkpoint:
        return Checkpoint(self, self.perform(experiment_calls.get_checkpoint(checkpoint)).row.key)

    def search_events(self, experiment: str, after: int, timeout_s: float) -> SearchEvents:
        """What a search method of the user's own has not answered yet (``SearchRunner`` drives one)."""
        return self.perform(experiment_calls.search_events(experiment, after, timeout_s))

    def answer_search(self, experiment: str, answer: AnswerSearch) -> None:
        self.perform(experiment_calls.answer_search(experiment, answer))

    def task(self, task: str) -> Task:
        """A task by its id, its name or a unique prefix. ``NotFound`` if there is none."""
        found = self.perform(calls.get_task(task)).task
        return Task(self, found.key, found.name)

    def tasks(self, **filters: Any) -> Iterator[TaskView]:
        """Tasks, the newest first; see ``calls.list_tasks`` for the filters."""
        return self.items(calls.list_tasks(**filters))


def _pieces(response: HTTPResponse, where: str) -> Iterator[bytes]:
    """What an answer brings. Not read by lines: ``readline`` takes a connection that broke between two chunks for the
    end of the answer."""
    while True:
        try:
            piece = response.read1(PIECE_BYTES)
        except (OSError, HTTPException, ValueError) as error:
            raise explain(Mishap.BROKEN, str(error) or type(error).__name__, where) from error
        if not piece:
            return
        yield piece
