"""Environment variables and secrets in the several shapes in which people write them."""

from __future__ import annotations

import re
from typing import Any

from clutch.core.checks import NAME
from clutch.workloads.experiment.config.model_base import wrong
from clutch.workloads.experiment.config.reading import kind_of

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
RESERVED = "CLUTCH_"
DEVICES = ("cpu", "cuda", "rocm")


def is_by_device(written: Any) -> bool:
    """A map from kinds of slots to variables, rather than from names to values."""
    named = isinstance(written, dict) and bool(written) and all(key in (*DEVICES, "gpu") for key in written)
    return named and all(isinstance(value, list | dict | None) for value in written.values())


def variables_of(written: Any, device: str) -> dict[str, str]:
    """The variables for a kind of slots, of a checked setting; of two of one name the later."""
    if is_by_device(written):
        return variables_of(written.get(device) or {}, device)
    if isinstance(written, dict):
        return {name: _text(value) for name, value in written.items() if value is not None}
    pairs = (str(line).partition("=") for line in written or ())
    return {name: value for name, _, value in pairs}


def normal_variables(written: Any) -> dict[str, Any]:
    """One map of text for all kinds of slots, or one for each kind if they differ."""
    apart = {device: variables_of(written, device) for device in DEVICES}
    first = apart[DEVICES[0]]
    return first if all(part == first for part in apart.values()) else apart


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_variables(written: Any) -> Any:
    """The same, or every problem at once in one."""
    if not isinstance(written, list | dict):
        raise wrong(f"it is {kind_of(written)}, not variables", "Write a map, or a list of NAME=VALUE.")
    parts = list(written.values()) if isinstance(written, dict) and is_by_device(written) else [written]
    problems = [problem for part in parts for problem in _problems(part)]
    if problems:
        raise wrong("; ".join(problems), "Write NAME: VALUE in a map, or NAME=VALUE in a list.")
    return written


def _problems(written: Any) -> list[str]:
    found = []
    if isinstance(written, dict):
        pairs = [(name, value) for name, value in written.items() if value is not None]
        found += [f"{name}: its value is {kind_of(v)}" for name, v in pairs if not isinstance(v, str | int | float)]
        names = [name for name, _ in pairs]
    else:
        lines = list(written or ())
        found += [f"{line!r} has no value" for line in lines if not isinstance(line, str) or "=" not in line]
        split = [line.partition("=") for line in lines if isinstance(line, str) and "=" in line]
        pairs = [(name, value) for name, _, value in split]
        names = [name for name, _ in pairs]
    found += [f"{name[:80]!r} is not the name of a variable" for name in names if not VARIABLE.fullmatch(name)]
    found += [f"{name} is set by the cluster, as all with {RESERVED}" for name in names if name.startswith(RESERVED)]
    found += [
        f"{name[:80]}: its value holds a NUL" for name, value in pairs if isinstance(value, str) and "\0" in value
    ]
    return found


def secrets_of(written: Any) -> tuple[tuple[str, str], ...]:
    """Names and variables of checked secrets."""
    if isinstance(written, dict):
        return tuple((name, variable) for variable, name in written.items())
    pairs = ((name, variable) for name, _, variable in (text.partition("=") for text in written or ()))
    return tuple((name, variable or re.sub(r"[^A-Za-z0-9_]", "_", name).upper()) for name, variable in pairs)


def check_secrets(written: Any) -> Any:
    texts = list(written.items()) if isinstance(written, dict) else written
    if not isinstance(texts, list):
        raise wrong(f"it is {kind_of(written)}, not secrets", "Write a list of NAME=VARIABLE, or a map VARIABLE: NAME.")
    flat = [word for pair in texts for word in (pair if isinstance(pair, tuple) else (pair,))]
    if not all(isinstance(word, str) for word in flat):
        raise wrong("there is something that is not text", "Write a list of NAME=VARIABLE, or a map VARIABLE: NAME.")
    for name, variable in secrets_of(written):
        if not NAME.fullmatch(name):
            raise wrong(f"{name[:80]!r} names no secret", "Write a name of 'clutch secret list'.")
        if not VARIABLE.fullmatch(variable) or variable.startswith(RESERVED):
            raise wrong(f"{variable[:80]!r} cannot be the name of a variable", "Write NAME=VARIABLE.")
    return written
