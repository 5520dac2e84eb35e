"""``clutch run --search``: a search without a file, from options to a configuration. Pure but for what it imports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
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


def config_of(
    command: Sequence[str], search: Search, wish: dict[str, Any], folder: Path | None = None
) -> dict[str, Any]:
    """The configuration of an experiment that runs this command with each choice of hyperparameters. ``wish``: what was
    said of its trials; what was not is left to the defaults of its workspace."""
    from clutch.sdk.wish import parse_size
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
        "entrypoint": list(as_program(command, folder, needed=True)),
        "hyperparameters": hyperparameters,
        "searcher": _searcher(search, is_grid=_is_grid(ranges)),
        "resources": {"resource_pool": wish["pool"], "priority": wish["priority"]},
        "max_restarts": wish["max_restarts"],
    }
    resources = {"slots_per_trial": "slots", "kind": "kind", "cpus": "cpus"}
    config["resources"] |= {field: wish[word] for field, word in resources.items() if word in wish}
    if "memory" in wish:
        config["resources"]["memory"] = parse_size(wish["memory"])
    surroundings = {"environment_variables": "environment", "image": "image", "secrets": "secrets"}
    environment = {field: wish[word] for field, word in surroundings.items() if wish.get(word)}
    if wish.get("ports"):
        environment["proxy_ports"] = [{"proxy_port": port} for port in wish["ports"]]
    if environment:
        config["environment"] = environment
    if wish.get("mounts"):
        config["bind_mounts"] = [_bind_mount(text) for text in wish["mounts"]]
    if wish.get("launch"):
        own = ":" in wish["launch"]
        config["launch"] = {"name": "class", "class": wish["launch"]} if own else wish["launch"]
    trial = {"preemptible": "preemptible", "preemption_timeout": "leave_within_s"}
    return config | {field: wish[word] for field, word in trial.items() if word in wish}


def _bind_mount(text: str) -> dict[str, Any]:
    from clutch.sdk.wish import parse_mount

    mount = parse_mount(text)
    return {"host_path": mount.source, "container_path": mount.target, "read_only": mount.read_only}


def as_program(command: Sequence[str], folder: Path | None, *, needed: bool = False) -> tuple[str, ...]:
    """A Python file of the folder that goes along is run by Python, unless it is named with its path and executable.
    ``needed``: whatever is called like one must be there."""
    name = command[0] if command else ""
    if not name.endswith(PYTHON):
        return tuple(command)
    if folder is not None and not Path(name).is_absolute():
        file = folder / name
        if not file.is_file():
            if not needed:
                return tuple(command)  # a command that the node has, for all we know
            step = "Name one that is there, or say with --code in which folder it is."
            raise BadRequest(f"there is no such file in {folder.absolute()}", object=name, next_step=step)
        if "/" in name and os.access(file, os.X_OK):
            return tuple(command)
    elif not needed:
        return tuple(command)
    return ("python", *command)


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
