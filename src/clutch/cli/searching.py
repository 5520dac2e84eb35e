"""``clutch run --search``: a search without a file, from options to a configuration. Pure but for what it imports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from clutch.wire.errors import BadRequest

PYTHON = ".py"


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about a search on the command line."""

    hyperparameters: Sequence[str]
    trials: int = 16
    method: str = ""
    """Empty: ``grid`` if every axis has a count, ``adaptive_asha`` with ``max_time``, else ``random``."""
    metric: str = "loss"
    maximize: bool = False
    max_time: int = 0
    concurrent: int = 0


def config_of(command: Sequence[str], search: Search, wish: dict[str, Any]) -> dict[str, Any]:
    """The configuration of an experiment that runs this command with each choice of hyperparameters."""
    from clutch.workloads.experiment.config import search_option

    if not command:
        raise BadRequest(
            "there is no command", object="run", next_step="Write it last: clutch run --search ... train.py"
        )
    hyperparameters: dict[str, Any] = {}
    for text in search.hyperparameters:
        path, value = search_option(text)
        place = hyperparameters
        *folders, name = path
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    config: dict[str, Any] = {
        "name": wish["name"] or command[-1].rpartition("/")[2] or "search",
        "entrypoint": list(as_program(command)),
        "hyperparameters": hyperparameters,
        "searcher": _searcher(search),
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


def _searcher(search: Search) -> dict[str, Any]:
    method = search.method or ("adaptive_asha" if search.max_time else "random")
    found: dict[str, Any] = {"name": method, "metric": search.metric, "smaller_is_better": not search.maximize}
    if method not in ("single", "grid"):
        found["max_trials"] = search.trials
    if search.max_time:
        found["max_time"] = search.max_time
    if search.concurrent:
        found["max_concurrent_trials"] = search.concurrent
    return found
