"""Everything that is wrong with a configuration, each with its dotted path and what would be right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from clutch.wire.errors import Problem
from clutch.workloads.experiment.config.model_base import Written
from clutch.workloads.experiment.config.model_hyperparameters import DEPTH_MAX, KINDS, is_nested, is_range, range_said
from clutch.workloads.experiment.config.model_launch import LAUNCHES
from clutch.workloads.experiment.config.model_searcher import SEARCHERS
from clutch.workloads.experiment.config.model_storage import STORAGES
from clutch.workloads.experiment.config.models import (
    WrittenEnvironment,
    WrittenExperiment,
    WrittenImages,
    WrittenIntegrations,
    WrittenMount,
    WrittenPort,
    WrittenProfiling,
    WrittenReproducibility,
    WrittenResources,
    WrittenRule,
    WrittenWebhooks,
)
from clutch.workloads.experiment.config.reading import dotted, kind_of
from clutch.workloads.experiment.config.words import MEANINGLESS, RENAMED

Location = tuple[str | int, ...]
PROBLEMS_MAX = 100
"""So many are told; who has more has sent something else than a configuration."""
UNIONS: dict[str, tuple[str, Mapping[str, type[Written]]]] = {
    "searcher": ("name", SEARCHERS),
    "launch": ("name", LAUNCHES),
    "checkpoint_storage": ("type", STORAGES),
}
_MODELS: dict[tuple[str, ...], type[Written]] = {
    (): WrittenExperiment,
    ("resources",): WrittenResources,
    ("environment",): WrittenEnvironment,
    ("environment", "image"): WrittenImages,
    ("environment", "proxy_ports"): WrittenPort,
    ("bind_mounts",): WrittenMount,
    ("output_rules",): WrittenRule,
    ("reproducibility",): WrittenReproducibility,
    ("profiling",): WrittenProfiling,
    ("integrations",): WrittenIntegrations,
    ("integrations", "webhooks"): WrittenWebhooks,
}


def shape_problems(config: dict[str, Any], *, partial: bool) -> list[Problem]:
    """Wrong kinds, amounts and keys. ``partial``: what is missing may still come from another layer."""
    found: list[Problem] = []
    rest = dict(config)
    for section, (tag, kinds) in UNIONS.items():
        if section in rest:
            found += _union_problems(section, rest.pop(section), (tag, kinds), partial)
    if "hyperparameters" in rest:
        found += hyperparameter_problems(rest.pop("hyperparameters"), ("hyperparameters",))
    found += _model_problems(WrittenExperiment, rest, (), partial)
    return found


def _union_problems(
    section: str, value: Any, union: tuple[str, Mapping[str, type[Written]]], partial: bool
) -> list[Problem]:
    tag, kinds = union
    if not isinstance(value, dict):
        return [Problem(section, f"it is {kind_of(value)}, not a map", f"Write {section}: and below it {tag}: ...")]
    known = ", ".join(name for name in kinds if name != "async_halving")
    kind = value.get(tag, "workspace" if tag == "type" and not partial else None)
    if kind is None and partial:
        return _best_guess(section, value, union)
    if kind is None:
        return [Problem(f"{section}.{tag}", "it is missing", f"Write one of: {known}.")]
    if not isinstance(kind, str) or kind not in kinds:
        near = get_close_matches(str(kind)[:64], list(kinds), 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        return [
            Problem(f"{section}.{tag}", f"there is no {section} {str(kind)[:80]!r}", f"{hint}Write one of: {known}.")
        ]
    return _model_problems(kinds[kind], {**value, tag: kind}, (section,), partial)


def _best_guess(section: str, value: dict[str, Any], union: tuple[str, Mapping[str, type[Written]]]) -> list[Problem]:
    """A part without its kind is right if it is right for any kind."""
    tag, kinds = union
    tries = [_model_problems(model, {**value, tag: kind}, (section,), True) for kind, model in kinds.items()]
    return min(tries, key=len)


def _model_problems(model: type[Written], value: Any, at: Location, partial: bool) -> list[Problem]:
    try:
        model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False)
    else:
        return []
    return [
        _problem(detail, model, at)
        for detail in details[:PROBLEMS_MAX]
        if not (partial and detail["type"] == "missing" and not _in_list(detail["loc"]))
        and not _other_branch(detail["loc"], value)
    ]


def _in_list(location: Location) -> bool:
    """An item of a list is never completed by another layer."""
    return any(isinstance(part, int) for part in location)


def _other_branch(location: Location, value: Any) -> bool:
    """An image is a line or a map: only what is wrong with the one that was written counts."""
    if location[:2] != ("environment", "image") or len(location) < 3:
        return False
    written = value["environment"]["image"]
    return isinstance(written, dict) != (location[2] == "WrittenImages")


def _problem(detail: Any, model: type[Written], at: Location) -> Problem:
    location = tuple(part for part in detail["loc"] if not _is_branch(part))
    path = (*at, *location)
    problem, hint = _words(detail)
    if detail["type"] == "extra_forbidden":
        hint = _meant(path, model if len(location) == 1 else None)
    return Problem(dotted(path) or "config", problem, hint)


def _is_branch(part: str | int) -> bool:
    """What pydantic puts into a path to say which of several shapes it tried."""
    return isinstance(part, str) and (part in ("WrittenImages", "str", "list[str]") or part.startswith("function-"))


def _words(detail: Any) -> tuple[str, str]:
    """A problem and a hint, in a user's words."""
    kind, value, told = detail["type"], detail["input"], detail.get("ctx", {})
    shown = f"{value!r}"[:120] if isinstance(value, str | int | float) else kind_of(value)
    amounts = {"greater_than_equal": ("ge", "at least"), "less_than_equal": ("le", "at most"),
               "greater_than": ("gt", "more than"), "less_than": ("lt", "less than")}  # fmt: skip
    shapes = {"int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number",
              "bool_type": "true or false", "string_type": "text", "list_type": "a list", "dict_type": "a map",
              "model_type": "a map", "model_attributes_type": "a map"}  # fmt: skip
    if kind == "wrong":
        return str(told["problem"]), str(told["hint"])
    if kind == "missing":
        return "it is missing", "Write it."
    if kind == "extra_forbidden":
        return "there is no such setting", ""
    if kind in amounts:
        name, words = amounts[kind]
        return f"{shown} is not {words} {told[name]:g}", f"Write a number that is {words} {told[name]:g}."
    if kind in shapes:
        return f"{shown} is not {shapes[kind]}", f"Write {shapes[kind]}."
    if kind == "literal_error":
        return f"{shown} is not one of {told['expected']}", f"Write one of {told['expected']}."
    if kind in ("too_long", "string_too_long"):
        return f"it is longer than {told['max_length']}", "Shorten it."
    if kind in ("too_short", "string_too_short"):
        return "it is empty", "Write at least one."
    return str(detail["msg"]), ""


