"""From what was submitted to a task's spec: everything an agent could later choke on is refused here. Pure.

``check_task`` in the core looks at roles, numbers and names; this looks at the program, which the core never opens.
"""

from __future__ import annotations

import math
import re

import msgspec

from clutch.core.checks import NAME
from clutch.wire.api import SubmitTask
from clutch.wire.errors import BadRequest
from clutch.wire.ids import NodeId, PoolName, TaskId
from clutch.wire.programs import Program
from clutch.wire.specs import Members, RoleSpec, TaskSpec

ROLE = "main"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}")
ARGUMENTS_MAX = 10_000
PROGRAM_MAX_BYTES = 128 * 2**10
"""What Linux takes for one argument; and each program is kept in the journal."""
TAKEN = ("stop",)
"""Words that stand where a task's name does in the API's paths."""
PORTS_MAX = 16
KEY_MAX = 200
WINDOW_MAX_S = 7 * 86400.0
SIGNALS = range(65)
RESERVED = "CLUTCH_"
_LETTERS = "abcdefghjkmnpqrstvwxyz0123456789"
"""32 letters that are told apart when read aloud."""


def task_id(kind: str, chance: bytes) -> TaskId:
    """A short id: the kind's first letter and eight more, from at least five random bytes."""
    number = int.from_bytes(chance[:5])
    letters = "".join(_LETTERS[(number >> shift) & 31] for shift in range(35, -1, -5))
    return TaskId(f"{kind[0].lower()}-{letters}")


def key_of(owner: str, key: str) -> str:
    """A submitter's key among everybody's; one of another user never meets it."""
    return f"{owner}/{key}" if key else ""


class _Wrong:
    """Collects what is wrong, so that one answer names all of it."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []

    def unless(self, holds: object, path: str, cause: str, hint: str = "") -> None:
        if not holds:
            self.found.append((path, cause, hint))

    def close(self, subject: str) -> None:
        if not self.found:
            return
        path, cause, hint = self.found[0]
        more = "; ".join(f"{p}: {c}" for p, c, _ in self.found[1:10])
        raise BadRequest(f"{cause}; and also {more}" if more else cause, object=subject, path=path, next_step=hint)


def spec_of(wish: SubmitTask, task: TaskId, owner: str) -> TaskSpec:
    """The spec of a submitted task, under its id's name unless it has one. ``BadRequest`` names all that is wrong."""
    wrong = _Wrong()
    _check_wish(wrong, wish)
    _check_program(wrong, wish.program)
    wrong.close(f"task {wish.name!r}" if NAME.fullmatch(wish.name) else "task")
    roles = wish.roles or (RoleSpec(ROLE, Members(wish.count, wish.resources)),)
    return TaskSpec(
        kind=wish.kind,
        name=wish.name or task,
        pool=PoolName(wish.pool),
        roles=roles,
        owner=owner,
        workspace=wish.workspace,
        project=wish.project,
        priority=wish.priority,
        preemptible=wish.preemptible,
        leave_within_s=wish.leave_within_s,
        max_restarts=wish.max_restarts,
        on_node_lost=wish.on_node_lost,
        excluded_nodes=tuple(NodeId(node) for node in wish.excluded_nodes),
        payload=msgspec.msgpack.encode(wish.program),
    )


def _check_wish(wrong: _Wrong, wish: SubmitTask) -> None:
    words = "Use letters, digits, '.', '_' and '-', at most 128."
    for field in ("kind", "pool", "workspace"):
        wrong.unless(NAME.fullmatch(getattr(wish, field)), field, "it is not a name", words)
    for field in ("name", "project"):
        value = getattr(wish, field)
        wrong.unless(not value or NAME.fullmatch(value), field, "it is not a name", words)
    wrong.unless(wish.name not in TAKEN, "name", f"{wish.name!r} is a word of the API", "Choose another name.")
    for number, node in enumerate(wish.excluded_nodes):
        wrong.unless(NAME.fullmatch(node), f"excluded_nodes[{number}]", "it is not a node's name", words)
    wrong.unless(
        len(wish.key) <= KEY_MAX and wish.key.isprintable(), "key", f"it is not one line of {KEY_MAX} characters"
    )
    window = math.isfinite(wish.leave_within_s) and 0 <= wish.leave_within_s <= WINDOW_MAX_S
    wrong.unless(window, "leave_within_s", f"it is not from 0 to {WINDOW_MAX_S:g} seconds")
    if wish.roles:
        plain = wish.count == 1 and wish.resources == type(wish.resources)()
        wrong.unless(plain, "roles", "either roles or resources and count", "Say it in the roles.")


