"""A master behind TLS is believed only if its authority is."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from scripted_master import json, master

from clutch.sdk import calls
from clutch.sdk.async_client import AsyncClient
from clutch.sdk.client import Client
from clutch.wire.api import Health
from clutch.wire.errors import BadRequest, ClutchError, NotAuthenticated


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a key and a certificate for localhost that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def over_tls(server: Any, certificate: Path) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return f"https://localhost:{server.server_port}"


def test_both_clients_trust_the_authority_they_were_given_and_no_other(certificate: Path, tmp_path: Path) -> None:
    healthy = Health(status="serving", version="1")

    async def ask(url: str, ca_file: str) -> Health:
        async with AsyncClient(url, ca_file=ca_file, patience_s=0.2) as client:
            return await client.perform(calls.get_health())

    with master(json(healthy)) as server:
        url = over_tls(server, certificate)
        with Client(url, ca_file=str(certificate)) as client:
            assert client.perform(calls.get_health()) == healthy
        assert asyncio.run(ask(url, str(certificate))) == healthy
        with Client(url) as client, pytest.raises(NotAuthenticated, match="certificate is not trusted"):
            client.perform(calls.get_health())
        with pytest.raises(ClutchError):
            asyncio.run(ask(url, ""))
        with (
            Client(url, ca_file=str(tmp_path / "none.pem")) as client,
            pytest.raises(BadRequest, match="cannot be read"),
        ):
            client.perform(calls.get_health())