def _meant(path: Location, model: type[Written] | None) -> str:
    """What somebody who wrote an unknown key may have meant."""
    word = str(path[-1])
    place = tuple(part for part in path[:-1] if isinstance(part, str))
    model = model or _MODELS.get(place)
    if model is None:
        return ""
    known = [field.alias or name for name, field in model.model_fields.items()]
    section = str(place[0]) if place else ""
    if section in UNIONS and len(place) == 1:
        tag, kinds = UNIONS[section]
        having = [kind for kind, other in kinds.items() if word in _keys(other) and kind != "async_halving"]
        if having:
            return f"It belongs to {tag}: {' or '.join(having)}."
    more = [*RENAMED.get(place, {}), *(path[-1] for path in MEANINGLESS if path[:-1] == place)]
    near = get_close_matches(word[:64].lower(), [*known, *more], 1, 0.6)
    return f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(sorted(known))}."


def _keys(model: type[Written]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


# -- hyperparameters ----------------------------------------------------------------------------------------------


def hyperparameter_problems(value: Any, path: Location) -> list[Problem]:
    """Of a map of hyperparameters, to any depth."""
    if not isinstance(value, dict):
        return [Problem(dotted(path), f"it is {kind_of(value)}, not a map", "Write hyperparameters: {lr: 0.1}.")]
    if len(path) > DEPTH_MAX:
        return [Problem(dotted(path), f"it is deeper than {DEPTH_MAX} levels", "Write fewer maps in maps.")]
    found: list[Problem] = []
    for name, item in value.items():
        if len(found) > PROBLEMS_MAX:
            break
        here = (*path, name)
        if not name:
            found.append(Problem(dotted(here), "a hyperparameter's name is empty", "Give it a name."))
        elif is_nested(item):
            found += hyperparameter_problems(item, here)
        elif is_range(item):
            found += _range_problems(item, here)
    return found


def _range_problems(value: dict[str, Any], path: Location) -> list[Problem]:
    kind = value["type"]
    if not isinstance(kind, str) or kind not in KINDS:
        near = get_close_matches(str(kind)[:64], list(KINDS), 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        hint += f"Write one of {', '.join(KINDS)}; a map of your own with the key 'type' is {{type: const, val: ...}}."
        return [Problem(dotted((*path, "type")), f"{str(kind)[:80]!r} is no type of hyperparameter", hint)]
    said = range_said(value)
    return [*_model_problems(KINDS[kind], said, path, False), *_bounds(said, path)]


def _bounds(value: dict[str, Any], path: Location) -> Iterable[Problem]:
    low, high, base = value.get("minval"), value.get("maxval"), value.get("base", 10.0)
    if not _is_number(low) or not _is_number(high) or value["type"] == "categorical":
        return
    if low >= high:  # type: ignore[operator]  # both are numbers
        hint = "Let minval be the smaller; one value alone is a constant."
        yield Problem(dotted((*path, "minval")), f"{low} is not less than maxval, {high}", hint)
    if value["type"] != "log" or not _is_number(base) or base <= 0:
        return
    try:
        float(base) ** float(low), float(base) ** float(high)  # type: ignore[arg-type]
    except OverflowError:
        hint = "minval and maxval are exponents: from 1e-5 to 1e-1 is minval: -5, maxval: -1."
        yield Problem(dotted((*path, "maxval")), f"{base:g} to the power of it is no number", hint)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
