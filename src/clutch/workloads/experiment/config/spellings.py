"""Old words into today's. What was understood otherwise than it reads is reported, and so is what means nothing here.

A configuration written for Determined is accepted as it is, wherever it has a meaning.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from clutch.wire.errors import Problem
from clutch.wire.experiment_api import ConfigProblem
from clutch.workloads.experiment.config.merging import launch_kind, storage_kind, without_nulls
from clutch.workloads.experiment.config.reading import dotted
from clutch.workloads.experiment.config.words import CREDENTIALS, MEANINGLESS, REMOVED_SEARCHERS, RENAMED, Path

HALVING = ("asha", "adaptive_asha")
LENGTHS = ("batches", "records", "epochs", "steps")
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
_TRUTH = ("yes", "no", "on", "off")
SCHEMES = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "azure": "azure", "hdfs": "hdfs", "viewfs": "hdfs"}


class Reworded:
    """A copy of a configuration in today's words, what there is to notice, and what is wrong already."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = without_nulls(config)
        self.notices: list[ConfigProblem] = []
        self.problems: list[Problem] = []
        self._drop_meaningless()
        self._searcher()
        self._rename()
        self._storage()
        self._launch()
        self._environment()
        self._lists()
        self._integrations()
        self._free()

    def notice(self, path: tuple[str | int, ...], problem: str, hint: str = "") -> None:
        self.notices.append(ConfigProblem(path=dotted(path), problem=problem, hint=hint))

    def problem(self, path: tuple[str | int, ...], problem: str, hint: str = "") -> None:
        self.problems.append(Problem(dotted(path), problem, hint))

    def _map(self, *path: str) -> dict[str, Any] | None:
        """The map at a place, if there is one."""
        found: Any = self.config
        for word in path:
            found = found.get(word) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None

    # -- everywhere -----------------------------------------------------------------------------------------------

    def _drop_meaningless(self) -> None:
        for path, reason in MEANINGLESS.items():
            place = self._map(*path[:-1])
            if place is not None and path[-1] in place:
                del place[path[-1]]
                self.notice(path, f"it means nothing here: {reason}", "Leave it out.")

    def _rename(self) -> None:
        for path, words in RENAMED.items():
            place = self._map(*path)
            if place is None or (path == ("environment", "environment_variables") and not _of_devices(place)):
                continue
            for old, new in words.items():
                if old in place:
                    self._replace(path, place, old, new)

    def _replace(self, path: Path, place: dict[str, Any], old: str, new: str) -> None:
        value = place.pop(old)
        if new in place:
            self.notice((*path, old), f"{new} says the same, and counts", f"Leave {old} out.")
        else:
            place[new] = value
            self.notice((*path, old), f"it is called {new} now", f"Write {new}.")

    # -- the searcher ---------------------------------------------------------------------------------------------

    def _searcher(self) -> None:
        searcher = self._map("searcher")
        if searcher is None:
            return
        name = searcher.get("name")
        if name == "async_halving":
            searcher["name"] = name = "asha"
            self.notice(("searcher", "name"), "async_halving is called asha now", "Write asha.")
        if name in REMOVED_SEARCHERS:
            hint = "Write adaptive_asha, with max_trials and max_time."
            self.problem(("searcher", "name"), f"there is no searcher {name!r} any more", hint)
            del self.config["searcher"]
            return
        self._length(searcher, name)
        self._stop_once(searcher)
        if name == "pbt":
            self._pbt(searcher)

    def _length(self, searcher: dict[str, Any], name: Any) -> None:
        if "max_length" not in searcher:
            return
        path = ("searcher", "max_length")
        if "max_time" in searcher:
            del searcher["max_length"]
            self.notice(path, "max_time says the same, and counts", "Leave max_length out.")
            return
        length = self._counted(searcher.pop("max_length"), path, searcher)
        if length is None:
            searcher["max_time"] = 1  # so that its absence is not a second problem
            return
        searcher["max_time"] = length
        words = f"it is called max_time now: {length} {searcher.get('unit', 'steps')}"
        if name in HALVING and "promotion" not in searcher:
            stops = searcher.pop("stop_once", False)
            searcher["promotion"] = stops is not True
            words += f", and with it promotion: {str(stops is not True).lower()}"
        self.notice(path, words, "Write max_time and unit, and promotion: true to have trials wait at a rung.")

    def _counted(self, written: Any, path: Path, searcher: dict[str, Any]) -> int | None:
        """A length, as a number or as ``{epochs: 3}``, whose unit goes to the searcher."""
        value = written
        if isinstance(written, dict):
            unit, value = next(iter(written.items())) if len(written) == 1 else ("", None)
            if unit not in LENGTHS:
                self.problem(path, f"{written!r} is not a length", "Write a number, or {epochs: 10}.")
                return None
            searcher.setdefault("unit", unit)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.problem(path, f"{value!r} is not a length", "Write a whole number from 1, or {epochs: 10}.")
            return None
        return value

    def _stop_once(self, searcher: dict[str, Any]) -> None:
        if "stop_once" not in searcher:
            return
        stops = searcher.pop("stop_once")
        path = ("searcher", "stop_once")
        if searcher.get("name") not in HALVING:
            self.notice(path, "only asha and adaptive_asha stop trials", "Leave it out.")
        elif not isinstance(stops, bool):
            self.problem(path, f"{stops!r} is neither true nor false", "Write promotion: true or false.")
        elif "promotion" in searcher:
            self.notice(path, "promotion says the opposite, and counts", "Leave stop_once out.")
        else:
            searcher["promotion"] = not stops
            self.notice(path, f"it is promotion: {str(not stops).lower()} now", "Write promotion.")

    def _pbt(self, searcher: dict[str, Any]) -> None:
        if isinstance(searcher.get("length_per_round"), dict):
            path = ("searcher", "length_per_round")
            length = self._counted(searcher["length_per_round"], path, searcher)
            searcher["length_per_round"] = length or 1
            if length:
                self.notice(path, f"it is {length} {searcher.get('unit')}", "Write a number, and unit.")
        for group in ("replace_function", "explore_function"):
            inside = searcher.pop(group, None)
            if isinstance(inside, dict):
                self.notice(("searcher", group), "what is in it stands in the searcher itself now", "Move it there.")
                searcher.update({key: value for key, value in inside.items() if key not in searcher})
            elif inside is not None:
                searcher[group] = inside

    # -- where checkpoints are ------------------------------------------------------------------------------------

    def _storage(self) -> None:
        written = self.config.get("checkpoint_storage")
        if isinstance(written, str):
            self._storage_text(written)
        storage = self._map("checkpoint_storage")
        if storage is None:
            return
        for word in CREDENTIALS:
            if word in storage:
                del storage[word]
                self.problem(
                    ("checkpoint_storage", word),
                    "credentials cannot stand here, because a configuration is written down and shown",
                    "Keep them with 'clutch secret put NAME' (as KEY:SECRET) and write credentials: NAME.",
                )
        if storage.get("type") == "shared_fs" and "container_path" in storage:
            del storage["container_path"]
            why = "it means nothing here: the folder has the same path everywhere"
            self.notice(("checkpoint_storage", "container_path"), why, "Leave it out.")
        kind = storage_kind(storage)
        if "type" not in storage and kind:
            storage["type"] = kind

    def _storage_text(self, text: str) -> None:
        """``s3://BUCKET/PREFIX`` or a folder, for a map that says the same."""
        parts = urlsplit(text)
        kind = SCHEMES.get(parts.scheme, "")
        path = ("checkpoint_storage",)
        self.config["checkpoint_storage"] = {}
        if "@" in parts.netloc or parts.query:
            hint = "Keep them with 'clutch secret put NAME' and write a map: type, bucket, credentials: NAME."
            self.problem(path, "credentials and options cannot stand in an address", hint)
        elif kind == "hdfs":
            self.config["checkpoint_storage"] = {"type": kind, "url": text}
        elif kind and parts.netloc:
            place = {"type": kind, "container" if kind == "azure" else "bucket": parts.netloc}
            prefix = parts.path.strip("/")
            self.config["checkpoint_storage"] = {**place, **({"prefix": prefix} if prefix else {})}
        elif text.startswith("/") or (parts.scheme == "file" and parts.path):
            self.config["checkpoint_storage"] = {"type": "directory", "container_path": parts.path}
        else:
            hint = "Write /FOLDER, s3://BUCKET/PREFIX, gs://BUCKET, hdfs://HOST/FOLDER, or a map with a type."
            self.problem(path, f"{text[:200]!r} is not a place", hint)

    # -- what starts the processes --------------------------------------------------------------------------------

    def _launch(self) -> None:
        """A word for a launcher without settings; a class needs no name."""
        written = self.config.get("launch")
        if isinstance(written, str):
            self.config["launch"] = {"class": written} if ":" in written else {"name": written}
        launch = self._map("launch")
        if launch is not None and "name" not in launch and launch_kind(launch):
            launch["name"] = launch_kind(launch)

    # -- environment, lists ---------------------------------------------------------------------------------------

    def _environment(self) -> None:
        environment = self._map("environment")
        if environment is None or not isinstance(environment.get("proxy_ports"), list):
            return
        ports = []
        for number, port in enumerate(environment["proxy_ports"]):
            if isinstance(port, dict):
                kept = {key: value for key, value in port.items() if key not in PORT_WORDS}
                path = ("environment", "proxy_ports", number, "unauthenticated")
                if port.get("unauthenticated"):
                    self.notice(path, "it means nothing here: the proxy asks everybody who they are", "Leave it out.")
                ports.append(kept)
            else:
                ports.append({"proxy_port": port})
        environment["proxy_ports"] = ports

    def _lists(self) -> None:
        for number, mount in enumerate(_maps(self.config.get("bind_mounts"))):
            if mount.pop("propagation", "rprivate") != "rprivate":
                self.notice(("bind_mounts", number, "propagation"), "it means nothing here: mounts are private")
        for number, rule in enumerate(_maps(self.config.get("output_rules"))):
            action = rule.get("action")
            if isinstance(action, dict) and list(action) == ["type"]:
                rule["action"] = action["type"]
                self.notice(("output_rules", number, "action"), "an action is one word now", f"Write {action['type']}.")
            if "name" not in rule and isinstance(rule.get("pattern"), str):
                rule["name"] = " ".join(rule["pattern"].replace(",", " ").split())[:100] or "rule"
                path = ("output_rules", number, "name")
                self.notice(path, f"it has no name and is called {rule['name']!r}", "Give it one: it labels trials.")

    def _integrations(self) -> None:
        integrations = self._map("integrations")
        if integrations is not None and isinstance(integrations.get("webhooks"), list):
            integrations["webhooks"] = {"webhook_name": integrations["webhooks"]}

    # -- what belongs to the user ---------------------------------------------------------------------------------

    def _free(self) -> None:
        data = self._map("data")
        if data is not None and data.get("secrets"):
            hint = "Keep them with 'clutch secret put NAME' and name them in environment.secrets."
            self.notice(("data", "secrets"), "data is written down and shown, this too", hint)
        entrypoint = self.config.get("entrypoint")
        words = entrypoint if isinstance(entrypoint, list) else [entrypoint]
        if any("determined.launch" in word for word in words if isinstance(word, str)):
            hint = "Write the program alone in entrypoint, and launch: torchrun (or ranks, accelerate)."
            self.notice(("entrypoint",), "determined.launch is not part of Clutch", hint)
        self._doubtful(self.config.get("hyperparameters"), ("hyperparameters",))

    def _doubtful(self, value: Any, path: tuple[str | int, ...]) -> None:
        """Text that may have been meant as a number or a truth value."""
        if isinstance(value, dict):
            for key, item in value.items():
                self._doubtful(item, (*path, key))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                self._doubtful(item, (*path, number))
        elif isinstance(value, str) and _NUMBER.fullmatch(value):
            self.notice(path, f"it is the text {value!r}, not a number", "Write it without quotes, as 1.0e-3.")
        elif isinstance(value, str) and value.lower() in _TRUTH:
            self.notice(path, f"it is the text {value!r}", "Write true or false if that is meant.")


PORT_WORDS = ("proxy_tcp", "unauthenticated", "default_service_id")
"""The proxy takes every port for what it is."""


def _of_devices(place: dict[str, Any]) -> bool:
    return all(isinstance(value, list | dict) for value in place.values())


def _maps(value: Any) -> list[dict[str, Any]]:
    """The maps of a list, each in its place; what is none is left to the models."""
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else []
