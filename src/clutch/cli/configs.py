"""An experiment's configuration as a file: YAML, JSON, or Python that sets ``config``."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clutch.wire.errors import BadRequest, NotFound

PYTHON = ".py"


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """What a file says, and its text. ``-`` is standard input."""
    text = sys.stdin.read() if str(path) == "-" else _text(path)
    if path.suffix == PYTHON:
        return _python(path), text
    from clutch.workloads.experiment.config import config_in

    return config_in(text, str(path)), text


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(
            "there is no such file", object=str(path), next_step="Give a YAML, JSON or Python file."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"it cannot be read: {error}", object=str(path)) from None


def _python(path: Path) -> dict[str, Any]:
    """The file is the user's own program on the user's own machine: it is run as one."""
    sys.path.insert(0, str(path.resolve().parent))
    try:
        said = runpy.run_path(str(path)).get("config")
    except Exception as error:
        raise BadRequest(f"running it failed: {type(error).__name__}: {error}", object=str(path)) from error
    finally:
        sys.path.pop(0)
    if not isinstance(said, dict):
        raise BadRequest("it sets no 'config'", object=str(path), next_step="Write: config = {...}")
    return said


def overlaid(config: dict[str, Any], settings: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """The configuration with ``path.to.field=VALUE`` laid over it; a value is read as YAML. ``option`` gave them."""
    if not settings:
        return config
    import copy

    from clutch.workloads.experiment.config import config_in

    config = copy.deepcopy(config)
    for setting in settings:
        path, given, text = setting.partition("=")
        parts = path.split(".")
        if not given or not all(parts):
            example = "searcher.max_trials=32" if option == "--set" else "lr=0.01"
            step = f"Write path.to.field=VALUE, for example {example}."
            raise BadRequest(f"{setting!r} sets nothing", object=option, next_step=step)
        place = config
        for part in parts[:-1]:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                step = "Write the path of a field that is there, or of a new one."
                raise BadRequest(f"{part!r} holds no fields", object=f"{option} {path}", next_step=step)
            place = inner
        place[parts[-1]] = config_in(f"value: {text}" if text else "value: ''", option)["value"]
    return config


def left_behind(path: Path, said: dict[str, Any]) -> str:
    """What to say when no folder goes along, though a file that the trials shall run lies beside their configuration.
    Empty if there is none, or if an image may have it."""
    entrypoint, environment = said.get("entrypoint"), said.get("environment")
    words = entrypoint.split() if isinstance(entrypoint, str) else entrypoint if isinstance(entrypoint, list) else []
    if isinstance(environment, dict) and environment.get("image"):
        return ""
    for word in words:
        if isinstance(word, str) and not word.startswith("-") and (path.parent / word).is_file():
            again = f"clutch experiment create {path} {path.parent}"
            return f"{word} does not go along, its trials begin in an empty folder. To take it: {again}"
    return ""
