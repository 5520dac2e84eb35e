"""``clutch run --search``: a search without a file, from options to a configuration. Pure but for what it imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest

PYTHON = ".py"


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about a search on the command line."""

    hyperparameters: Sequence[str]
    trials: int = 16
    method: str = ""
    """Empty: ``adaptive_asha`` with ``max_time``; ``grid`` if every range has a count or names its values and one has a
    count; else ``random``."""
    metric: str = "loss"
    maximize: bool = False
    max_time: int = 0
    concurrent: int = 0


def config_of(command: Sequence[str], search: Search, wish: dict[str, Any]) -> dict[str, Any]:
    """The configuration of an experiment that runs this command with each choice of hyperparameters."""
    from clutch.workloads.experiment.config.options import search_options

    if not command:
        raise BadRequest(
            "there is no command", object="run", next_step="Write it last: clutch run --search ... train.py"
        )
    hyperparameters = search_options(search.hyperparameters)
    ranges = [axis for axis in axes(hyperparameters) if axis["type"] != "const"]
    if not ranges:
        raise BadRequest(
            "nothing is searched: every trial would have the same hyperparameters",
            object=f"--search {' --search '.join(search.hyperparameters)}",
            next_step="Give one of them a range, as lr=log(1e-5,1e-1).",
        )
    config: dict[str, Any] = {
        "name": wish["name"] or command[-1].rpartition("/")[2] or "search",
        "entrypoint": list(as_program(command)),
        "hyperparameters": hyperparameters,
        "searcher": _searcher(search, is_grid=_is_grid(ranges)),
        "resources": {"resource_pool": wish["pool"], "priority": wish["priority"]},
        "max_restarts": wish["max_restarts"],
    }
    if wish["slots"] is not None:
        config["resources"]["slots_per_trial"] = wish["slots"]
    if wish["launch"]:
        own = ":" in wish["launch"]
        config["launch"] = {"name": "class", "class": wish["launch"]} if own else wish["launch"]
    if wish["environment"]:
        config["environment"] = {"environment_variables": wish["environment"]}
    if wish["image"]:
        config.setdefault("environment", {})["image"] = wish["image"]
    return config


def as_program(command: Sequence[str]) -> tuple[str, ...]:
    """A Python file is run by Python."""
    return ("python", *command) if command[0].endswith(PYTHON) else tuple(command)


def axes(hyperparameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every hyperparameter, at whatever depth."""
    for one in hyperparameters.values():
        if isinstance(one.get("type"), str):
            yield one
        else:
            yield from axes(one)


def _is_grid(ranges: Sequence[dict[str, Any]]) -> bool:
    counted = ["count" in axis for axis in ranges]
    return any(counted) and all(has or "vals" in axis for has, axis in zip(counted, ranges, strict=True))


def _searcher(search: Search, *, is_grid: bool) -> dict[str, Any]:
    method = search.method or ("adaptive_asha" if search.max_time else "grid" if is_grid else "random")
    found: dict[str, Any] = {"name": method, "metric": search.metric, "smaller_is_better": not search.maximize}
    if method not in ("single", "grid"):
        found["max_trials"] = search.trials
    if search.max_time:
        found["max_time"] = search.max_time
    if search.concurrent:
        found["max_concurrent_trials"] = search.concurrent
    return found
