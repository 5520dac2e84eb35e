"""``clutch doctor``: a live cluster, checked line by line, with a next step where something falls short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from clutch.cli.lists import COLOURS, Json, coloured
from clutch.cli.where import place

if TYPE_CHECKING:
    from clutch.sdk.client import Client
    from clutch.sdk.where import Where

app = typer.Typer(rich_markup_mode=None)
OK, WARN, FAIL = "ok", "warn", "fail"


class Finding(msgspec.Struct, frozen=True):
    """One line: how it is, what was looked at, what was found, and what to do about it."""

    verdict: str
    what: str
    words: str
    next_step: str = ""


@app.command("doctor")
def doctor(
    context: typer.Context,
    canary: Annotated[
        bool, typer.Option("--canary/--no-canary", help="Run a small task and compare its bytes.")
    ] = True,
    pool: Annotated[str, typer.Option("--pool", help="Where the small task runs.")] = "default",
    wait: Annotated[float, typer.Option("--wait", min=1.0, help="Seconds it may take.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Check a live cluster and what it promises; say what to do where it falls short."""
    found: list[Finding] = []

    def tell(findings: Iterator[Finding]) -> None:
        for finding in findings:
            found.append(finding)
            if not as_json:
                typer.echo(finding_text(finding, coloured()))

    where = place(context)
    with _client(where) as client:
        tell(_cluster(client, where))
        if canary and not any(finding.verdict == FAIL for finding in found):
            from clutch.cli.canary import sing

            tell(sing(client, pool, wait))
    worst = [finding.verdict for finding in found]
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        typer.echo(f"{worst.count(OK)} ok, {worst.count(WARN)} to look at, {worst.count(FAIL)} failed.")
    raise typer.Exit(1 if FAIL in worst else 0)


def finding_text(finding: Finding, colour: bool) -> str:
    verdict = f"{finding.verdict:<4}"
    if colour:
        verdict = f"\x1b[{COLOURS[finding.verdict]}m{verdict}\x1b[0m"
    step = f"\n{'':18}-> {finding.next_step}" if finding.next_step else ""
    return f"{verdict}  {finding.what:<11} {finding.words}{step}"


def _client(where: Where) -> Client:
    from clutch.sdk.client import Client

    return Client(where.masters, where.token, ca_file=where.ca_file, patience_s=3.0)


def _cluster(client: Client, where: Where) -> Iterator[Finding]:
    """Reachable, let in, what it promises, its machines. Stops where going on makes no sense."""
    from clutch.cli import examine
    from clutch.wire.errors import ClutchError

    steps: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: examine.masters(where),
        lambda: examine.caller(client),
        lambda: examine.promises(client),
        lambda: examine.agents(client),
    )
    for step in steps:
        try:
            for finding in step():
                yield finding
                if finding.verdict == FAIL and step in steps[:2]:
                    return
        except ClutchError as error:
            yield Finding(FAIL, error.object or "cluster", error.cause, error.next_step)
            return
