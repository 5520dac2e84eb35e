"""What no single setting can know: settings that contradict one another, or that a method cannot use.

Looks at the reworded configuration, whatever is wrong with it otherwise, so that nothing is told one at a time.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

from clutch.wire.errors import Problem
from clutch.wire.experiment_api import ConfigProblem
from clutch.wire.programs import PROCESSES_MAX
from clutch.workloads.experiment.config.model_hyperparameters import is_nested, is_range
from clutch.workloads.experiment.config.models import SHM_SIZE
from clutch.workloads.experiment.config.reading import dotted

Location = tuple[str | int, ...]
GRID_MAX = 100_000
_TRIAL_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
RANGES = ("int", "double", "log", "categorical")
COUNTED = ("ranks", "torchrun", "accelerate")
"""Launchers that count processes; a class of one's own may do otherwise."""


def cross_problems(config: dict[str, Any], *, partial: bool) -> list[Problem]:
    """Of the whole; of a part only what no other layer could mend."""
    found = [
        *_entrypoint(config.get("entrypoint"), ("entrypoint",)),
        *_entrypoint(_at(config, "searcher", "entrypoint"), ("searcher", "entrypoint")),
        *_storage(config),
        *_twice(config),
    ]
    whole = (_searcher, _resources, _launch, _hdfs, _mounts)
    return found if partial else [*found, *(problem for check in whole for problem in check(config))]


def cross_notices(config: dict[str, Any]) -> list[ConfigProblem]:
    """Of a checked configuration: what will not do what its writer may think."""
    found = []
    name = _at(config, "searcher", "name") or "single"
    if name in ("random", "asha", "adaptive_asha", "pbt", "tpe") and not list(ranges_in(config)):
        problem = f"there is nothing to search: all trials of {name} have the same hyperparameters"
        found.append(ConfigProblem(path="hyperparameters", problem=problem, hint="Write a range, or searcher: single."))
    for path, item in ranges_in(config):
        if item["type"] == "log" and item.get("base") == 1:
            problem = "every power of 1 is 1: it does not vary"
            found.append(
                ConfigProblem(path=dotted((*path, "base")), problem=problem, hint="Write 10, 2, or leave it out.")
            )
    for path in _ranges_in_lists(config.get("hyperparameters"), ("hyperparameters",)):
        problem = "it reads like a range, and stands in a list, which is a constant: it is not searched"
        hint = "Make a map of the list, to search in it; or write several whole lists as a categorical."
        found.append(ConfigProblem(path=dotted(path), problem=problem, hint=hint))
    if not _at(config, "environment", "image"):
        for path in (("resources", "shm_size"), ("environment", "force_pull_image"), ("environment", "registry_auth")):
            if _at(config, *path) not in (None, False, SHM_SIZE):
                problem = "it means nothing without environment.image"
                found.append(ConfigProblem(path=dotted(path), problem=problem, hint="Leave it out, or name an image."))
    return found


def draw_once(config: dict[str, Any]) -> list[ConfigProblem]:
    """A single trial has constants: with ranges it becomes a random search of one trial, whose values are drawn."""
    searcher = config.get("searcher", {"name": "single"})
    ranges = [path for path, _ in ranges_in(config)]
    if not isinstance(searcher, dict) or searcher.get("name") != "single" or not ranges:
        return []
    config["searcher"] = {"metric": "loss", **searcher, "name": "random", "max_trials": 1}
    hint = "Write one value; or another searcher, to try several: random, grid, adaptive_asha."
    problem = "it is a range, and searcher single makes one trial: its value is drawn, once"
    return [ConfigProblem(path=dotted(path), problem=problem, hint=hint) for path in ranges]


