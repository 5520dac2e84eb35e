"""The API's own description, turned against it: whatever is sent, nothing is answered with a bug.

Each operation of /openapi.json is called with values that fit its schema and with values that do not, by callers who
are let in. Every answer that refuses must be an ``ErrorView``.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from api_house import House, open_house, submission
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from clutch.wire.access import Role, TokenKind, TokenView
from clutch.wire.errors import ErrorView
from clutch.wire.ids import MemberId, TaskId

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis

SKIPPED = ("log_out",)
"""It would end the session with which everything else is asked."""
ALLOWED_5XX = (503, 504, 507)
"""The cluster is at fault, and says so."""
PATIENCE_S = 2.0
"""What waits for something to happen (long polls) may wait; that is no failure."""


class Target:
    def __init__(self, url: str, document: dict[str, Any], tokens: dict[str, str]) -> None:
        self.url, self.document, self.tokens = url, document, tokens

    def token_for(self, needs: str) -> str:
        return self.tokens.get(needs, self.tokens["admin"])


async def _furnish(house: House) -> None:
    """Something of everything, so that what is asked for is sometimes there."""
    await house.node("n1", 4)
    await house.user("ada", Role.EDITOR, "workspace:default")
    async with house.client() as client:
        task = (await client.post("/api/v1/tasks", json=submission(name="t"))).json()["task"]
        await client.post("/api/v1/tasks", json=submission(resources={"slots": 100, "kind": "artificial"}))
    await house.state_is(task, "running")
    state, access = house.services.loop.state, house.services.access
    member = MemberId(TaskId(task), "main", 0)
    house.tokens["task"] = access.task_token(member, state.members[member].fence(state.generation))
    view = TokenView(id="", kind=TokenKind.ENROL, user="admin", pool="default")
    house.tokens["enrolment"] = (await access.make_token(view, 600.0)).token


@contextmanager
def target() -> Iterator[Target]:
    """A house in a thread of its own, because who asks waits for each answer."""
    ready, stop = threading.Event(), threading.Event()
    found: list[Target] = []
    failed: list[BaseException] = []

    async def live() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with open_house(Path(folder)) as house:
                await _furnish(house)
                async with house.client() as client:
                    document = (await client.get("/openapi.json")).json()
                found.append(Target(house.url, document, house.tokens))
                ready.set()
                await asyncio.to_thread(stop.wait)

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60) and found, failed
        yield found[0]
    finally:
        stop.set()
        thread.join(60)
    assert not failed, failed


def judge(case: Any, answer: requests.Response) -> str:
    """What is wrong with an answer, if anything."""
    told = f"{case.method} {case.formatted_path} {case.query!r} {case.body!r}: {answer.status_code} {answer.text[:300]}"
    if answer.status_code >= 500 and answer.status_code not in ALLOWED_5XX:
        return told
    if answer.status_code >= 400 and case.method != "HEAD" and answer.headers.get("x-request-id"):
        try:
            view = msgspec.json.decode(answer.content, type=ErrorView)
        except msgspec.MsgspecError:
            return f"not an ErrorView: {told}"
        if not view.code or not view.cause:
            return f"says nothing: {told}"
    return ""


class Attack:
    """Requests to one target, and what was wrong with their answers."""

    def __init__(self, aim: Target, session: requests.Session) -> None:
        self.aim, self.session = aim, session
        self.sent = 0
        self.wrong: list[str] = []

    def send(self, case: Any, token: str) -> None:
        if isinstance(case.query, dict):
            for name in ("follow", "token"):  # a stream without end; another token than the one we come with
                case.query.pop(name, None)
        self.sent += 1
        headers = {"Authorization": f"Bearer {token}"}
        try:
            answer = case.call(base_url=self.aim.url, session=self.session, headers=headers, timeout=PATIENCE_S)
        except requests.exceptions.ReadTimeout:
            return
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # the client itself cannot send such a thing
        problem = judge(case, answer)
        if problem:
            self.wrong.append(problem)

    def operation(self, operation: Any, mode: Any, examples: int, seed_number: int) -> None:
        token = self.aim.token_for(operation.definition.raw["x-needs"])

        @seed(seed_number)
        @settings(
            max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def once(case: Any) -> None:
            self.send(case, token)

        with suppress(Unsatisfiable):  # nothing that is wrong can be said to a route without parameters
            once()


def attack(examples: int, seed_number: int) -> tuple[int, list[str]]:
    """How many requests were made, and what was wrong with their answers."""
    with target() as aim, requests.Session() as session:
        session.trust_env = False
        made = Attack(aim, session)
        schema = schemathesis.openapi.from_dict(aim.document)
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.definition.raw["operationId"] not in SKIPPED:
                for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                    made.operation(operation, mode, examples, seed_number)
        return made.sent, made.wrong


@pytest.mark.filterwarnings("ignore")
def test_no_answer_is_a_bug() -> None:
    """A few examples of each operation, the same ones each time."""
    sent, wrong = attack(examples=1, seed_number=1)
    assert sent > 100
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_no_answer_is_a_bug_however_long_one_tries() -> None:
    """Others each time; the seed of a failure is printed, and CLUTCH_FUZZ_SEED replays it."""
    number = int(os.environ.get("CLUTCH_FUZZ_SEED", "0")) or int.from_bytes(os.urandom(4))
    sent, wrong = attack(examples=8, seed_number=number)
    assert sent > 1000
    assert not wrong, f"seed {number}\n" + "\n".join(wrong[:50])
