"""The library's own description, turned against it: whatever is sent, nothing is answered with a bug."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from library_house import House, open_house, served

from clutch.testing.postgres import fresh_database
from clutch.wire.errors import ErrorView

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis

TAGS = ("models", "templates", "webhooks")
SKIPPED = ("test_webhook",)
"""It would send something to whatever address was made up."""
NAMES = {"workspace": "default", "model": "m", "version": "1", "alias": "best", "template": "t", "name": "w"}
"""Things that are there; a path is made of them every other time."""


class Attack:
    """Requests to one master, and what was wrong with their answers."""

    def __init__(self, url: str, token: str, document: dict[str, Any]) -> None:
        self.url, self.token, self.document = url, token, document
        self.sent = self.taken = 0
        self.wrong: list[str] = []

    def send(self, case: Any, session: requests.Session) -> None:
        if isinstance(case.query, dict):
            case.query.pop("token", None)
        if self.sent % 2 and isinstance(case.path_parameters, dict):
            case.path_parameters.update({k: v for k, v in NAMES.items() if k in case.path_parameters})
            if "over" in case.path_parameters:
                case.path_parameters["over"] = "workspace:default"
        self.sent += 1
        try:
            headers = {"Authorization": f"Bearer {self.token}"}
            answer = case.call(base_url=self.url, session=session, headers=headers, timeout=10)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return  # the client itself cannot send such a thing
        self.taken += answer.status_code < 300
        asked = f"{case.method} {case.formatted_path} {case.query!r} {case.body!r}"
        told = f"{asked}: {answer.status_code} {answer.text[:300]}"
        if answer.status_code >= 500:
            self.wrong.append(told)
        elif answer.status_code >= 400 and answer.headers.get("x-request-id"):
            view = msgspec.json.decode(answer.content, type=ErrorView)
            if not view.code or not view.cause:
                self.wrong.append(told)

    def run(self, examples: int) -> None:
        with requests.Session() as session:
            session.trust_env = False
            for found in schemathesis.openapi.from_dict(self.document).get_all_operations():
                raw = found.ok().definition.raw
                if raw["operationId"] in SKIPPED or not set(raw.get("tags", ())) & set(TAGS):
                    continue
                for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                    self.operation(found.ok(), mode, examples, session)

    def operation(self, operation: Any, mode: Any, examples: int, session: requests.Session) -> None:
        @seed(1)
        @settings(
            max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def once(case: Any) -> None:
            self.send(case, session)

        try:
            once()
        except Unsatisfiable:
            return  # nothing that is wrong can be said to a route without parameters


async def attacked(house: House, examples: int) -> Attack:
    house.checkpoints.add("c", "string", "0")
    admin = await house.admin()
    await admin.good("POST", "/workspaces/default/models", {"name": "m"})
    await admin.good("POST", "/workspaces/default/models/m/versions", {"checkpoint": "c", "aliases": ["best"]})
    await admin.good("PUT", "/workspaces/default/templates/t", {"config": {}})
    hook = {"name": "w", "scope": "workspace:default", "url": "http://127.0.0.1:9/"}
    await admin.good("POST", "/webhooks", hook)
    document = house.app.openapi_schema.to_schema()
    async with served(house) as url:
        attack = Attack(url, admin.token, document)
        await asyncio.to_thread(attack.run, examples)
    return attack


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def test_no_answer_of_the_library_is_a_bug(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with AsyncExitStack() as stack:
        db = ""
        if store == "postgres":
            server = request.getfixturevalue("postgres_address")
            db = await stack.enter_async_context(fresh_database(server, f"fuzz_{uuid.uuid4().hex}"))
        house = await stack.enter_async_context(open_house(tmp_path, db))
        attack = await attacked(house, 2)
    assert attack.sent > 100 and attack.taken > 10
    assert not attack.wrong, "\n".join(attack.wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
async def test_no_answer_of_the_library_is_a_bug_however_long_one_asks(house: House) -> None:
    attack = await attacked(house, 60)
    assert not attack.wrong, "\n".join(attack.wrong)
