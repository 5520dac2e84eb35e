"""What is submitted becomes a spec, or one answer names all that is wrong with it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.checks import NAME, check_task
from clutch.master.submission import key_of, spec_of, task_id
from clutch.wire.api import SubmitTask
from clutch.wire.errors import BadRequest
from clutch.wire.ids import TaskId
from clutch.wire.programs import Program, SecretUse, program_in
from clutch.wire.resources import Resources
from clutch.wire.specs import Members, RoleSpec

TASK = TaskId("c-abcdefgh")
PROGRAM = Program(argv=("python", "train.py"), environment={"A": "1"}, secrets=(SecretUse("key", "KEY"),))


@given(st.text("abcdefghijklmnopqrstuvwxyzABC", min_size=1, max_size=20), st.binary(min_size=5, max_size=8))
def test_ids_are_short_names_and_say_their_kind(kind: str, chance: bytes) -> None:
    made = task_id(kind, chance)
    assert NAME.fullmatch(made) and len(made) == 10 and made[0] == kind[0].lower()
    assert not set(made[2:]) & set("ilou"), "letters that are easily misread"


def test_ids_use_all_their_chance() -> None:
    made = {task_id("command", number.to_bytes(5)) for number in range(0, 2**40, 2**40 // 5000)}
    assert len(made) >= 5000


def test_a_command_becomes_one_role_of_equal_members() -> None:
    wish = SubmitTask(program=PROGRAM, count=3, resources=Resources(slots=2), project="p", workspace="lab")
    spec = spec_of(wish, TASK, "ada")
    check_task(spec)
    assert spec.roles == (RoleSpec("main", Members(3, Resources(slots=2))),)
    assert (spec.name, spec.owner, spec.workspace, spec.project) == (TASK, "ada", "lab", "p")
    assert program_in(spec.payload) == PROGRAM
    roles = (RoleSpec("actor", Members(2, Resources())), RoleSpec("trainer", Members(1, Resources(slots=1))))
    assert spec_of(SubmitTask(program=PROGRAM, roles=roles), TASK, "ada").roles == roles


def test_everything_that_is_wrong_is_named_at_once() -> None:
    program = Program(argv=("x\0",), environment={"1A": "b", "CLUTCH_X": "c"}, ports=(-1,), idle_timeout_s=float("nan"))
    wish = SubmitTask(program=program, name="no name", pool="", leave_within_s=float("inf"))
    with pytest.raises(BadRequest) as caught:
        spec_of(wish, TASK, "ada")
    said = f"{caught.value.path} {caught.value.cause}"
    for path in ("pool", "name", "leave_within_s", "program.argv[0]", "1A", "CLUTCH_X", "ports[0]", "idle_timeout_s"):
        assert path in said, path
    with pytest.raises(BadRequest, match="either roles or resources"):
        spec_of(SubmitTask(program=PROGRAM, roles=(RoleSpec("a", Members(1, Resources())),), count=2), TASK, "ada")


def test_keys_of_different_users_never_meet() -> None:
    assert key_of("ada", "") == ""
    assert key_of("ada", "k") != key_of("eve", "k")
    assert msgspec.json.decode(msgspec.json.encode(key_of("ada", "a/b"))) == "ada/a/b"
