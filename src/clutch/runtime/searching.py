"""What a run and its search say to each other: work to do, work done, notes about itself, what others have reached.

On the cluster a trial's experiment answers. A program that runs by itself, or a task that is no trial, has nobody to
ask: it is given one operation, as long as its caller wants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from clutch.wire.errors import BadRequest, Conflict, Unavailable, UserError

if TYPE_CHECKING:
    from clutch.runtime.trial_client import TrialClient

T = TypeVar("T")
POLL_S = 20.0
PAUSE_S = 0.5
SAY_WITHIN_S = 600.0
"""How long a word that must be durable is said again while no master answers."""
TRAIN, WAIT, OVER = "train", "wait", "over"
SHORTEST = 1
"""So that a script which only does what it is asked for does something wherever it runs."""


class InvalidHparams(UserError):
    """These hyperparameters cannot be trained with. Raised inside ``with clutch.init()`` it ends the trial; another one
    takes its place."""

    code = "invalid_hparams"


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best value of the search metric in the whole experiment so far."""

    value: float
    trial: int
    step: int


class Search(Protocol):
    """Who a run asks what to do."""

    def operation(self, timeout_s: float) -> tuple[str, int]:
        """``train`` and a length, ``wait`` or ``over``. Waits at most so long."""
        ...

    def complete(self, length: int, value: float | None) -> None: ...

    def early_exit(self, reason: str, detail: str) -> bool:
        """Whether somebody has taken note, so that the program may end as if all were well."""
        ...

    def put_metadata(self, metadata: dict[str, Any]) -> None: ...

    def metadata(self) -> dict[str, Any]: ...

    def best(self) -> Best | None: ...

    def close(self) -> None: ...


class AloneSearch:
    """Nobody searches: there is one operation, of ``length`` or, if that is 0, of the shortest. ``keep`` writes
    metadata down, if there is a place for it."""

    def __init__(
        self, length: int, found: Mapping[str, Any] | None = None, keep: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self._length = length or SHORTEST
        self._done = False
        self._metadata = dict(found or {})
        self._keep = keep

    def operation(self, timeout_s: float) -> tuple[str, int]:
        return (OVER, 0) if self._done else (TRAIN, self._length)

    def complete(self, length: int, value: float | None) -> None:
        self._done = True

    def early_exit(self, reason: str, detail: str) -> bool:
        return False

    def put_metadata(self, metadata: dict[str, Any]) -> None:
        for key, value in metadata.items():
            if value is None:
                self._metadata.pop(key, None)
            else:
                self._metadata[key] = value
        if self._keep is not None:
            self._keep(self._metadata)

    def metadata(self) -> dict[str, Any]:
        return dict(self._metadata)

    def best(self) -> Best | None:
        return None

    def close(self) -> None:
        return


class TrialSearch:
    """The trial's experiment, through its master."""

    def __init__(self, open_client: Callable[[], TrialClient]) -> None:
        self._open_client = open_client
        self._client: TrialClient | None = None

    def operation(self, timeout_s: float) -> tuple[str, int]:
        try:
            found = self._talk().operation(timeout_s)
        except Unavailable:
            return WAIT, 0
        return found.state, found.length

    def complete(self, length: int, value: float | None) -> None:
        self._patiently(lambda: self._talk().finish_operation(length, value))

    def early_exit(self, reason: str, detail: str) -> bool:
        self._patiently(lambda: self._talk().early_exit(reason, detail))
        return True

    def put_metadata(self, metadata: dict[str, Any]) -> None:
        self._patiently(lambda: self._talk().put_metadata(metadata))

    def metadata(self) -> dict[str, Any]:
        return self._patiently(lambda: self._talk().metadata())

    def best(self) -> Best | None:
        found = self._patiently(lambda: self._talk().best())
        return Best(value=found.value, trial=found.trial, step=found.step) if found.found else None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _talk(self) -> TrialClient:
        if self._client is None:
            self._client = self._open_client()
        return self._client

    def _patiently(self, call: Callable[[], T]) -> T:
        until = time.monotonic() + SAY_WITHIN_S
        while True:
            try:
                return call()
            except Unavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)


