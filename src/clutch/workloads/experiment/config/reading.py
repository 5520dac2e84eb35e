"""A configuration's text, YAML or JSON, as plain data; read the way people mean it.

PyYAML reads YAML 1.1, in which ``1e-3`` is a word, ``no`` is false, ``12:30`` is 750 and a date is an object. Here a
number is what looks like one, only ``true`` and ``false`` are truth values (a setting that is one takes ``yes`` and
``no`` as well), and everything else is text. A key that stands twice is an error: one of the two would be lost.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from clutch.wire.errors import BadConfig, Problem

TEXT_MAX = 2**20
"""Characters; a configuration is kept in the journal, data belongs into the uploaded folder."""
VALUES_MAX = 50_000
DEPTH_MAX = 64
INT_MAX = 2**63

_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z|0x[0-9a-fA-F_]+\Z|0o[0-7_]+\Z|0b[01_]+\Z")
_NUMBER = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.(?:inf|Inf|INF))\Z|\.(?:nan|NaN|NAN)\Z"
)


class _Loader(yaml.SafeLoader):
    """Safe: it makes dicts, lists, text, numbers, truth values and null, and nothing else."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[Problem] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Looked at as it is written: later, what ``<<`` brings in is mixed with it."""
        node = super().compose_mapping_node(anchor)
        seen: dict[object, int] = {}
        for key, _ in node.value:
            word = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if word is None or key.value == "<<":
                continue
            line = key.start_mark.line + 1
            if word in seen:
                problem = f"it stands twice, in line {seen[word]} and in line {line}"
                self.twice.append(Problem(dotted((str(key.value),)), problem, "Keep one of the two."))
            seen[word] = line
        return node


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = node.value.replace("_", "").lower()
    if text.lstrip("+-") == ".inf":
        return -math.inf if text.startswith("-") else math.inf
    return math.nan if text == ".nan" else float(text)


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value.replace("_", "")
    return int(text, 0)


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    ("tag:yaml.org,2002:int", _WHOLE, list("-+0123456789")),
    ("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789")),
    ("tag:yaml.org,2002:merge", re.compile(r"<<\Z"), ["<"]),
):
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
_Loader.add_constructor("tag:yaml.org,2002:float", _decimal)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def config_in(text: str, name: str = "config") -> dict[str, Any]:
    """What a text says; ``name`` is its file's, for errors, and one that ends in ``.json`` is JSON. Else
    ``BadConfig``."""
    if len(text) > TEXT_MAX:
        raise _refused(name, f"it has {len(text)} characters, at most {TEXT_MAX} are kept", "Put data into files.")
    text = text.removeprefix("\ufeff")  # some editors begin with it
    found = _json(text, name) if name.endswith(".json") else _yaml(text, name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise _refused(name, f"it is {kind_of(found)}, not a map of settings", "Write 'entrypoint: python train.py'.")
    return plain(found, name)


def kind_of(value: object) -> str:
    """What a value is, in a user's words."""
    words: dict[type, str] = {
        bool: "a truth value", int: "a number", float: "a number", str: "text", list: "a list", dict: "a map",
        type(None): "nothing",
    }  # fmt: skip
    return words.get(type(value), f"a {type(value).__name__}")


def plain(config: Mapping[Any, Any], name: str) -> dict[str, Any]:
    """A copy that holds only JSON, of bounded size and depth, so that whatever is built on it can be written down."""
    copier = _Copier()
    found: dict[str, Any] = copier.copy(config, ())
    if copier.problems:
        raise BadConfig(problems=tuple(copier.problems), object=name, next_step="Nothing was submitted.")
    return found


def dotted(path: tuple[str | int, ...]) -> str:
    """``searcher.max_trials``, ``bind_mounts[0].host_path``; a key with odd letters in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part[:100] if re.fullmatch(r"[\w\-./]+", part) else json.dumps(part[:100])
            text += f".{word}" if text else word
    return text


def _refused(name: str, problem: str, hint: str) -> BadConfig:
    return BadConfig(problems=(Problem(name, problem, hint),), object=name, next_step="Nothing was submitted.")


def _yaml(text: str, name: str) -> Any:
    try:
        loader = _Loader(text)
        found = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else name
        problem = " ".join(filter(None, (error.context, error.problem)))
        hint = "Python objects cannot be written here." if isinstance(error, yaml.constructor.ConstructorError) else ""
        raise _refused(name, f"it is not YAML: {problem} ({place})", hint or "Is the indentation right?") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _refused(name, f"it is not YAML: {error}", "Check the text.") from None
    if loader.twice:
        raise BadConfig(problems=tuple(loader.twice), object=name, next_step="Nothing was submitted.")
    return found


def _json(text: str, name: str) -> Any:
    twice: list[Problem] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                twice.append(Problem(dotted((key,)), "it stands twice in one object", "Keep one of the two."))
            found[key] = value
        return found

    try:
        found = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        problem = f"it is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        raise _refused(name, problem, "Check the text.") from None
    except (RecursionError, ValueError) as error:
        raise _refused(name, f"it is not JSON: {error}", "Check the text.") from None
    if twice:
        raise BadConfig(problems=tuple(twice), object=name, next_step="Nothing was submitted.")
    return found


class _Copier:
    """Copies what aliases share, so a text of a few lines could stand for billions of values: it counts them."""

    def __init__(self) -> None:
        self.left = VALUES_MAX
        self.problems: list[Problem] = []

    def copy(self, value: Any, path: tuple[str | int, ...]) -> Any:
        self.left -= 1
        if self.left < 0 or len(path) > DEPTH_MAX:
            if self.left >= 0 or self.left == -1:
                bound = f"{VALUES_MAX} values" if self.left < 0 else f"{DEPTH_MAX} levels"
                self._say(path, f"there are more than {bound}", "Put data into the uploaded folder.")
                self.left = min(self.left, -1)
            return None
        if isinstance(value, Mapping):
            found = {self._key(key, path): self.copy(item, (*path, str(key))) for key, item in value.items()}
            if len(found) < len(value):
                self._say(path, "two of its keys are the same when they are written as text", "Keep one of the two.")
            return found
        if isinstance(value, list | tuple):
            return [self.copy(item, (*path, number)) for number, item in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            self._say(path, f"{value} is not a finite number", "Leave it out, or write a very large number.")
        elif isinstance(value, int) and not -INT_MAX <= value < 2 * INT_MAX:
            self._say(path, "it has more than 64 bits", "Write it in quotes, as text.")
        elif isinstance(value, str) and not _encodes(value):
            self._say(path, "it is not valid Unicode", "Write it anew.")
        elif not isinstance(value, str | int | float | None):
            self._say(path, f"{kind_of(value)} cannot be written as JSON", "Use text, numbers, lists and maps.")
            return None
        return value

    def _key(self, key: Any, path: tuple[str | int, ...]) -> str:
        if isinstance(key, str) and not _encodes(key):
            self._say(path, "a key in it is not valid Unicode", "Write it anew.")
        if isinstance(key, bool) or not isinstance(key, str | int | float):
            self._say(path, f"its key {key!r} is {kind_of(key)}", "Write the key in quotes.")
        return str(key)

    def _say(self, path: tuple[str | int, ...], problem: str, hint: str) -> None:
        self.problems.append(Problem(dotted(path[:6]) or "config", problem, hint))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
