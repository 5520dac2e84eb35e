"""The tree of Parzen estimators as a custom search method, which a task of its experiment runs as a module.

What a trial tries is a function of the seed, the trial's number and the trials known when it is made: the estimator is
built anew for each, so there is no hidden state, and a process that was killed proposes what it would have proposed.
Trials that still run count as if they were bad, so that several at once do not try the same; trials that failed,
diverged or refused their hyperparameters count as the worst.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest
from clutch.wire.experiment_words import CloseTrial, MakeTrial, Operation, SearchEvent, SetProgress, Shutdown, TrainTo
from clutch.wire.experiments import Categorical, Const, Double, Hyperparameter, Int, Log, Nested, Tpe
from clutch.workloads.experiment.search.sampling import Path, trial_seed
from clutch.workloads.experiment.search.turns import INVALID_ALWAYS, INVALID_PER_TRIAL
from clutch.workloads.experiment.search_process.runner import run_as_task

STATE_BYTES = 900_000
"""Beyond this the oldest results are forgotten, a tenth at a time: a master keeps at most 1 MiB."""

# -- what it remembers --------------------------------------------------------------------------------------------


class Settings(msgspec.Struct):
    hyperparameters: dict[str, Hyperparameter]
    method: Tpe
    seed: int
    max_time: int = 0


class Known(msgspec.Struct, array_like=True):
    """A trial: where it is in the space, and the least value it has shown."""

    number: int
    point: list[float]
    best: float = math.inf
    live: bool = True


class Memory(msgspec.Struct):
    settings: Settings | None = None
    known: list[Known] = []
    made: int = 0
    invalid: int = 0
    useful: int = 0
    failed: int = 0
    over: bool = False


# -- the space ----------------------------------------------------------------------------------------------------


class Dimension(msgspec.Struct, frozen=True):
    path: Path
    of: Int | Double | Log | Categorical

    @property
    def name(self) -> str:
        return "\x1f".join(self.path)

    def value(self, coordinate: float) -> Any:
        match self.of:
            case Int():
                return round(coordinate)
            case Double():
                return coordinate
            case Log(base=base):
                return base**coordinate
            case Categorical(vals=values):
                return values[round(coordinate)]


def dimensions(space: dict[str, Hyperparameter], path: Path = ()) -> tuple[Dimension, ...]:
    """What is searched, sorted by path: the order in a spec means nothing."""
    return tuple(sorted(_dimensions(space, path), key=lambda dimension: dimension.path))


def _dimensions(space: dict[str, Hyperparameter], path: Path) -> Iterator[Dimension]:
    for name, inner in space.items():
        if isinstance(inner, Nested):
            yield from _dimensions(inner.vals, (*path, name))
        elif not isinstance(inner, Const):
            yield Dimension((*path, name), inner)


def hparams_at(space: tuple[Dimension, ...], point: list[float]) -> dict[str, Any]:
    """The hyperparameters of a point; constants are not among them, the master lays these over its own."""
    found: dict[str, Any] = {}
    for dimension, coordinate in zip(space, point, strict=True):
        inside = found
        for name in dimension.path[:-1]:
            inside = inside.setdefault(name, {})
        inside[dimension.path[-1]] = dimension.value(coordinate)
    return found


# -- the estimator ------------------------------------------------------------------------------------------------


def load_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise BadRequest(
            "searcher tpe needs optuna, which is not installed where its process runs",
            object="searcher.name",
            next_step="pip install 'clutch[search]'",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def propose(space: tuple[Dimension, ...], known: list[Known], seed: int, startup_trials: int) -> list[float]:
    """The next point. ``known``: in the order in which they were made."""
    if not space:
        return []
    optuna = load_optuna()
    with warnings.catch_warnings():  # some releases call these options experimental
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=startup_trials, multivariate=True, constant_liar=True
        )
        study = optuna.create_study(direction="minimize", sampler=sampler)
        ranges = {dimension.name: _range(optuna, dimension.of) for dimension in space}
        for one in known:
            study.add_trial(_told(optuna, space, ranges, one))
        drawn = study.ask(ranges).params
    return [float(drawn[dimension.name]) for dimension in space]


def _told(optuna: Any, space: tuple[Dimension, ...], ranges: dict[str, Any], one: Known) -> Any:
    params = {
        dimension.name: coordinate if isinstance(dimension.of, Double | Log) else round(coordinate)
        for dimension, coordinate in zip(space, one.point, strict=True)
    }
    state = optuna.trial.TrialState.RUNNING if one.live else optuna.trial.TrialState.COMPLETE
    value = None if one.live else one.best
    return optuna.trial.create_trial(state=state, value=value, params=params, distributions=ranges)


def _range(optuna: Any, inner: Int | Double | Log | Categorical) -> Any:
    """A logarithmic one is searched by its exponent, one of values by their index: they may be any JSON."""
    match inner:
        case Int(minval=low, maxval=high):
            return optuna.distributions.IntDistribution(low, high)
        case Double(minval=low, maxval=high) | Log(minval=low, maxval=high):
            return optuna.distributions.FloatDistribution(low, high)
        case Categorical(vals=values):
            return optuna.distributions.CategoricalDistribution(tuple(range(len(values))))


# -- the method ---------------------------------------------------------------------------------------------------


class TpeMethod:
    """A ``runner.Method``."""

    def __init__(self) -> None:
        self.memory = Memory()

    def save(self) -> bytes:
        saved = msgspec.msgpack.encode(self.memory)
        while len(saved) > STATE_BYTES and any(not one.live for one in self.memory.known):
            self._forget()
            saved = msgspec.msgpack.encode(self.memory)
        return saved

    def load(self, state: bytes) -> None:
        self.memory = msgspec.msgpack.decode(state, type=Memory)

    def on_event(self, event: SearchEvent) -> Iterable[Operation]:
        memory = self.memory
        if event.kind == "begin":
            memory.settings = msgspec.convert(event.hparams, Settings)
            return self._go_on()
        settings = self._settings()
        if event.kind == "extended":
            more = msgspec.structs.replace(
                settings.method, max_trials=max(settings.method.max_trials, int(event.values.get("max_trials", 0)))
            )
            settings.method = more
            settings.max_time = max(settings.max_time, int(event.values.get("max_time", 0)))
            memory.over = False
            longer = [TrainTo(_request(one.number), settings.max_time) for one in memory.known if one.live]
            return (*(longer if settings.max_time else ()), *self._go_on())
        one = self._known(event.request)
        if one is None:
            return ()
        if event.value is not None:
            one.best = min(one.best, event.value)
        if event.kind == "created" and event.reason == "continued":
            one.live = True
        if event.kind == "trained" and 0 < settings.max_time <= event.length:
            return (CloseTrial(event.request),)
        if event.kind in ("closed", "exited"):
            one.live = False
            memory.useful += event.kind == "closed"
            memory.failed += event.reason == "failed"
            memory.invalid += event.reason == "invalid"
            return self._go_on()
        return ()

    def _go_on(self) -> tuple[Operation, ...]:
        """New trials while there is room; the end when there is nothing to do."""
        memory, settings = self.memory, self._settings()
        wanted = settings.method.max_trials
        width = settings.method.max_concurrent_trials or wanted
        gave_up = memory.invalid > INVALID_PER_TRIAL * wanted + INVALID_ALWAYS
        operations: list[Operation] = []
        while not gave_up and memory.made - memory.invalid < wanted and self._live() < width:
            operations += self._make()
        counted = memory.made - memory.invalid
        operations.append(SetProgress(max(0, counted - self._live()) / wanted))
        if not self._live() and not memory.over:
            memory.over = True
            detail = f"{memory.invalid} trials refused their hyperparameters" if gave_up else ""
            failed = not memory.useful and (memory.failed > 0 or gave_up)
            operations.append(Shutdown(failed=failed, detail=detail or ("every trial failed" if failed else "")))
        return tuple(operations)

    def _make(self) -> list[Operation]:
        memory, settings = self.memory, self._settings()
        space = dimensions(settings.hyperparameters)
        memory.made += 1
        number = memory.made
        seed = trial_seed(settings.seed, number)
        point = propose(space, memory.known, seed, settings.method.startup_trials)
        memory.known.append(Known(number, point))
        request = _request(number)
        made: list[Operation] = [MakeTrial(request, hparams_at(space, point))]
        return [*made, TrainTo(request, settings.max_time)] if settings.max_time else made

    def _live(self) -> int:
        return sum(one.live for one in self.memory.known)

    def _known(self, request: str) -> Known | None:
        return next((one for one in self.memory.known if _request(one.number) == request), None)

    def _settings(self) -> Settings:
        if self.memory.settings is None:
            raise BadRequest(
                "the state of this search has no beginning",
                object="search process",
                next_step="Start the search again: fork its experiment.",
            )
        return self.memory.settings

    def _forget(self) -> None:
        """The oldest tenth of the results."""
        ended = [one.number for one in self.memory.known if not one.live]
        oldest = ended[: max(1, len(ended) // 10)]
        self.memory.known = [one for one in self.memory.known if one.number not in oldest]


def _request(number: int) -> str:
    return f"tpe-{number}"


def main() -> None:
    try:
        load_optuna()
        run_as_task(TpeMethod())
    except BadRequest as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
