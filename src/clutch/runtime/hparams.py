"""Hyperparameters as a script reads them: a dict, nested to any depth, whose keys are attributes too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Hparams(dict[str, Any]):
    """``hparams["model"]["width"]`` and ``hparams.model.width`` are the same."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__({key: nested(value) for key, value in (values or {}).items()})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(sorted(self)) or "none at all"
            raise AttributeError(f"there is no hyperparameter {name!r}; there are: {known}") from None

    def __missing__(self, name: str) -> Any:
        known = ", ".join(sorted(self)) or "none at all"
        raise KeyError(f"there is no hyperparameter {name!r}; there are: {known}")


def nested(value: Any) -> Any:
    if isinstance(value, Mapping) and not isinstance(value, Hparams):
        return Hparams(value)
    if isinstance(value, list | tuple):
        return [nested(item) for item in value]
    return value


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` where it says something, key by key and to any depth; else ``below``."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        found[key] = laid_over(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return found
