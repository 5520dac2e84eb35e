"""``clutch agent --master URL``: this machine joins a cluster."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from clutch.cli import home
from clutch.wire.errors import BadRequest


def start_agent(
    context: typer.Context,
    master: Annotated[
        list[str] | None,
        typer.Option(help="Address of a master; name each one, with standbys."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with an enrolment token.")] = None,
    token: Annotated[str, typer.Option(help="An enrolment token; better in a file.", envvar="CLUTCH_ENROL")] = "",
    fingerprint: Annotated[str, typer.Option(help="Of the cluster's authority: clutch up --join prints it.")] = "",
    ca: Annotated[Path | None, typer.Option(help="Certificate to believe, for https.")] = None,
    name: Annotated[str, typer.Option(help="Name of this node; the host's name if empty.")] = "",
    pool: Annotated[str, typer.Option(help="The pool it joins.")] = "default",
    artificial_slots: Annotated[int, typer.Option(help="So many slots that stand for nothing: for tests.")] = 0,
    cpu_slots: Annotated[int, typer.Option(help="CPU slots; -1: one, if there is no GPU.")] = -1,
    docker: Annotated[
        str, typer.Option(help="Engine for images, unix:///PATH or none; else as DOCKER_HOST says.")
    ] = "",
    docker_network: Annotated[str, typer.Option(help="Network of its containers; host: the node's own.")] = "host",
    allow_mount: Annotated[
        list[Path] | None, typer.Option(help="Containers may mount only what is in these folders; else anything.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, shown with the node.")] = None,
    data: Annotated[Path | None, typer.Option(help="Its folder.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Nodes of the cluster; with --master, run this machine's agent until it is stopped."""
    if context.invoked_subcommand is not None:
        return
    if not master:
        typer.echo(context.get_help())
        raise typer.Exit
    from clutch.agent.settings import AgentSettings
    from clutch.agent.slots import SlotWish
    from clutch.cli.agent_run import run_agent
    from clutch.cli.backends import engine_socket
    from clutch.cli.serving import run_loop
    from clutch.master.logs import configure_logs

    node = name or socket.gethostname()
    settings = AgentSettings(
        masters=tuple(address.rstrip("/") for address in master),
        data=data or home.home() / "agents" / node,
        node=node,
        pool=pool,
        ca_file=ca,
        slots=SlotWish(
            artificial=artificial_slots,
            cpu=None if cpu_slots < 0 else cpu_slots,
            cuda_visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        ),
        labels=_labels(label or []),
        docker_socket=engine_socket(docker),
        docker_network=docker_network,
        allowed_mounts=tuple(path.absolute() for path in allow_mount or ()),
    )
    configure_logs(log_level)
    given = token or (token_file.read_text().strip() if token_file else "")
    run_loop(run_agent(settings, given, fingerprint))


def _labels(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadRequest("a label is KEY=VALUE", object=text, next_step="For example --label rack=7.")
        found[key] = value
    return found
