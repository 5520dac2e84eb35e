"""``clutch up`` and ``clutch down``: a whole cluster on this machine, in one process, behind one address."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from clutch.cli import home
from clutch.cli.seen import Up
from clutch.cli.wishes import forgotten_if_it_fails, remembered
from clutch.wire.errors import ClutchError, Unavailable

UP_WITHIN_S = 60.0
DOWN_WITHIN_S = 30.0
_DATA = Annotated[Path | None, typer.Option(help="Its folder; the user's data folder if not given.")]


def up(
    agents: Annotated[
        int | None, typer.Option(help="So many agents, each a node of its own; 1 at first.", min=0)
    ] = None,
    artificial_slots: Annotated[int | None, typer.Option(help="So many slots an agent that stand for nothing.")] = None,
    port: Annotated[int | None, typer.Option(help="0: the port used last time, else the first free from 8620.")] = None,
    join: Annotated[
        bool | None, typer.Option("--join/--no-join", help="Also listen for other machines, by TLS.")
    ] = None,
    join_host: Annotated[str | None, typer.Option(help="Address other machines reach this one by.")] = None,
    db: Annotated[str | None, typer.Option(help="postgresql://...; empty: SQLite in the data folder.")] = None,
    data: _DATA = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in this terminal; Ctrl-C stops it.")] = False,
    ready_fd: Annotated[int, typer.Option(hidden=True)] = -1,
    as_json: Annotated[bool, typer.Option("--json", help="Say it as JSON.")] = False,
) -> None:
    """Start a cluster on this machine, or find the one that runs. What it did before goes on, with the same options
    unless others are given."""
    folder = (data or home.home()).absolute()
    if home.is_up(folder):
        _show(_again(folder), as_json, "It is up already.")
        return
    asked = {"agents": agents, "artificial_slots": artificial_slots, "port": port, "join": join}
    with forgotten_if_it_fails(folder):
        wish = remembered(folder, {**asked, "join_host": join_host, "db": db})
        if not foreground:
            _show(spawn(folder), as_json, "The cluster is up.")
            return
        from clutch.cli.house_main import serve_house

        serve_house(folder, wish, lambda seen: _tell(seen, ready_fd, as_json))


def down(
    grace: Annotated[float, typer.Option(help="Seconds for work to save itself before it is stopped.")] = 30.0,
    leave: Annotated[bool, typer.Option("--leave", help="Leave the work running; the next 'up' finds it.")] = False,
    data: _DATA = None,
) -> None:
    """Stop this machine's cluster. Work is asked to save itself, then stopped; 'clutch up' resumes it."""
    folder = (data or home.home()).absolute()
    if not home.is_up(folder):
        typer.echo("Nothing is up here.")
        return
    if not leave:
        empty(folder, grace)
    stop(folder)
    typer.echo("The cluster is down." + (" Its work goes on; 'clutch up' finds it again." if leave else ""))


def spawn(folder: Path) -> Up:
    """Start the process in the background and wait until it serves, or say why it does not."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    read_end, write_end = os.pipe()
    log_path = folder / home.LOG
    with log_path.open("ab") as log:
        began_at = log.tell()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "clutch.cli.main",
                "up",
                "--foreground",
                f"--ready-fd={write_end}",
                f"--data={folder}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(write_end,),
        )
    os.close(write_end)
    said = _told(read_end)
    if said is None:
        raise Unavailable(
            f"it is not up after {UP_WITHIN_S:g} s, and still tries",
            object="clutch up",
            next_step=f"Read {log_path}; 'clutch down' ends it.",
        )
    if not said:
        process.wait(timeout=UP_WITHIN_S)
        lines = log_path.read_bytes()[began_at:].decode("utf-8", "replace").splitlines()[-5:]
        raise Unavailable(
            "it did not come up: "
            + ("; ".join(line.strip().removeprefix("clutch: ") for line in lines) or "it said nothing"),
            object="clutch up",
            next_step=f"Read {log_path}.",
        )
    return msgspec.json.decode(said, type=Up)


def _told(read_end: int) -> bytes | None:
    """What is said through this pipe until its writer is gone; None if that takes too long."""
    said, until = b"", time.monotonic() + UP_WITHIN_S
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            piece = pipe.read(65536)
            if not piece:
                return said
            said += piece
    return None


def _tell(seen: Up, ready_fd: int, as_json: bool) -> None:
    if ready_fd < 0:
        _show(seen, as_json, "The cluster is up. Ctrl-C stops it.")
        return
    with suppress(BrokenPipeError), os.fdopen(ready_fd, "wb") as pipe:  # nobody waits any more; it is up all the same
        pipe.write(msgspec.json.encode(seen))


def _show(seen: Up, as_json: bool, headline: str) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(seen).decode())
        return
    typer.echo(headline)
    typer.echo(f"  address   {seen.url}")
    typer.echo(f"  log in    {seen.url}/#token={seen.one_time_token}   (good once, for 15 minutes)")
    typer.echo(f"  nodes     {', '.join(seen.nodes) or 'none'}   running members as {' or '.join(seen.backends)}")
    if seen.join:
        typer.echo(f"  add one   {seen.join}")
    typer.echo("Try: clutch run -- echo hello      Stop: clutch down")


def _again(folder: Path) -> Up:
    from clutch.cli.local import local_client
    from clutch.cli.seen import look

    with local_client(folder) as client:
        return look(client)


def empty(folder: Path, grace_s: float) -> None:
    """Ask everything here to save its work and leave, and wait for it as long as was said."""
    from clutch.cli.local import local_client
    from clutch.cli.seen import drain_local

    names = tuple(sorted(path.name for path in (folder / "agents").glob("*")))
    (folder / home.DRAINED).write_text("\n".join(names))
    try:
        with local_client(folder) as client:
            drain_local(client, names, grace_s, lambda text: typer.echo(text, err=True))
    except ClutchError as error:
        typer.echo(f"clutch: work could not be asked to leave: {error}", err=True)


def stop(folder: Path) -> None:
    """SIGTERM to the process that holds the folder, then wait for its lock."""
    try:
        pid = int((folder / home.LOCK).read_text())
    except (OSError, ValueError):
        raise Unavailable("its process is not known", object=str(folder / home.LOCK)) from None
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + DOWN_WITHIN_S
    while home.is_up(folder):
        if time.monotonic() > until:
            raise Unavailable(
                f"process {pid} has not ended within {DOWN_WITHIN_S:g} s",
                object="clutch down",
                next_step=f"Read {folder / home.LOG}; 'kill -9 {pid}' loses nothing that was acknowledged.",
            )
        time.sleep(0.02)
