"""From a command line to a client of the cluster it means. The one place where commands read the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from clutch.sdk.where import Given, Where, find

if TYPE_CHECKING:
    from clutch.sdk.client import Client

PATIENCE_S = 3.0
"""A person waits in front of it: a master that is away is said to be away soon. What is under way waits longer."""


def place(context: typer.Context) -> Where:
    """Where the cluster is, by what was said, the environment, the login, or the ``clutch up`` of this machine."""
    said = context.find_root().obj
    return find(os.environ, Given(said.master, said.token, said.ca_file))


def connect(context: typer.Context, *, patience_s: float = PATIENCE_S) -> Client:
    from clutch.sdk.client import Client

    where = place(context)
    return Client(where.masters, where.token, ca_file=where.ca_file, patience_s=patience_s)
