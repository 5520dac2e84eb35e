"""The door of experiments: what a user wrote, laid over what it builds on, checked, and frozen into a spec.

::

    text --config_in--> dict --merged--> dict --accepted--> ExperimentSpec
                                            \\-- or BadConfig, with everything that is wrong

    reading         YAML and JSON as people write them
    merging         layers, the user's own on top
    spellings       old words into today's, settings without a meaning into notices
    models          what may be written, field by field (``model_*``; pydantic stands here and nowhere else)
    problems        all that is wrong, each with its path and what would be right
    crossing        what no single field can know
    door            from a checked configuration to a spec
    editors         the same as a JSON schema, for editors
    options         ``--search lr=log(1e-5,1e-1)``

The names below are fetched when they are first used: reading an option costs no pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clutch.workloads.experiment.config.door import Accepted, Door, accepted, check_partial
    from clutch.workloads.experiment.config.editors import schema
    from clutch.workloads.experiment.config.merging import merged
    from clutch.workloads.experiment.config.options import search_option
    from clutch.workloads.experiment.config.reading import config_in

__all__ = ["Accepted", "Door", "accepted", "check_partial", "config_in", "merged", "schema", "search_option"]

_PLACES = {
    "Accepted": "door", "Door": "door", "accepted": "door", "check_partial": "door", "merged": "merging",
    "search_option": "options", "config_in": "reading", "schema": "editors",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
