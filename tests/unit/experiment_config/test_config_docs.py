"""The page about configurations has every setting with its default, every old word, and nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from clutch.workloads.experiment.config import Door, accepted, config_in, merged, search_option
from clutch.workloads.experiment.config.model_hyperparameters import KINDS
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
from clutch.workloads.experiment.config.words import MEANINGLESS, RENAMED

PAGE = (Path(__file__).parents[3] / "docs/architecture/experiment-config.md").read_text()
PLACES: dict[str, tuple[type[BaseModel], ...]] = {
    "": (WrittenExperiment,),
    "hyperparameters.NAME": tuple(KINDS.values()),
    "searcher": tuple(dict.fromkeys(SEARCHERS.values())),
    "launch": tuple(LAUNCHES.values()),
    "resources": (WrittenResources,),
    "checkpoint_storage": tuple(STORAGES.values()),
    "environment": (WrittenEnvironment,),
    "environment.image": (WrittenImages,),
    "environment.proxy_ports[]": (WrittenPort,),
    "bind_mounts[]": (WrittenMount,),
    "output_rules[]": (WrittenRule,),
    "reproducibility": (WrittenReproducibility,),
    "profiling": (WrittenProfiling,),
    "integrations": (WrittenIntegrations,),
    "integrations.webhooks": (WrittenWebhooks,),
}
SECTIONS = {place.partition(".")[0].removesuffix("[]") for place in PLACES} | {"webhooks", "searcher"}


def _settings() -> Iterator[tuple[str, list[str]]]:
    """Each setting with the defaults that it has, where several kinds have it."""
    for place, models in PLACES.items():
        found: dict[str, list[str]] = {}
        for model in models:
            for name, field in model.model_fields.items():
                found.setdefault(field.alias or name, []).append(_default(field))
        for name, defaults in found.items():
            if not (name in SECTIONS and place in ("", "integrations")):
                yield f"{place}.{name}" if place else name, list(dict.fromkeys(defaults))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    if isinstance(field.default, BaseModel):
        return "its own"
    return "none" if field.default is None else f"`{msgspec.json.encode(field.default).decode()}`"


def _rows() -> dict[str, list[str]]:
    lines = [line for line in PAGE.splitlines() if re.match(r"\| `[^`]+` \|", line)]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("`"): row for row in rows}


def test_every_setting_is_documented_with_its_default() -> None:
    rows = _rows()
    for path, defaults in _settings():
        assert path in rows, f"not documented: {path}"
        for default in defaults:
            assert default in rows[path][1], f"{path}: its default is {default}"


def test_nothing_is_documented_that_is_not_there() -> None:
    known = {path for path, _ in _settings()}
    known |= {".".join((*path, word)) for path, words in RENAMED.items() for word in words}
    known |= {".".join(path) for path in MEANINGLESS}
    assert sorted(word for word in set(_rows()) - known if "=" not in word) == []


def test_the_words_of_the_command_line_are_understood() -> None:
    words = [word for word in _rows() if "=" in word]
    assert len(words) >= 6
    for word in words:
        search_option(word)


def test_every_old_word_is_documented() -> None:
    rows = _rows()
    for path, words in RENAMED.items():
        for old, new in words.items():
            assert f"`{new}`" in rows[".".join((*path, old))][1]
    for path in MEANINGLESS:
        assert MEANINGLESS[path] in rows[".".join(path)][1]


def test_the_examples_of_the_page_are_accepted() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        accepted(merged([config_in(block), {"entrypoint": "python train.py"}]), Door())
