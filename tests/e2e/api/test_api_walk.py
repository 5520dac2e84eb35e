"""Every route of the app, tried by everybody who may not use it. A new route without a case here is a failure.

The callers: nobody, an unknown token, an agent, a member, an enrolment token, a user without roles, one with too low a
role, one of a foreign workspace. What a route declares (``Needs``) says what each of them must be told; what it then
really does is asked of the running master, over its socket.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import websockets
from api_house import House, open_house, submission
from websockets.asyncio.client import connect

from clutch.master.access.caller import IN_WORKSPACE
from clutch.master.api.app import all_routes
from clutch.master.api.guard import CLUSTER_WIDE, PUBLIC, needs_of
from clutch.wire.access import Needs, Role, TokenKind, TokenView
from clutch.wire.ids import MemberId, TaskId
from clutch.workloads.experiment.routes import (
    checkpoints,
    experiments,
    models,
    run,
    templates,
    trials,
    webhooks,
)

DIGEST = "sha256:" + "a" * 64
EXPERIMENT = {
    "name": "lab-experiment",
    "workspace": "lab",
    "entrypoint": ["true"],
    "searcher": {"name": "single", "metric": "loss"},
    "resources": {"slots_per_trial": 1},
}


class Case(msgspec.Struct, frozen=True):
    """How a route that asks about a workspace is called about something in ``lab``."""

    body: Any = None
    query: str = ""
    hides: bool = False
    """A list: others are answered with it, and find nothing of the lab in it."""
    content: bytes | None = None


CASES: dict[str, Case] = {
    # tasks and what belongs to them
    "submit_task": Case(submission(workspace="lab")),
    "list_tasks": Case(hides=True),
    "get_task": Case(),
    "get_task_story": Case(),
    "why_task": Case(),
    "stop_task": Case(),
    "kill_task": Case(),
    "pause_task": Case(),
    "resume_task": Case(),
    "set_task_priority": Case({"priority": 5}),
    "set_task_count": Case({"role": "main", "count": 2}),
    "stop_tasks": Case({"tasks": ["TASK"]}, hides=True),
    "read_output": Case(),
    "read_raw_output": Case(),
    "make_ticket": Case(),
    "list_metrics": Case(),
    "get_latest_metrics": Case(),
    "list_queue": Case(hides=True),
    "list_events": Case(hides=True),
    # workspaces and what belongs to them
    "list_workspaces": Case(hides=True),
    "get_workspace": Case(),
    "change_workspace": Case({"description": "x"}),
    "list_projects": Case(),
    "get_project": Case(),
    "create_project": Case({"name": "new"}),
    "change_project": Case({"description": "x"}),
    "list_secrets": Case(),
    "put_secret": Case({"name": "s", "value": "v"}),
    "delete_secret": Case(),
    "list_roles": Case(query="?over=workspace:lab"),
    "grant_role": Case({"subject": "user:foreign", "role": "admin", "scope": "workspace:lab"}),
    "take_role": Case(query="?subject=user:ada&over=workspace:lab"),
    "list_usage": Case(hides=True),
    "export_usage": Case(hides=True),
    # code and blobs
    "get_code": Case(),
    "has_code": Case(),
    "list_blobs": Case(),
    "get_blob": Case(),
    "stat_blob": Case(),
    "put_blob": Case(content=b"x"),
    "delete_blob": Case(),
    "list_parts": Case(),
    "put_part": Case(content=b"x"),
    "commit_upload": Case({"key": "k", "parts": [], "sha256": "a" * 64}),
    "abort_upload": Case(),
    "sweep_uploads": Case({"older_than_s": 1.0}),
    # experiments, trials, checkpoints
    "submit_experiment": Case({"config": EXPERIMENT}),
    "preview_experiment": Case({"config": EXPERIMENT}),
    "list_experiments": Case(hides=True),
    "get_experiment": Case(),
    "read_experiment_output": Case(),
    "why_experiment": Case(),
    "pause_experiment": Case(),
    "resume_experiment": Case(),
    "cancel_experiment": Case(),
    "kill_experiment": Case(),
    "archive_experiment": Case(),
    "unarchive_experiment": Case(),
    "delete_experiment": Case(),
    "move_experiments": Case({"experiments": ["EXPERIMENT"]}, hides=True),
    "edit_experiment": Case({"notes": "x"}),
    "continue_experiment": Case({}),
    "list_trials": Case(),
    "get_trial": Case(),
    "list_workloads": Case(),
    "stop_trial": Case(),
    "kill_trial": Case(),
    "list_trial_metrics": Case(),
    "get_latest_trial_metrics": Case(),
    "list_experiment_metrics": Case(),
    "read_trial_output": Case(),
    "list_checkpoints": Case(),
    "get_checkpoint": Case(),
    "get_checkpoint_file": Case(),
    "delete_checkpoint": Case(),
    "change_checkpoint_metadata": Case({"set": {"a": 1}}),
    "pin_checkpoint": Case({}),
    "unpin_checkpoint": Case({}),
    "get_workspace_storage": Case(),
    "list_search_events": Case(),
    "answer_search": Case({"cursor": 0}),
    "begin_detached": Case({"name": "x", "key": "k", "workspace": "lab"}),
    # the library
    "list_models": Case(hides=True),
    "create_model": Case({"name": "m"}),
    "get_model": Case(),
    "change_model": Case({"notes": "x"}),
    "delete_model": Case(),
    "list_versions": Case(),
    "register_version": Case({"checkpoint": "CHECKPOINT"}),
    "get_version": Case(),
    "change_version": Case({"notes": "x"}),
    "delete_version": Case(),
    "set_alias": Case({"version": 1}),
    "delete_alias": Case(),
    "list_templates": Case(hides=True),
    "get_template": Case(),
    "put_template": Case({"config": {}}),
    "delete_template": Case(),
    "get_workspace_defaults": Case(),
    "put_workspace_defaults": Case({"config": {}}),
    "delete_workspace_defaults": Case(),
    "list_webhooks": Case(hides=True),
    "create_webhook": Case({"name": "w", "url": "https://example.com/hook", "scope": "workspace:lab"}),
    "get_webhook": Case(),
    "change_webhook": Case({"enabled": False}),
    "delete_webhook": Case(),
    "test_webhook": Case(),
    "list_deliveries": Case(),
}

VALUES = {
    "task": "TASK", "node": "n1", "pool": "default", "digest": DIGEST, "workspace": "lab", "project": "p",
    "name": "ada", "user": "ada", "port": "80", "token": "t", "whose": "user:ada", "checkpoint": "CHECKPOINT",
    "key": "a/b",
    "upload": "u", "part": "1", "experiment": "EXPERIMENT", "trial": "EXPERIMENT.1", "path": "a/b", "action": "archive",
    "model": "m", "version": "1", "alias": "a", "template": "t", "over": "workspace:lab",
}  # fmt: skip
"""What stands in a path for each parameter."""


def real(text: str, lab: dict[str, str]) -> str:
    """The text with what the lab really has in the place of the words for it."""
    for word, value in lab.items():
        text = text.replace(word, value)
    return text


class Route(msgspec.Struct, frozen=True):
    method: str
    template: str
    needs: Needs
    name: str

    def path(self, lab: dict[str, str]) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1]
            assert name in VALUES, f"no value for {{{name}}} of {self.template}: say one in VALUES"
            return real(VALUES[name], lab)

        path = re.sub(r"\{(\w+):\w+\}", value, self.template)
        return f"{path}/{lab['TASK']}/80/" if self.needs is Needs.TICKET else path

    def __str__(self) -> str:
        return f"{self.method} {self.template} ({self.needs})"


def routes_of(app: Any) -> list[Route]:
    found: list[Route] = []
    for route in app.routes:
        for handler in getattr(route, "route_handlers", None) or [route.route_handler]:
            methods = getattr(handler, "http_methods", None)
            if methods is None:
                methods = ("GET", "POST", "WEBSOCKET") if needs_of(handler) is Needs.TICKET else ("WEBSOCKET",)
            name = getattr(handler, "operation_id", None) or handler.handler_name
            found += [Route(str(method), route.path, needs_of(handler), str(name)) for method in methods]
    return found


class Walk:
    """One caller's walk past every route."""

    def __init__(self, house: House, client: httpx.AsyncClient, lab: dict[str, str]) -> None:
        self.house, self.client, self.lab = house, client, lab
        self.wrong: list[str] = []

    async def call(self, route: Route, token: str) -> tuple[int, str]:
        path = route.path(self.lab)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if route.method == "WEBSOCKET":
            try:
                async with connect(self.house.url.replace("http", "ws") + path, additional_headers=headers):
                    return 101, ""
            except websockets.exceptions.InvalidStatus as refused:
                return refused.response.status_code, ""
        case = CASES.get(route.name, Case())
        body = real(msgspec.json.encode(case.body).decode(), self.lab).encode() if case.body is not None else None
        content = case.content or body
        answer = await self.client.request(route.method, path + case.query, headers=headers, content=content)
        if answer.status_code >= 400 and route.method != "HEAD":
            assert answer.json()["code"], f"{route}: an error without a code"
        return answer.status_code, answer.text

    async def expect(self, route: Route, who: str, status: int) -> None:
        got, text = await self.call(route, self.house.tokens.get(who, who))
        if got != status:
            self.wrong.append(f"{route}: {who or 'nobody'} got {got}, not {status}: {text[:200]}")

    async def expect_nothing(self, route: Route, who: str) -> None:
        """It is answered, and nothing of the lab is in the answer."""
        got, text = await self.call(route, self.house.tokens[who])
        named = route.name in ("stop_tasks", "move_experiments")  # they answer with the names they were given
        found = any(value in text for value in self.lab.values()) and not named
        if got >= 300 or "lab" in text or found or (named and "there is no such" not in text):
            self.wrong.append(f"{route}: {who} got {got}: {text[:200]}")


