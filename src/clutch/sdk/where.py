"""Where the cluster is and how to be let in: what was said, what the environment says, what ``clutch login`` kept, or
the ``clutch up`` of this machine, in that order.

The environment is an argument: a program passes its own, a test another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from clutch.wire.errors import BadRequest, NotAuthenticated, NotFound

PROFILE, ENDPOINT = "profile.json", "endpoint.json"
T = TypeVar("T")


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of one cluster's masters, and a token. ``source`` says in words where this was found."""

    masters: tuple[str, ...]
    token: str = ""
    ca_file: str = ""
    user: str = ""
    source: str = ""


class Endpoint(msgspec.Struct, frozen=True):
    """What ``clutch up`` leaves for the commands of its user."""

    url: str
    token_file: str = ""
    ca_file: str = ""


class Given(msgspec.Struct, frozen=True):
    """What somebody said explicitly; empty: nothing."""

    master: str = ""
    token: str = ""
    ca_file: str = ""


def config_folder(environment: Mapping[str, str]) -> Path:
    return _folder(environment, "XDG_CONFIG_HOME", ".config")


def data_folder(environment: Mapping[str, str]) -> Path:
    return _folder(environment, "XDG_DATA_HOME", ".local/share")


def _folder(environment: Mapping[str, str], variable: str, otherwise: str) -> Path:
    given = environment.get(variable, "")
    home = Path(environment["HOME"]) if environment.get("HOME") else Path.home()
    return (Path(given) if given else home / otherwise) / "clutch"


def surroundings() -> Mapping[str, str]:
    """The environment of this process, for a client that was told nothing."""
    return os.environ


def find(environment: Mapping[str, str], given: Given = Given()) -> Where:  # noqa: B008 -- frozen
    """The cluster to talk to. ``NotFound`` when nothing names one."""
    found = _named(environment, given) or read_profile(environment) or _local(environment)
    if found is None:
        raise NotFound(
            "nothing says where it is",
            object="cluster",
            next_step="Start one here with 'clutch up', or name one with 'clutch login URL' or CLUTCH_MASTER.",
        )
    return Where(
        masters=found.masters,
        token=given.token or environment.get("CLUTCH_TOKEN", "") or found.token,
        ca_file=given.ca_file or environment.get("CLUTCH_CA_FILE", "") or found.ca_file,
        user=found.user,
        source=found.source,
    )


def split_masters(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _named(environment: Mapping[str, str], given: Given) -> Where | None:
    """A master by its address. The token that is kept for that very address is good for it too."""
    master, source = (
        (given.master, "--master") if given.master else (environment.get("CLUTCH_MASTER", ""), "CLUTCH_MASTER")
    )
    masters = split_masters(master)
    if not masters:
        return None
    for kept in (read_profile(environment), _local(environment)):
        if kept is not None and {_plain(url) for url in masters} <= {_plain(url) for url in kept.masters}:
            return Where(masters=masters, token=kept.token, ca_file=kept.ca_file, user=kept.user, source=source)
    return Where(masters=masters, source=source)


def _plain(url: str) -> str:
    return (url if "//" in url else f"http://{url}").rstrip("/").lower()


def read_profile(environment: Mapping[str, str]) -> Where | None:
    """What ``clutch login`` kept, if anything."""
    return _read(config_folder(environment) / PROFILE, Where)


def write_profile(environment: Mapping[str, str], where: Where) -> Path:
    """Keeps a login for its user alone. A reader sees the old file or the new one, never half of one."""
    folder = config_folder(environment)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / PROFILE
    draft = folder / f".{PROFILE}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(where, source=str(path)))) + b"\n")
    draft.replace(path)
    return path


def forget_profile(environment: Mapping[str, str]) -> bool:
    """Whether there was a login to forget."""
    path = config_folder(environment) / PROFILE
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


def _local(environment: Mapping[str, str]) -> Where | None:
    """The ``clutch up`` of this machine, by the file it leaves."""
    path = data_folder(environment) / ENDPOINT
    endpoint = _read(path, Endpoint)
    if endpoint is None:
        return None
    token = ""
    if endpoint.token_file:
        try:
            token = Path(endpoint.token_file).read_text().strip()
        except OSError as error:
            raise NotAuthenticated(
                f"its token cannot be read: {error.strerror}",
                object=endpoint.token_file,
                next_step="Use 'clutch login', or the user who started 'clutch up'.",
            ) from error
    return Where(masters=(endpoint.url,), token=token, ca_file=endpoint.ca_file, source=str(path))


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadRequest(f"it cannot be read: {error.strerror}", object=str(path)) from error
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        step = "Remove it and log in again with 'clutch login'."
        raise BadRequest(f"it is damaged: {error}", object=str(path), next_step=step) from None
