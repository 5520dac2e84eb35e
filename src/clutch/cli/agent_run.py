"""An agent as a process of its own: enrolled once, then run for as long as the machine is in the cluster."""

from __future__ import annotations

import asyncio
import ssl
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from clutch.agent import main as agent_main
from clutch.agent.settings import AgentSettings
from clutch.cli.home import write_private
from clutch.master.tls import AUTHORITY_FILE, check_fingerprint
from clutch.sdk.call import Call
from clutch.sdk.client import Client
from clutch.wire.access import Enrol, MadeToken
from clutch.wire.errors import BadRequest, Unavailable
from clutch.wire.link import AUTHORITY_PATH, ENROL_PATH

TOKEN_FILE = "agent.token"
AUTHORITY_WITHIN_S = 30.0
ENROL_WITHIN_S = 600.0
"""A machine may be up before its master is."""


async def run_agent(settings: AgentSettings, enrolment: str, fingerprint: str = "") -> None:
    """Run an agent; the first time in its folder, with an enrolment token, it is enrolled before."""
    if fingerprint and settings.ca_file is None:
        settings = msgspec.structs.replace(settings, ca_file=await asyncio.to_thread(_authority, settings, fingerprint))
    token = await asyncio.to_thread(_token, settings, enrolment)
    await agent_main.run(msgspec.structs.replace(settings, token=token))


def _authority(settings: AgentSettings, pinned: str) -> Path:
    """The cluster's authority, fetched over the untrusted way and believed only if it is the one that was pinned."""
    keep = settings.data / AUTHORITY_FILE
    if not keep.exists():
        settings.data.mkdir(mode=0o711, parents=True, exist_ok=True)
        found = _fetch(settings.masters[0])
        check_fingerprint(found, pinned)
        keep.write_text(found)
    check_fingerprint(keep.read_text(), pinned)
    return keep


def _fetch(master: str) -> str:
    """The certificate that a master shows to anybody. Whether it is the right one, the caller must check."""
    place = urlsplit(master)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection(place.hostname or "", place.port or 443, timeout=AUTHORITY_WITHIN_S, context=context)
    try:
        connection.request("GET", AUTHORITY_PATH)
        answer = connection.getresponse()
        body = answer.read(65536).decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise Unavailable(
            f"the cluster's authority cannot be fetched: {error}",
            object=master,
            next_step="Is the address right, and reachable from this machine?",
        ) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise Unavailable(f"it has no authority to show (status {answer.status})", object=master)
    return body


def _token(settings: AgentSettings, enrolment: str) -> str:
    settings.data.mkdir(mode=0o711, parents=True, exist_ok=True)
    kept = settings.data / TOKEN_FILE
    if kept.exists():
        return kept.read_text().strip()
    return _enrol(settings, enrolment, kept)


def _enrol(settings: AgentSettings, enrolment: str, keep: Path) -> str:
    """A token of this node's own, kept in its folder. Tries every master until one that leads answers."""
    if not enrolment:
        raise BadRequest(
            "this machine is not enrolled yet",
            object=f"node {settings.node}",
            next_step="Make a token with 'clutch token create --kind enrol' and give it with --token-file.",
        )
    ca_file = str(settings.ca_file or "")
    call: Call[MadeToken] = Call(
        method="POST",
        path=ENROL_PATH,
        answer=MadeToken,
        body=msgspec.json.encode(Enrol(settings.node, settings.pool)),
        repeatable=True,
    )
    with Client(settings.masters, enrolment, ca_file=ca_file, patience_s=ENROL_WITHIN_S) as client:
        made = client.perform(call)
    write_private(keep, made.token + "\n")
    return made.token