class Operation:
    """Train until ``length`` units are done in all, counted from the trial's beginning; then ``complete`` it."""

    def __init__(
        self, length: int, complete: Callable[[int, float | None], None], tell: Callable[[float], None]
    ) -> None:
        self.length = length
        self.completed = False
        self._complete = complete
        self._tell = tell

    def report_progress(self, done: float) -> None:
        """So many units are done, of ``length``."""
        self._tell(min(1.0, max(0.0, done / self.length)) if self.length else 0.0)

    def complete(self, metric: float | None = None) -> None:
        """It is trained so far. ``metric`` is the search metric there; None: that of the last validation."""
        if self.completed:
            raise Conflict("it is completed already", object=f"operation to {self.length}")
        self._complete(self.length, metric)
        self.completed = True

    def __repr__(self) -> str:
        return f"Operation(length={self.length}, completed={self.completed})"


class Surroundings(Protocol):
    """What operations need of the run they belong to."""

    def should_stop(self) -> bool: ...

    def complete(self, length: int, value: float | None) -> None: ...

    def progress(self, fraction: float) -> None: ...

    def validated(self) -> int:
        """The furthest step at which this run has validated; -1: it has not."""
        ...

    def poll_s(self) -> float:
        """How long one question may wait for its answer."""
        ...


def operations(search: Search, around: Surroundings) -> Iterator[Operation]:
    """What to do, one after the other, until nothing is left to do or the run must leave."""
    while not around.should_stop():
        asked_at = time.monotonic()
        state, length = search.operation(around.poll_s())
        if state == OVER:
            return
        if state != TRAIN:
            if time.monotonic() - asked_at < PAUSE_S:  # answered at once: nothing will come of asking at once again
                time.sleep(PAUSE_S)
            continue
        operation = Operation(length, around.complete, around.progress)
        yield operation
        if not operation.completed and not around.should_stop():
            complete_by_validation(operation, around)


def complete_by_validation(operation: Operation, around: Surroundings) -> None:
    """A run that has validated at its length, or beyond, has done what was asked. ``BadRequest`` otherwise."""
    if around.validated() < operation.length:
        raise BadRequest(
            "it was left without having been completed",
            object=f"operation to {operation.length}",
            next_step="Call operation.complete(), or run.validate(), when its length is reached.",
        )
    operation.complete()


class Metadata(MutableMapping[str, Any]):
    """Notes about a run, durable when they are made, seen by people and by later starts. Values are any JSON."""

    def __init__(self, search: Search, refuse: Callable[[str], Any] | None = None) -> None:
        """``refuse`` raises why this process may not change them."""
        self._search = search
        self._refuse = refuse
        self._known: dict[str, Any] | None = None

    def _read(self) -> dict[str, Any]:
        if self._known is None:
            self._known = self._search.metadata()
        return self._known

    def __getitem__(self, key: str) -> Any:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        self._read()[key]
        self._put({key: None})

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Several at once, which is one word to the master."""
        self._put({**dict(other), **more})

    def _put(self, changes: dict[str, Any]) -> None:
        if self._refuse is not None:
            self._refuse("change metadata")
        for key, value in changes.items():
            if type(key) is not str or not key:
                raise BadRequest(f"a key is a text, not {key!r:.60}", object="metadata")
            try:
                msgspec.json.encode(value)
            except (TypeError, msgspec.MsgspecError) as error:
                raise BadRequest(f"it is not JSON: {error}", object=f"metadata {key!r:.60}") from error
        if changes:
            self._search.put_metadata(changes)
        known = self._read()
        for key, value in changes.items():
            if value is None:
                known.pop(key, None)
            else:
                known[key] = value

    def __repr__(self) -> str:
        return repr(self._read())