async def furnished(house: House) -> dict[str, str]:
    """A lab with somebody in it, a running task and an experiment, and everybody who should not be there."""
    await house.workspace("lab")
    await house.workspace("other")
    await house.user("ada", Role.EDITOR, "workspace:lab")
    await house.user("viewer", Role.VIEWER, "workspace:lab")
    await house.user("foreign", Role.ADMIN, "workspace:other")
    await house.user("nobody")
    await house.user("looker", Role.VIEWER, "cluster")
    access = house.services.access
    for kind in (TokenKind.AGENT, TokenKind.ENROL):
        view = TokenView(id="", kind=kind, user="admin", node="n1", pool="default")
        house.tokens[str(kind)] = (await access.make_token(view, 600.0)).token
    await house.node("n1", 8)
    tasks = []
    for who, workspace in (("ada", "lab"), ("foreign", "other")):
        async with house.client(who) as client:
            answer = await client.post("/api/v1/tasks", json=submission(workspace=workspace, name=f"{workspace}-task"))
            assert answer.status_code == 201, answer.text
            task = answer.json()["task"]
        await house.state_is(task, "running")
        member = MemberId(TaskId(task), "main", 0)
        state = house.services.loop.state
        house.tokens[f"member of {workspace}"] = access.task_token(
            member, state.members[member].fence(state.generation)
        )
        tasks.append(task)
    async with house.client("ada") as client:
        assert (await client.post("/api/v1/workspaces/lab/projects", json={"name": "p"})).status_code == 201
        answer = await client.post("/api/v1/experiments", json={"config": EXPERIMENT})
        assert answer.status_code == 201, answer.text
        experiment = answer.json()["experiment"]
    return {"TASK": str(tasks[0]), "EXPERIMENT": experiment, "CHECKPOINT": await checkpoint(house, f"{experiment}.1")}


