"""The configuration as a JSON schema, so that an editor completes and checks it while it is written.

Old spellings are in it, marked as deprecated, because the door takes them. Hyperparameters refer to themselves, as they
may be nested to any depth.
"""

from __future__ import annotations

from typing import Any

from clutch.workloads.experiment.config.model_hyperparameters import KINDS
from clutch.workloads.experiment.config.model_launch import LAUNCHES
from clutch.workloads.experiment.config.model_searcher import SEARCHERS
from clutch.workloads.experiment.config.model_storage import STORAGES
from clutch.workloads.experiment.config.models import WrittenExperiment
from clutch.workloads.experiment.config.words import MEANINGLESS, RENAMED, Path

ANYTHING: dict[str, Any] = {}
DEFINITIONS: dict[Path, tuple[str, ...]] = {
    ("resources",): ("WrittenResources",),
    ("environment",): ("WrittenEnvironment",),
    ("environment", "image"): ("WrittenImages",),
    ("profiling",): ("WrittenProfiling",),
    ("integrations",): ("WrittenIntegrations",),
    ("integrations", "webhooks"): ("WrittenWebhooks",),
    ("searcher",): tuple(dict.fromkeys(kind.__name__ for kind in SEARCHERS.values())),
    ("checkpoint_storage",): tuple(kind.__name__ for kind in STORAGES.values()),
}


def schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a whole configuration."""
    found = WrittenExperiment.model_json_schema(by_alias=True)
    definitions = found["$defs"]
    for kind in KINDS.values():
        definitions[kind.__name__] = kind.model_json_schema(by_alias=True)
    own = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in KINDS.values()]
    nested = {
        "type": "object",
        "not": {"required": ["type"]},
        "additionalProperties": {"$ref": "#/$defs/Hyperparameter"},
        "description": "More hyperparameters.",
    }
    constant = {"type": ["string", "number", "boolean", "array", "null"], "description": "A constant."}
    definitions["Hyperparameter"] = {"anyOf": [*own, nested, constant]}
    found["properties"]["hyperparameters"] |= {"additionalProperties": {"$ref": "#/$defs/Hyperparameter"}}
    _add_old_words(found)
    _add_old_shapes(found)
    _allow_null(found)
    storage = found["properties"]["checkpoint_storage"]
    options = [{"$ref": f"#/$defs/{name}"} for name in DEFINITIONS["checkpoint_storage",]]
    found["properties"]["checkpoint_storage"] = {
        "anyOf": [*options, {"type": "string"}, {"type": "null"}],
        **{key: value for key, value in storage.items() if key == "default"},
        "description": "Where checkpoints are kept: the workspace's own blobs, unless it says.",
    }
    definitions["WrittenClass"]["required"] = ["class"]
    launches = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in LAUNCHES.values()]
    found["properties"]["launch"] = {
        "anyOf": [*launches, {"type": "string"}, {"type": "null"}],
        "default": {"name": "plain"},
        "description": "What starts its processes on each node: plain, ranks, torchrun, accelerate, MODULE:CLASS.",
    }
    definitions["WrittenOwnLaunch"]["required"] = ["class"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Clutch experiment",
        **_without_titles(found),
    }


def _parts(found: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """The objects of a place in which its words stand."""
    if not path:
        return [found]
    return [found["$defs"][name] for name in DEFINITIONS.get(path, ())]


def _add_old_words(found: dict[str, Any]) -> None:
    for path, words in RENAMED.items():
        for part in _parts(found, path):
            for old, new in words.items():
                if new in part["properties"]:
                    part["properties"].setdefault(old, {"deprecated": True, "description": f"Write {new}."})
                    if new in part.get("required", []):
                        part["required"] = [word for word in part["required"] if word != new]
    for (*place, word), reason in MEANINGLESS.items():
        for part in _parts(found, tuple(place)):
            part["properties"].setdefault(
                word, {"deprecated": True, "description": f"It means nothing here: {reason}."}
            )


def _add_old_shapes(found: dict[str, Any]) -> None:
    """What was a map and is a word now, and the other way round."""
    definitions = found["$defs"]
    inside = {"type": "object", "deprecated": True, "description": "What is in it stands in the searcher itself now."}
    for old in ("replace_function", "explore_function"):
        definitions["WrittenPbt"]["properties"][old] = dict(inside)
    shapes = (
        ("WrittenPbt", "length_per_round", {"type": "object"}),
        ("WrittenRule", "action", {"type": "object"}),
        ("WrittenEnvironment", "proxy_ports", {"type": "array", "items": {"type": ["integer", "object"]}}),
        ("WrittenIntegrations", "webhooks", {"type": "array", "items": {"type": "string"}}),
    )
    for name, setting, shape in shapes:
        today = definitions[name]["properties"][setting]
        words = {key: today.pop(key) for key in ("default", "description") if key in today}
        definitions[name]["properties"][setting] = {"anyOf": [today, shape], **words}
    definitions["WrittenMount"]["properties"]["propagation"] = {"type": "string", "deprecated": True}
    definitions["WrittenRule"]["required"] = []


def _allow_null(found: dict[str, Any]) -> None:
    """Null is the same as absent, in every setting."""
    for part in (found, *found["$defs"].values()):
        for name, setting in part.get("properties", {}).items():
            words = {key: setting.pop(key) for key in ("default", "description", "deprecated") if key in setting}
            if setting and name not in ("type", "val", "vals"):
                part["properties"][name] = {"anyOf": [setting, {"type": "null"}], **words}
            else:
                setting.update(words)


def _without_titles(value: Any) -> Any:
    """Titles are only the names of fields again."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "title" or not isinstance(item, str)}
        return {key: _without_titles(item) for key, item in kept.items()}
    return [_without_titles(item) for item in value] if isinstance(value, list) else value