def ranges_in(config: dict[str, Any]) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Every range of the hyperparameters, with its place."""
    yield from _ranges(config.get("hyperparameters"), ("hyperparameters",))


def _ranges(value: Any, path: Location) -> Iterator[tuple[Location, dict[str, Any]]]:
    for name, item in value.items() if isinstance(value, dict) else ():
        if is_nested(item):
            yield from _ranges(item, (*path, name))
        elif is_range(item) and item["type"] in RANGES:
            yield (*path, name), item


def _ranges_in_lists(value: Any, path: Location) -> Iterator[Location]:
    """Maps that would be ranges if they did not stand in a list."""
    if is_nested(value):
        for name, item in value.items():
            yield from _ranges_in_lists(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            if is_range(item) and item["type"] in RANGES:
                yield (*path, number)


def _at(config: dict[str, Any], *path: str) -> Any:
    found: Any = config
    for word in path:
        found = found.get(word) if isinstance(found, dict) else None
    return found


def _entrypoint(value: Any, path: Location) -> Iterator[Problem]:
    if isinstance(value, str):
        if not value.strip():
            yield Problem(dotted(path), "it is empty", "Write what to run: python train.py.")
        elif _TRIAL_CLASS.fullmatch(value.strip()):
            hint = (
                "Clutch runs programs, not trial classes: write a script that calls clutch.init(), and its command, "
                "such as 'python train.py'."
            )
            yield Problem(dotted(path), f"{value.strip()!r} names a trial class", hint)
    words = value if isinstance(value, list) else [value]
    if isinstance(value, list) and (not value or value[0] == ""):
        yield Problem(dotted(path), "there is no command", "Write what to run: [python, train.py].")
    if any("\0" in word for word in words if isinstance(word, str)):
        yield Problem(dotted(path), "it holds a NUL character", "Leave it out.")


def _searcher(config: dict[str, Any]) -> Iterator[Problem]:
    searcher = config.get("searcher", {"name": "single"})
    if not isinstance(searcher, dict):
        return
    if searcher.get("source_trial_id") and searcher.get("source_checkpoint_uuid"):
        hint = "Keep one: a trial's latest checkpoint, or that checkpoint."
        yield Problem("searcher.source_checkpoint_uuid", "source_trial_id is set as well", hint)
    if searcher.get("name") == "grid":
        yield from _grid(config)


def _grid(config: dict[str, Any]) -> Iterator[Problem]:
    trials = 1
    for path, item in ranges_in(config):
        count = item.get("count")
        if item["type"] != "categorical" and count is None:
            hint = "Write count: so many values of it are tried."
            yield Problem(dotted((*path, "count")), "it is missing, and searcher grid needs it", hint)
        values = item.get("vals")
        size = len(values) if isinstance(values, list) else count
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            low, high = item.get("minval"), item.get("maxval")
            if item["type"] == "int" and isinstance(low, int) and isinstance(high, int) and high >= low:
                size = min(size, high - low + 1)
            trials *= size
    if trials > GRID_MAX:
        hint = "Write smaller counts, or searcher random."
        yield Problem("hyperparameters", f"the grid has {trials} points, at most {GRID_MAX} are made", hint)


def _resources(config: dict[str, Any]) -> Iterator[Problem]:
    most, each = _at(config, "resources", "max_slots"), _at(config, "resources", "slots_per_trial")
    each = 1 if each is None else each
    if isinstance(most, int | float) and isinstance(each, int | float) and 0 < most < each:
        yield Problem(
            "resources.max_slots",
            f"a trial needs {each} slots, and all together may hold {most}: none could ever start",
            "Raise max_slots, or lower slots_per_trial.",
        )


def _launch(config: dict[str, Any]) -> Iterator[Problem]:
    """No node of a trial has more slots than the whole trial. Without any, many processes share no device."""
    launch, slots = config.get("launch"), _at(config, "resources", "slots_per_trial")
    if not isinstance(launch, dict) or launch.get("name") not in COUNTED or launch.get("oversubscribe"):
        return
    wanted, slots = launch.get("processes"), 1 if slots is None else slots
    if isinstance(wanted, int) and isinstance(slots, int) and 0 < slots < wanted <= PROCESSES_MAX:
        hint = "Leave processes out (one for each slot), raise slots_per_trial, or say oversubscribe: true."
        yield Problem("launch.processes", f"{wanted} on each node, and a trial has {slots} slots in all", hint)


def _storage(config: dict[str, Any]) -> Iterator[Problem]:
    storage = config.get("checkpoint_storage")
    if not isinstance(storage, dict):
        return
    host, inside = storage.get("host_path"), storage.get("storage_path")
    if isinstance(host, str) and isinstance(inside, str) and storage.get("type") == "shared_fs":
        folder = posixpath.normpath(posixpath.join(host, inside))
        if folder != posixpath.normpath(host) and not folder.startswith(posixpath.normpath(host).rstrip("/") + "/"):
            hint = "Write a folder below host_path, or a relative one."
            yield Problem("checkpoint_storage.storage_path", f"{inside!r} is not in host_path, {host!r}", hint)


def _hdfs(config: dict[str, Any]) -> Iterator[Problem]:
    storage = config.get("checkpoint_storage")
    if not isinstance(storage, dict) or storage.get("type") != "hdfs":
        return
    if storage.get("url") and (storage.get("host") or storage.get("path")):
        yield Problem("checkpoint_storage.url", "host or path are set as well", "Keep one way to say it.")
    if not storage.get("url") and not storage.get("host"):
        yield Problem("checkpoint_storage.url", "it is missing", "Write hdfs://HOST:PORT/FOLDER.")


def _mounts(config: dict[str, Any]) -> Iterator[Problem]:
    mounts = config.get("bind_mounts")
    if not _at(config, "environment", "image") or not isinstance(mounts, list):
        return
    for number, mount in enumerate(mounts):
        target = mount.get("container_path") if isinstance(mount, dict) else None
        if isinstance(target, str) and target and not target.startswith("/"):
            problem = f"{target[:200]!r} is not an absolute path, which a container needs"
            yield Problem(dotted(("bind_mounts", number, "container_path")), problem, "Begin with '/'.")


def _twice(config: dict[str, Any]) -> Iterator[Problem]:
    """Things that must differ inside one list."""
    lists = (
        (("bind_mounts",), "container_path", "two mounts appear at the same place", "Keep one."),
        (("output_rules",), "name", "two rules have this name", "Name each rule once."),
        (("environment", "proxy_ports"), "proxy_port", "the port stands twice", "Keep one."),
    )
    for path, field, problem, hint in lists:
        seen: list[Any] = []
        items = _at(config, *path)
        for number, item in enumerate(items if isinstance(items, list) else ()):
            value = item.get(field) if isinstance(item, dict) else None
            value = value.rstrip("/") if isinstance(value, str) and field == "container_path" else value
            if value in seen and value not in (None, 0):
                yield Problem(dotted((*path, number, field)), f"{problem}: {value!r}", hint)
            seen.append(value)