def _check_program(wrong: _Wrong, program: Program) -> None:
    size = len(msgspec.msgpack.encode(program))
    wrong.unless(
        size <= PROGRAM_MAX_BYTES,
        "program",
        f"it has {size} bytes, at most {PROGRAM_MAX_BYTES} are kept",
        "Put long scripts and data into the working directory that is uploaded.",
    )
    wrong.unless(program.argv and program.argv[0], "program.argv", "there is no command", "Say what to run.")
    wrong.unless(len(program.argv) <= ARGUMENTS_MAX, "program.argv", f"more than {ARGUMENTS_MAX} arguments")
    for number, word in enumerate(program.argv[:ARGUMENTS_MAX]):
        wrong.unless("\0" not in word, f"program.argv[{number}]", "it holds a NUL character")
    for name, value in program.environment.items():
        _check_variable(wrong, name, f"program.environment.{name[:80]}")
        wrong.unless("\0" not in value, f"program.environment.{name[:80]}", "its value holds a NUL character")
    wrong.unless(
        not program.code or DIGEST.fullmatch(program.code),
        "program.code",
        "it is not the digest of an upload",
        "Upload the working directory and give its 'sha256:...'.",
    )
    for number, secret in enumerate(program.secrets):
        wrong.unless(NAME.fullmatch(secret.name), f"program.secrets[{number}].name", "it is not a secret's name")
        _check_variable(wrong, secret.variable, f"program.secrets[{number}].variable")
    _check_surroundings(wrong, program)


def _check_variable(wrong: _Wrong, name: str, path: str) -> None:
    wrong.unless(VARIABLE.fullmatch(name), path, "it is not the name of an environment variable")
    wrong.unless(not name.startswith(RESERVED), path, f"names with {RESERVED} are given by the cluster")


def _check_surroundings(wrong: _Wrong, program: Program) -> None:
    image = program.image
    if image is not None:
        wrong.unless(IMAGE.fullmatch(image.name), "program.image.name", "it is not an image's name")
        wrong.unless(0 <= image.shm_bytes < 2**50, "program.image.shm_bytes", "it is not a size")
        secret = image.registry_secret
        wrong.unless(not secret or NAME.fullmatch(secret), "program.image.registry_secret", "it is not a secret's name")
    for number, mount in enumerate(program.mounts):
        for field in ("source", "target"):
            value = getattr(mount, field)
            right = value.startswith("/") and "\0" not in value and ".." not in value.split("/")
            wrong.unless(right, f"program.mounts[{number}].{field}", "it is not an absolute path without '..'")
    wrong.unless(len(program.ports) <= PORTS_MAX, "program.ports", f"more than {PORTS_MAX} ports")
    for number, port in enumerate(program.ports[:PORTS_MAX]):
        wrong.unless(0 <= port < 2**16, f"program.ports[{number}]", f"{port} is not a port")
    idle = math.isfinite(program.idle_timeout_s) and 0 <= program.idle_timeout_s <= 366 * 86400
    wrong.unless(idle, "program.idle_timeout_s", "it is not a number of seconds")
    wrong.unless(0 < program.output_cap_bytes < 2**50, "program.output_cap_bytes", "it is not a size")
    wrong.unless(program.leave_signal in SIGNALS, "program.leave_signal", "it is not a signal's number")
