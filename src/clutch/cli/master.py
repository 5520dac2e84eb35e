"""``clutch master``: one master of a cluster, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clutch.cli import home


def master(
    host: Annotated[str, typer.Option(help="Address to listen on. Anything but loopback needs TLS.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: the port used last time, else the first free one from 8620.")] = 0,
    db: Annotated[str, typer.Option(help="postgresql://...; empty: SQLite in the data folder.")] = "",
    data: Annotated[Path | None, typer.Option(help="Its folder.")] = None,
    blobs: Annotated[
        str, typer.Option(help="Where code and files are kept: a folder, s3://..., or agents: for their own disks.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="Name of the cluster.")] = "clutch",
    url: Annotated[str, typer.Option(help="How others reach this master, if not by host and port.")] = "",
    tls_cert: Annotated[str, typer.Option(help="Certificate file.")] = "",
    tls_key: Annotated[str, typer.Option(help="Key file.")] = "",
    master_key_file: Annotated[Path | None, typer.Option(help="File with the key that seals secrets.")] = None,
    pools: Annotated[Path | None, typer.Option(help="TOML file of pools and where their machines come from.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond loopback without TLS.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a master until it is stopped. Several with the same --db are each other's standby."""
    from clutch.cli.serving import run_loop
    from clutch.master import main
    from clutch.master.logs import configure_logs
    from clutch.master.settings import MasterSettings

    settings = MasterSettings(
        host=host,
        port=port,
        db=db,
        data=data or home.home() / "master",
        blobs=blobs,
        cluster=cluster,
        url=url,
        tls_cert=tls_cert,
        tls_key=tls_key,
        insecure=insecure,
        pools_file=str(pools or ""),
        master_key=master_key_file.read_text().strip() if master_key_file else "",
    )
    configure_logs(log_level)
    run_loop(main.run(settings))
