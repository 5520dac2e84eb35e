"""Layers of configuration laid over one another, the user's own on top. Plain dicts in and out; what they say
is not checked.

    user  over  template  over  workspace  over  cluster

=====================================  ==================================================================
what                                   rule
=====================================  ==================================================================
scalars, lists                         the first layer that sets it
maps                                   key by key
``null``                               as if it were not there (in hyperparameters and data it is a value)
``hyperparameters``                    one is taken whole, unless both sides are maps without a ``type``
``searcher``, ``checkpoint_storage``   key by key if both are of one kind; else only what all kinds have
``launch``                             key by key if both are of one kind; else the upper
``bind_mounts``, ``proxy_ports``       appended, one for each ``container_path``, each port
``output_rules``                       appended, one for each ``name``
``labels``                             all of them
``environment_variables``              variable by variable
``environment.image``                  for each kind of slots
=====================================  ==================================================================

Old spellings count as what they stand for: a template's ``max_time`` does not come back below a ``max_length``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clutch.workloads.experiment.config.reading import plain
from clutch.workloads.experiment.config.words import (
    EMPTY_IS_ABSENT,
    SEARCHER_COMMON,
    STORAGE_COMMON,
    canonical,
    is_free,
)

Path = tuple[str, ...]
DEVICES = ("cpu", "cuda", "rocm")
_DEVICE_WORDS = (*DEVICES, "gpu")


def merged(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All layers as one; the first outranks the second, and so on. ``BadConfig`` for what is not JSON, or too deep."""
    found: dict[str, Any] = {}
    for layer in layers:
        found = _over(found, without_nulls(plain(layer, "configuration")), ())
    return found


def without_nulls(config: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    """A copy in which what is null is absent, but for where null is a value."""
    return {key: _plain(value, (*path, key)) for key, value in config.items() if not _absent(value, path, key)}


def _absent(value: Any, path: Path, key: str) -> bool:
    if value == "" and isinstance(value, str):
        return (*path, canonical(path, key)) in EMPTY_IS_ABSENT
    return value is None and not is_free(path)


def _plain(value: Any, path: Path) -> Any:
    if isinstance(value, Mapping):
        return without_nulls(value, path)
    if isinstance(value, list | tuple):
        return [_plain(item, path) for item in value]
    return value


def _over(upper: dict[str, Any], lower: dict[str, Any], path: Path) -> dict[str, Any]:
    found = dict(upper)
    spelled = {canonical(path, key): key for key in upper}
    for key, value in lower.items():
        word = canonical(path, key)
        if word not in spelled:
            found[key] = value
            spelled[word] = key
            continue
        here = spelled[word]
        rule = RULES.get((*path, word), _either)
        found[here] = rule(found[here], value, (*path, word))
    return found


def _either(upper: Any, lower: Any, path: Path) -> Any:
    """Maps key by key; of everything else the upper."""
    if isinstance(upper, dict) and isinstance(lower, dict):
        return _over(upper, lower, path)
    return upper


def _hyperparameters(upper: Any, lower: Any, path: Path) -> Any:
    nested = isinstance(upper, dict) and isinstance(lower, dict) and "type" not in upper and "type" not in lower
    if not nested and path != ("hyperparameters",):
        return upper
    if not isinstance(upper, dict) or not isinstance(lower, dict):
        return upper
    found = dict(upper)
    for name, value in lower.items():
        found[name] = _hyperparameters(upper[name], value, (*path, name)) if name in upper else value
    return found


def _union(kind_of: Callable[[dict[str, Any]], str], shared: frozenset[str]) -> Callable[[Any, Any, Path], Any]:
    def rule(upper: Any, lower: Any, path: Path) -> Any:
        if not isinstance(upper, dict) or not isinstance(lower, dict):
            return upper
        mine, theirs = kind_of(upper), kind_of(lower)
        if mine and theirs and mine != theirs:
            lower = {key: value for key, value in lower.items() if canonical(path, key) in shared}
        return _over(upper, lower, path)

    return rule


def searcher_kind(searcher: Mapping[str, Any]) -> str:
    name = searcher.get("name")
    return {"async_halving": "asha"}.get(name, name) if isinstance(name, str) else ""


def storage_kind(storage: Mapping[str, Any]) -> str:
    kind = storage.get("type")
    return kind if isinstance(kind, str) else "class" if "class" in storage else ""


def launch_kind(launch: Mapping[str, Any]) -> str:
    name = launch.get("name")
    return name if isinstance(name, str) else "class" if "class" in launch else ""


def _appended(key_of: Callable[[Any], object]) -> Callable[[Any, Any, Path], Any]:
    """Both lists, without those of the lower whose key the upper has."""

    def rule(upper: Any, lower: Any, path: Path) -> Any:
        if not isinstance(upper, list) or not isinstance(lower, list):
            return upper
        known = [key_of(item) for item in upper]
        return [*upper, *(item for item in lower if key_of(item) not in known)]

    return rule


def _field(name: str) -> Callable[[Any], object]:
    return lambda item: item.get(name) if isinstance(item, dict) else item


def _rule_key(rule: Any) -> object:
    """A rule without a name is itself."""
    if not isinstance(rule, dict) or "name" in rule:
        return rule["name"] if isinstance(rule, dict) else rule
    action = rule.get("action")
    return (rule.get("pattern"), action.get("type") if isinstance(action, dict) else action)


def _images(upper: Any, lower: Any, path: Path) -> Any:
    if isinstance(upper, dict) and isinstance(lower, str):
        lower = dict.fromkeys(DEVICES, lower)
    return _either(upper, lower, path)


def _variables(upper: Any, lower: Any, path: Path) -> Any:
    """Variable by variable, in the simplest shape that can say both."""
    above, below = _by_device(upper), _by_device(lower)
    if above is None or below is None:
        return upper
    found = {device: {**below[device], **above[device]} for device in DEVICES}
    same = found["cpu"] == found["cuda"] == found["rocm"]
    return found["cpu"] if same else found


def _by_device(written: Any) -> dict[str, dict[str, Any]] | None:
    """The variables for each kind of slots; None for what cannot be understood, which the door will refuse."""
    if isinstance(written, list):
        if not all(isinstance(line, str) and "=" in line for line in written):
            return None
        pairs = {name: value for name, _, value in (line.partition("=") for line in written)}
        return dict.fromkeys(DEVICES, pairs)
    if not isinstance(written, dict):
        return None
    apart = written and all(key in _DEVICE_WORDS and isinstance(part, list | dict) for key, part in written.items())
    if not apart:
        return dict.fromkeys(DEVICES, written)
    parts = {canonical(("environment", "environment_variables"), key): part for key, part in written.items()}
    opened = {device: _by_device(parts.get(device, {})) for device in DEVICES}
    if any(part is None for part in opened.values()):
        return None
    return {device: part[device] for device, part in opened.items() if part is not None}


RULES: dict[Path, Callable[[Any, Any, Path], Any]] = {
    ("hyperparameters",): _hyperparameters,
    ("searcher",): _union(searcher_kind, SEARCHER_COMMON),
    ("launch",): _union(launch_kind, frozenset()),
    ("checkpoint_storage",): _union(storage_kind, STORAGE_COMMON),
    ("bind_mounts",): _appended(_field("container_path")),
    ("environment", "proxy_ports"): _appended(_field("proxy_port")),
    ("environment", "environment_variables"): _variables,
    ("environment", "image"): _images,
    ("output_rules",): _appended(_rule_key),
    ("labels",): _appended(lambda label: label),
}
