"""``clutch model|template|webhook`` against a master that listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from library_house import House, Receiver, served
from structlog.testing import capture_logs
from typer.testing import CliRunner

from clutch.cli.lazy import Lazy, LazyGroup, Said
from clutch.wire.errors import BadRequest, ClutchError, NotFound, Unavailable


class Commands(LazyGroup):
    table = {  # noqa: RUF012  # as in cli.main
        "model": Lazy("clutch.cli.models", "Models.", group=True),
        "template": Lazy("clutch.cli.templates", "Templates.", group=True),
        "webhook": Lazy("clutch.cli.webhooks", "Webhooks.", group=True),
    }


class Terminal:
    """Commands as somebody with a token types them."""

    def __init__(self, url: str, token: str) -> None:
        self.app = typer.Typer(cls=Commands, rich_markup_mode=None)

        @self.app.callback()
        def root(context: typer.Context) -> None:
            context.obj = Said(url, token)

    async def run(self, *words: str, typed: str = "") -> str:
        """What it prints; an error of ours is raised."""
        done = await asyncio.to_thread(CliRunner().invoke, self.app, list(words), input=typed)
        if isinstance(done.exception, ClutchError):
            raise done.exception
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    async def json(self, *words: str) -> Any:
        return msgspec.json.decode(await self.run(*words, "--json"))


@pytest.fixture
async def terminal(house: House) -> AsyncIterator[Terminal]:
    token = (await house.services.access.local_token()).read_text().strip()
    with capture_logs():  # the master is in this process, and would write its log between a command's own lines
        async with served(house) as url:
            yield Terminal(url, token)


async def test_a_model_from_its_beginning_to_its_end(house: House, terminal: Terminal, tmp_path: Path) -> None:
    house.checkpoints.add("c-one", "c-two")
    assert await terminal.run("model", "list") == "No model.\n"
    (tmp_path / "notes.md").write_text("# How it was made\n")
    said = await terminal.run(
        "model", "create", "digits", "--description", "reads digits", "-l", "vision", "--notes", f"@{tmp_path}/notes.md"
    )
    assert said == "model default/digits: created\n"
    said = await terminal.run("model", "register", "dig", "c-one", "--alias", "best", "--metric", "f1=0.9")
    assert said == "model default/digits:1: checkpoint c-one\n"
    await terminal.run("model", "register", "digits", "c-two", "--name", "second")
    said = await terminal.run("model", "alias", "digits:2", "best", "--instead-of", "1")
    assert said == "model default/digits: best means version 2, no longer 1\n"
    shown = await terminal.run("model", "show", "digits")
    assert "reads digits" in shown and "# How it was made" in shown and "c-two" in shown
    assert (await terminal.json("model", "show", "digits:best"))["checkpoint"] == "c-two"
    assert (await terminal.json("model", "show", "digits:1"))["metrics"] == {"validation": 0.25, "f1": 0.9}
    (listed,) = await terminal.json("model", "list", "--label", "vision")
    assert (listed["versions"], listed["latest"], listed["aliases"]) == (2, 2, {"best": 2})
    await terminal.run("model", "edit", "digits:1", "--name", "first", "--metric", "f1=0.8")
    await terminal.run("model", "edit", "digits", "--no-labels", "--metadata", '{"team": [1]}', "--archive")
    whole = await terminal.json("model", "show", "digits")
    assert (whole["model"]["labels"], whole["model"]["metadata"], whole["model"]["archived"]) == (
        [],
        {"team": [1]},
        True,
    )
    assert whole["versions"][1]["name"] == "first"
    assert await terminal.run("model", "alias", "digits:best", "--remove")
    await terminal.run("model", "delete", "digits:1", typed="y\n")
    assert house.checkpoints.held["c-one"] == set()
    await terminal.run("model", "delete", "digits", "--yes")
    assert house.checkpoints.held["c-two"] == set()


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        (("model", "show", "none"), NotFound, "model default/none"),
        (("model", "show", "di"), BadRequest, "digits, dims"),
        (("model", "show", "digits:best"), NotFound, "digits:best"),
        (("model", "register", "digits", "nope"), NotFound, "nope"),
        (("model", "register", "digits", "c", "--metric", "f1"), BadRequest, "NAME=NUMBER"),
        (("model", "alias", "digits:1"), BadRequest, "MODEL:VERSION ALIAS"),
        (("model", "alias", "digits", "--remove"), BadRequest, "MODEL:ALIAS"),
        (("model", "edit", "digits", "--metric", "a=1"), BadRequest, "--metric"),
        (("model", "edit", "digits:1", "--archive"), BadRequest, "--archive"),
        (("model", "edit", "digits", "--metadata", "[1]"), BadRequest, "JSON object"),
        (("model", "edit", "digits", "--notes", "@/nowhere/x"), BadRequest, "/nowhere/x"),
        (("template", "show", "none"), NotFound, "template default/none"),
        (("template", "set", "t", "/nowhere/x.yaml"), NotFound, "/nowhere/x.yaml"),
        (("template", "defaults"), NotFound, "workspace:default"),
        (("webhook", "create", "w", "http://h/", "-t", "exploded"), BadRequest, "exploded"),
        (("webhook", "create", "w", "http://169.254.169.254/"), ClutchError, "169.254.169.254"),
        (("webhook", "show", "none"), NotFound, "webhook workspace:default/none"),
        (("webhook", "list", "-w", "nowhere/x"), BadRequest, "scope"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_what_is_wrong_is_said(
    house: House, terminal: Terminal, words: tuple[str, ...], error: type[ClutchError], says: str
) -> None:
    house.checkpoints.add("c")
    for name in ("digits", "dims"):
        await terminal.run("model", "create", name)
    with pytest.raises(error) as caught:
        await terminal.run(*words)
    assert says in str(caught.value)
    assert caught.value.blame == "user"


async def test_templates_and_defaults(house: House, terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text("# mine\nmax_restarts: 3\n")
    await terminal.run("template", "set", "robust", str(file), "--description", "tries often")
    shown = await terminal.run("template", "show", "rob")
    assert "tries often" in shown and "# mine\nmax_restarts: 3" in shown
    (listed,) = await terminal.json("template", "list")
    assert (listed["name"], listed["description"]) == ("robust", "tries often")
    await terminal.run("template", "defaults", "--set", str(file))
    file.write_text("old: 1\n")
    assert "old: it is now called max_restarts." in await terminal.run(
        "template", "defaults", "--cluster", "--set", str(file)
    )
    assert (await terminal.json("template", "defaults"))["config"] == {"max_restarts": 3}
    assert await house.library.layers("default", "robust") == [{"max_restarts": 3}, {"max_restarts": 3}, {"old": 1}]
    await terminal.run("template", "defaults", "--delete")
    await terminal.run("template", "delete", "robust", typed="y\n")
    assert await house.library.layers("default") == [{"old": 1}]
    with pytest.raises(BadRequest):
        await terminal.run("template", "defaults", "--delete", "--set", str(file))


async def test_a_webhook_from_its_beginning_to_its_end(house: House, terminal: Terminal, receiver: Receiver) -> None:
    said = await terminal.run("webhook", "create", "chat", receiver.url, "-t", "failed", "--experiment", "a-*")
    assert "secret  " in said
    made = await terminal.json("webhook", "create", "all", receiver.url, "--cluster", "--format", "slack")
    assert len(made["secret"]) > 30
    hidden = await terminal.run("webhook", "create", "own", receiver.url, "--own-secret", typed="my own secret\n")
    assert "my own secret" not in hidden
    listed = await terminal.json("webhook", "list")
    assert [(view["scope"], view["name"]) for view in listed] == [
        ("cluster", "all"), ("workspace:default", "chat"), ("workspace:default", "own"),
    ]  # fmt: skip
    assert len(await terminal.json("webhook", "list", "--cluster")) == 1
    assert "answered 200" in await terminal.run("webhook", "test", "chat")
    receiver.answers = [500]
    with pytest.raises(Unavailable, match="answered 500"):
        await terminal.run("webhook", "test", "all", "--cluster")
    await terminal.run("webhook", "disable", "ch")
    shown = await terminal.json("webhook", "show", "chat")
    assert (shown["webhook"]["enabled"], shown["webhook"]["url"]) == (False, receiver.url)
    assert [each["status"] for each in shown["deliveries"]] == [200]
    assert "it answered 500" in await terminal.run("webhook", "show", "all", "--cluster")
    await terminal.run("webhook", "enable", "chat")
    await terminal.run("webhook", "delete", "chat", "--yes")
    assert len(await terminal.json("webhook", "list")) == 2
