"""Calls are values: what is asked, what an answer means, when a call is tried again. All pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.sdk import calls, experiment_calls
from clutch.sdk.call import ERRORS, decode, pairs, path, rebuild
from clutch.sdk.output import output_query
from clutch.sdk.retry import DELAY_MAX_S, Attempts, Mishap
from clutch.sdk.wish import parse_moment, parse_mount, parse_secret, parse_size, parse_variable, submission
from clutch.wire.api import Page, SubmitTask, TaskDetail
from clutch.wire.errors import (
    BadRequest,
    BugError,
    ClutchError,
    Corrupt,
    ErrorView,
    NotFound,
    Unavailable,
    UserError,
)
from clutch.wire.programs import Mount, Program, SecretUse
from clutch.wire.resources import Resources
from clutch.wire.specs import OnNodeLost


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20))
def test_an_id_is_always_one_part_of_the_path(text: str) -> None:
    asked = path("tasks", text, "stop")
    assert asked.count("/") == 5
    assert "?" not in asked
    assert "#" not in asked


def test_a_query_leaves_out_what_was_not_said() -> None:
    fields = {"a": None, "b": "", "c": (), "d": [1, 2], "e": True, "f": False, "g": 0, "h": 1.5, "i": OnNodeLost.WAIT}
    said = pairs(fields)
    assert said == (("d", "1"), ("d", "2"), ("e", "true"), ("g", "0"), ("h", "1.5"), ("i", "wait"))


def test_superseded_points_can_be_denied() -> None:
    asked = experiment_calls.trial_metrics("e.1", name="loss", superseded=False).target
    assert asked == "/api/v1/trials/e.1/metrics?name=loss&superseded=false"
    assert "superseded" not in calls.task_metrics("e.1").target


def test_a_submit_is_repeatable_only_with_a_key() -> None:
    task = SubmitTask(program=Program(argv=("true",)))
    assert not calls.submit(task).repeatable
    call = calls.submit(msgspec.structs.replace(task, key="k"))
    assert call.repeatable
    assert msgspec.json.decode(call.body, type=SubmitTask).key == "k"


def test_an_output_query_says_only_what_differs() -> None:
    call = calls.follow_output(output_query("t/1", ranks=(0, 3), text="loss &", since=12.5))
    assert call.target == "/api/v1/tasks/t%2F1/output?ranks=0&ranks=3&since=12.5&text=loss+%26&follow=true"


@pytest.mark.parametrize("kind", ERRORS.values(), ids=list(ERRORS))
def test_every_error_comes_back_as_the_class_it_was_raised_as(kind: type[ClutchError]) -> None:
    raised = kind("the cause", object="the object", next_step="Do this.")
    found = rebuild(raised.status, msgspec.json.encode(raised.view()), calls.get_task("x"))
    assert type(found) is kind
    assert str(found) == str(raised)


def test_what_is_no_error_of_ours_is_told_by_its_status() -> None:
    call = calls.get_task("x")
    assert type(rebuild(404, b"", call)) is NotFound
    assert type(rebuild(418, b"<html>teapot", call)) is UserError
    assert "teapot" in str(rebuild(418, b"<html>teapot", call))
    assert type(rebuild(503, b"\xff", call)) is Unavailable
    unknown = msgspec.json.encode(ErrorView("of_tomorrow", "x"))
    assert type(rebuild(500, unknown, call)) is BugError


def test_an_answer_of_something_else_is_said_to_be_that() -> None:
    with pytest.raises(Corrupt, match="not one of a Clutch master"):
        decode(calls.get_task("x"), 200, b"<html>")


def test_an_answer_of_a_later_release_may_say_more() -> None:
    more = msgspec.json.encode({"items": [], "next": "c", "total": 7})
    assert decode(calls.list_tasks(), 200, more) == Page((), "c")
    assert calls.get_task("x").answer is TaskDetail


# -- trying again -------------------------------------------------------------------------------------------------


def _attempts(addresses: int = 3, *, repeatable: bool = True, until: float = 100.0) -> Attempts:
    return Attempts(addresses, repeatable=repeatable, until=until, first=2)


def test_every_address_is_tried_before_there_is_a_pause() -> None:
    attempts = _attempts()
    seen, pauses = [], []
    for _ in range(7):
        seen.append(attempts.index)
        pauses.append(attempts.failed(Mishap.UNREACHED, 0.0, 1.0))
    assert seen == [2, 0, 1, 2, 0, 1, 2]
    assert pauses == [0, 0, 0.1, 0, 0, 0.2, 0]


@pytest.mark.parametrize(
    ("mishap", "repeatable", "again"),
    [
        (Mishap.UNREACHED, False, True),
        (Mishap.NOT_LEADER, False, True),
        (Mishap.BUSY, False, False),
        (Mishap.BROKEN, False, False),
        (Mishap.BUSY, True, True),
        (Mishap.BROKEN, True, True),
    ],
)
def test_what_may_have_been_done_is_not_done_again_by_chance(mishap: Mishap, repeatable: bool, again: bool) -> None:
    assert (_attempts(repeatable=repeatable).failed(mishap, 0.0, 0.5) is not None) == again


@settings(deadline=None)
@given(st.integers(1, 5), st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), max_size=60))
def test_pauses_end_with_the_patience(addresses: int, steps: list[tuple[float, float]]) -> None:
    attempts, now = _attempts(addresses), 0.0
    for passed, chance in steps:
        now += passed
        pause = attempts.failed(Mishap.UNREACHED, now, chance)
        if now >= attempts.until:
            assert pause is None
        else:
            assert pause is not None
            assert 0 <= pause <= min(DELAY_MAX_S, attempts.until - now)


# -- a user's words -----------------------------------------------------------------------------------------------


def test_a_wish_becomes_a_submission() -> None:
    task = submission(
        ["python", "train.py"], "sha256:x", "k",
        {"slots": 2, "cpus": 1.5, "memory": "2GiB", "environment": {"A": "1"}, "secrets": ["hf-token"], "count": 3,
         "mounts": ["/data:/d:rw"], "ports": [0], "image": "python:3.12", "on_node_lost": "restart"},
    )  # fmt: skip
    assert task.resources == Resources(slots=2, kind="", millicpus=1500, memory_bytes=2 * 2**30)
    assert task.program.secrets == (SecretUse("hf-token", "HF_TOKEN"),)
    assert task.program.mounts == (Mount("/data", "/d", False),)
    assert task.program.image is not None
    assert (task.count, task.key, task.on_node_lost) == (3, "k", OnNodeLost.RESTART)


def test_a_wish_of_nothing_is_the_apis_defaults() -> None:
    assert submission(["true"], "", "", {}) == SubmitTask(program=Program(argv=("true",)))


@pytest.mark.parametrize(
    ("text", "size"), [("512M", 2**29), ("1.5g", 3 * 2**29), ("16 GiB", 2**34), ("1kb", 1000), (7, 7)]
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "bad",
    [
        lambda: parse_size("lots"),
        lambda: parse_size("1XB"),
        lambda: parse_secret("=V"),
        lambda: parse_secret("a=1x"),
        lambda: parse_mount("data:/d"),
        lambda: parse_mount("/a:/b:rx"),
        lambda: parse_variable("A"),
        lambda: parse_variable("1A=2"),
        lambda: parse_moment("yesterday", 0.0),
        lambda: submission([], "", "", {}),
        lambda: submission(["x"], "", "", {"on_node_lost": "panic"}),
    ],
)
def test_what_cannot_be_understood_says_how_to_write_it(bad: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        bad()
    assert caught.value.next_step


def test_moments() -> None:
    assert parse_moment("10m", 1000.0) == 400.0
    assert parse_moment("1760000000", 5.0) == 1760000000
    assert parse_moment("1970-01-01T00:01", 0.0) == 60.0
    assert parse_moment("1970-01-01T01:00+01:00", 0.0) == 0.0
