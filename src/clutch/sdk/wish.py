"""What a user asks for, in a user's words, as the submission the API takes. Pure.

``clutch run`` and ``Client.run`` speak these same words, so what works in one works in the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from clutch.wire.api import SubmitTask
from clutch.wire.errors import BadRequest
from clutch.wire.programs import (
    AccelerateLaunch,
    Image,
    Launching,
    Mount,
    OwnLaunch,
    PlainLaunch,
    Program,
    RanksLaunch,
    SecretUse,
    TorchrunLaunch,
)
from clutch.wire.resources import CUDA, Resources
from clutch.wire.specs import DEFAULT_PRIORITY, OnNodeLost

UNITS = {
    "": 1, "b": 1, "k": 2**10, "kib": 2**10, "kb": 10**3, "m": 2**20, "mib": 2**20, "mb": 10**6,
    "g": 2**30, "gib": 2**30, "gb": 10**9, "t": 2**40, "tib": 2**40, "tb": 10**12,
}  # fmt: skip
DURATIONS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LAUNCHES: dict[str, Callable[[], Launching]] = {
    "ranks": RanksLaunch,
    "torchrun": TorchrunLaunch,
    "accelerate": AccelerateLaunch,
}
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Wish(TypedDict, total=False):
    """Everything about a task but its command. What is not given has the API's default."""

    slots: int
    kind: str
    cpus: float
    memory: str | int
    count: int
    pool: str
    name: str
    workspace: str
    project: str
    priority: int
    environment: Mapping[str, str]
    secrets: Sequence[str]
    image: str
    mounts: Sequence[str]
    ports: Sequence[int]
    max_restarts: int
    preemptible: bool
    leave_within_s: float
    on_node_lost: str
    excluded_nodes: Sequence[str]
    idle_timeout_s: float
    rendezvous: bool
    launch: str
    task_kind: str


def submission(argv: Sequence[str], code: str, key: str, wish: Wish) -> SubmitTask:
    """The submission of a command. ``code`` is the digest of its working directory, or empty."""
    unknown = sorted(set(wish) - set(Wish.__annotations__))
    if unknown:
        raise BadRequest(
            f"there is no option {unknown[0]!r}", object="run", next_step=f"Options: {', '.join(Wish.__annotations__)}."
        )
    if not argv:
        raise BadRequest(
            "there is no command", object="run", next_step="Write it behind '--': clutch run -- python train.py"
        )
    image = wish.get("image", "")
    return SubmitTask(
        program=Program(
            argv=tuple(argv),
            environment=dict(wish.get("environment", {})),
            code=code,
            secrets=tuple(parse_secret(text) for text in wish.get("secrets", ())),
            image=Image(image) if image else None,
            mounts=tuple(parse_mount(text) for text in wish.get("mounts", ())),
            ports=tuple(wish.get("ports", ())),
            idle_timeout_s=wish.get("idle_timeout_s", 0.0),
            rendezvous=wish.get("rendezvous", False),
            launch=parse_launch(wish.get("launch", "")),
        ),
        name=wish.get("name", ""),
        kind=wish.get("task_kind", "command"),
        pool=wish.get("pool", "default"),
        workspace=wish.get("workspace", "default"),
        project=wish.get("project", ""),
        resources=Resources(
            slots=wish.get("slots", 0),
            kind=wish.get("kind") or ("" if wish.get("slots") else CUDA),  # none: what the pool has
            millicpus=round(wish.get("cpus", 0.0) * 1000),
            memory_bytes=parse_size(wish.get("memory", 0)),
        ),
        count=wish.get("count", 1),
        priority=wish.get("priority", DEFAULT_PRIORITY),
        preemptible=wish.get("preemptible", True),
        leave_within_s=wish.get("leave_within_s", 30.0),
        max_restarts=wish.get("max_restarts", 0),
        on_node_lost=_on_node_lost(wish.get("on_node_lost", OnNodeLost.WAIT)),
        excluded_nodes=tuple(wish.get("excluded_nodes", ())),
        key=key,
    )


def parse_launch(text: str) -> Launching:
    """What starts a member's processes: ``ranks``, ``torchrun``, ``accelerate``, or a class as ``MODULE:CLASS``."""
    if ":" in text:
        return OwnLaunch(spot=text)
    if text in ("", "plain"):
        return PlainLaunch()
    if text not in LAUNCHES:
        step = f"Write plain, {', '.join(LAUNCHES)}, or MODULE:CLASS."
        raise BadRequest(f"{text!r} starts nothing", object="--launch", next_step=step)
    return LAUNCHES[text]()


def _on_node_lost(text: str) -> OnNodeLost:
    try:
        return OnNodeLost(text)
    except ValueError:
        step = f"Write one of: {', '.join(OnNodeLost)}."
        raise BadRequest(f"{text!r} is no answer to a lost node", object="--on-node-lost", next_step=step) from None


def parse_size(text: str | int) -> int:
    """``512M``, ``16GiB``, ``1.5g``: bytes. Units without a B, or with iB, are powers of two."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-zA-Z]*)\s*", str(text))
    if found is None or found[2].lower() not in UNITS:
        raise BadRequest(f"{text!r} is not an amount of memory", object="--memory", next_step="Write 512M, or 16GiB.")
    return int(float(found[1]) * UNITS[found[2].lower()])


def parse_secret(text: str) -> SecretUse:
    """``NAME`` or ``NAME=VARIABLE``; without a variable, the name in capitals."""
    name, given, variable = text.partition("=")
    variable = variable if given else re.sub(r"[^A-Za-z0-9_]", "_", name).upper()
    if not name or not VARIABLE.fullmatch(variable):
        step = "Write NAME, or NAME=VARIABLE."
        raise BadRequest(f"{text!r} names no secret and variable", object="--secret", next_step=step)
    return SecretUse(name, variable)


def parse_mount(text: str) -> Mount:
    """``SOURCE``, ``SOURCE:TARGET`` or ``SOURCE:TARGET:rw``; read-only unless it says ``rw``."""
    source, *rest = text.split(":")
    target = rest[0] if rest else source
    mode = rest[1] if len(rest) > 1 else "ro"
    if not source.startswith("/") or not target.startswith("/") or mode not in ("ro", "rw") or len(rest) > 2:
        step = "Write /folder/of/the/node:/where/it/appears, with ':rw' behind it to be able to write."
        raise BadRequest(f"{text!r} is not a mount", object="--mount", next_step=step)
    return Mount(source, target, mode == "ro")


def parse_variable(text: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, given, value = text.partition("=")
    if not given or not VARIABLE.fullmatch(name):
        raise BadRequest(f"{text!r} sets no variable", object="--env", next_step="Write NAME=VALUE.")
    return name, value


def parse_moment(text: str, now: float) -> float:
    """``10m``, ``2h`` (so long ago), seconds since 1970, or an ISO date and time (in UTC, unless it says)."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)([smhdw]?)", text.strip())
    if found is not None:
        number = float(found[1])
        return number if not found[2] and number > 1e8 else now - number * DURATIONS[found[2]]
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        step = "Write 10m, 2h, 3d (ago), or 2026-03-01T12:00."
        raise BadRequest(f"{text!r} is no moment", object="time", next_step=step) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