async def checkpoint(house: House, trial: str) -> str:
    """A committed checkpoint of a running trial."""
    await house.state_is(trial, "running")
    state = house.services.loop.state
    member = MemberId(TaskId(trial), "main", 0)
    house.tokens["trial"] = house.services.access.task_token(member, state.members[member].fence(state.generation))
    async with house.client("trial") as client:
        made = (await client.post("/api/v1/run/checkpoints", json={"step": 1})).json()["id"]
        answer = await client.post(f"/api/v1/run/checkpoints/{made}/commit", json={"step": 1})
        assert answer.status_code == 200, answer.text
    return str(made)


async def test_everybody_who_may_not_is_refused(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client("") as client:
        walk = Walk(house, client, await furnished(house))
        routes = routes_of(house.server.app)
        assert len(routes) > 100 and any(route.method == "WEBSOCKET" for route in routes)
        for route in routes:
            needs = route.needs
            if needs is Needs.PUBLIC:
                assert (route.method, route.template) in PUBLIC
                continue
            await walk.expect(route, "", 401)
            await walk.expect(route, "unknown-token", 401)
            if needs is not Needs.AGENT:
                await walk.expect(route, "agent", 403)
            if needs is not Needs.ENROLMENT:
                await walk.expect(route, "enrol", 403)
            if needs not in (Needs.TASK, Needs.MEMBER_OR_USER):
                await walk.expect(route, "member of lab", 403)
            if needs in (Needs.TASK, Needs.AGENT, Needs.ENROLMENT):
                await walk.expect(route, "ada", 403)
                await walk.expect(route, "admin", 403)
            if needs in CLUSTER_WIDE:
                await walk.expect(route, "foreign", 403)
                if needs is not Needs.CLUSTER_VIEWER:
                    await walk.expect(route, "looker", 403)
            if needs is Needs.TICKET:
                await walk.expect(route, "foreign", 404)
                await walk.expect(route, "viewer", 403)
        assert not walk.wrong, "\n".join(walk.wrong)


async def test_nobody_looks_into_a_foreign_workspace(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, house.client("") as client:
        walk = Walk(house, client, await furnished(house))
        asking = [r for r in routes_of(house.server.app) if r.needs in (*IN_WORKSPACE, Needs.MEMBER_OR_USER)]
        asking = [r for r in asking if r.method != "OPTIONS"]
        lacking = sorted({route.name for route in asking} - CASES.keys())
        assert not lacking, f"say in CASES how they are called: {lacking}"
        for route in asking:
            case = CASES[route.name]
            for who in ("foreign", "nobody"):
                if case.hides:
                    await walk.expect_nothing(route, who)
                else:
                    await walk.expect(route, who, 404)
            if route.needs is Needs.MEMBER_OR_USER:
                await walk.expect(route, "member of other", 404)
            if route.needs in (Needs.EDITOR, Needs.ADMIN) and not case.hides:
                await walk.expect(route, "viewer", 403)
            if route.needs is Needs.ADMIN:
                await walk.expect(route, "ada", 403)
        assert not walk.wrong, "\n".join(walk.wrong)
        state = house.services.loop.state
        assert len(state.tasks) == 3 and all(task.wish == "run" for task in state.tasks.values()), "nothing was changed"
        async with house.client("ada") as ada:
            view = (await ada.get(f"/api/v1/experiments/{walk.lab['EXPERIMENT']}")).json()["view"]
            assert (view["state"], view["notes"], view["archived"]) == ("active", "", False), "nothing was changed"
            held = (await ada.get(f"/api/v1/checkpoints/{walk.lab['CHECKPOINT']}")).json()["row"]
            assert (held["state"], held["pins"]) == ("committed", ""), "nothing was changed"


def test_every_operation_has_a_name_of_its_own_and_words() -> None:
    seen: dict[str, str] = {}
    workloads = (experiments, trials, checkpoints, run, models, templates, webhooks)
    for handler in [*all_routes(), *(route for file in workloads for route in file.ROUTES)]:
        paths = ", ".join(sorted(handler.paths))
        if not hasattr(handler, "operation_id") or not handler.resolve_include_in_schema():
            continue
        name = handler.operation_id
        assert isinstance(name, str) and re.fullmatch(r"[a-z]+(_[a-z]+)+", name), f"{paths}: operation_id {name!r}"
        assert seen.setdefault(name, paths) == paths, f"{name} is both {paths} and {seen[name]}"
        assert handler.tags, f"{paths}: no tags"
        assert (handler.fn.__doc__ or "").strip(), f"{paths}: no docstring, so no summary in /docs"
