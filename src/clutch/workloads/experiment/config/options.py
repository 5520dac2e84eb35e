"""``--search lr=log(1e-5,1e-1)``: a range of a hyperparameter in one word of the command line.

===========================  ==================================================================
``lr=log(1e-5,1e-1)``        spread over orders of magnitude, between two *values*
``layers=int(1,8)``          whole numbers, both included
``dropout=uniform(0,0.5)``   numbers; ``double`` is the same
``act=choice(relu,gelu)``    one of several; ``[relu,gelu]`` is the same
``lr=0.1``                   a constant
``optimizer.lr=...``         one inside another
===========================  ==================================================================

``count=4`` behind the bounds says how many values a grid tries. Values are read as in YAML: ``true``, ``1e-3``,
``null`` and lists are what they look like, everything else is text; what holds a comma or a bracket stands in quotes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from clutch.wire.errors import BadConfig, BadRequest

FORMS = "log(1e-5,1e-1), int(1,8), uniform(0,1), choice(a,b,c), a value; with count=4 for a grid"
_CALL = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)
_OPEN = re.compile(r"[A-Za-z_]+\s*\(")
_NAME = re.compile(r"[^\s.=]+(\.[^\s.=]+)*")


def search_option(text: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The place of a hyperparameter, name by name, and the hyperparameter as a configuration says it."""
    name, given, said = text.partition("=")
    name = name.strip()
    if not given or not _NAME.fullmatch(name):
        raise _refused(text, "it names no hyperparameter")
    return tuple(name.split(".")), _hyperparameter(said.strip(), text)


def search_options(texts: Iterable[str]) -> dict[str, Any]:
    """All of them as the ``hyperparameters`` of a configuration that is laid over the file's."""
    found: dict[str, Any] = {}
    for text in texts:
        path, value = search_option(text)
        place = found
        for name in path[:-1]:
            place = place.setdefault(name, {})
            if "type" in place:
                raise _refused(text, f"{name} is a hyperparameter itself, in another --search")
        if path[-1] in place:
            raise _refused(text, f"{'.'.join(path)} stands in another --search as well")
        place[path[-1]] = value
    return found


def _refused(text: str, cause: str) -> BadRequest:
    return BadRequest(cause, object=f"--search {text}", next_step=f"Write NAME={FORMS}.")


def _hyperparameter(said: str, text: str) -> dict[str, Any]:
    found = _CALL.fullmatch(said)
    if found is not None:
        word, inside = found[1].lower(), found[2]
        form = _FORMS.get(word)
        if form is None:
            raise _refused(text, f"there is no form {word!r}")
        return form(_values(inside, text), text)
    if _OPEN.match(said):
        raise _refused(text, "its bracket is not closed")
    value = _value(said, text)
    if isinstance(value, list) and said.startswith("["):
        return _choice(value, text)
    return {"type": "const", "val": value}


def _value(said: str, text: str) -> Any:
    """As in YAML; a mere word too."""
    from clutch.workloads.experiment.config.reading import config_in

    try:
        return config_in(f"value: {said}" if said else 'value: ""', "search").get("value")
    except BadConfig:
        raise _refused(text, f"{said!r} cannot be read") from None


def _values(inside: str, text: str) -> list[Any]:
    """What stands between the brackets, ``count=4`` as a pair."""
    found = _value(f"[{inside}]", text)
    if not isinstance(found, list):
        raise _refused(text, f"({inside}) cannot be read")
    return found


def _bounds(values: list[Any], text: str, *, whole: bool) -> tuple[Any, Any, dict[str, Any]]:
    """Two numbers, and the count if there is one."""
    count: dict[str, Any] = {}
    numbers = list(values)
    if numbers and isinstance(numbers[-1], str) and numbers[-1].replace(" ", "").startswith("count="):
        word = numbers.pop().partition("=")[2].strip()
        if not word.isdecimal() or int(word) < 1:
            raise _refused(text, f"count={word} is not a number of values")
        count = {"count": int(word)}
    if len(numbers) != 2 or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        raise _refused(text, "it needs two numbers")
    low, high = numbers
    if whole and not all(isinstance(number, int) or number.is_integer() for number in numbers):
        raise _refused(text, "its bounds are not whole numbers")
    if not low < high:
        raise _refused(text, f"{low} is not less than {high}")
    return low, high, count


def _log(values: list[Any], text: str) -> dict[str, Any]:
    low, high, count = _bounds(values, text, whole=False)
    if low <= 0:
        raise _refused(text, f"{low} has no logarithm: log takes the values themselves, all above 0")
    return {"type": "log", "base": 10, "minval": math.log10(low), "maxval": math.log10(high), **count}


def _int(values: list[Any], text: str) -> dict[str, Any]:
    low, high, count = _bounds(values, text, whole=True)
    return {"type": "int", "minval": int(low), "maxval": int(high), **count}


def _double(values: list[Any], text: str) -> dict[str, Any]:
    low, high, count = _bounds(values, text, whole=False)
    return {"type": "double", "minval": float(low), "maxval": float(high), **count}


def _choice(values: list[Any], text: str) -> dict[str, Any]:
    if not values:
        raise _refused(text, "there is nothing to choose from")
    return {"type": "categorical", "vals": values}


_FORMS: dict[str, Callable[[list[Any], str], dict[str, Any]]] = {
    "log": _log, "loguniform": _log, "int": _int, "randint": _int, "uniform": _double, "double": _double,
    "choice": _choice, "categorical": _choice,
}  # fmt: skip
