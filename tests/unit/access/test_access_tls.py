"""The rule for listeners, and an authority of one's own over real sockets."""

import asyncio
import datetime
import ssl
from pathlib import Path

import msgspec
import pytest

from clutch.master.server import listen
from clutch.master.settings import MasterSettings
from clutch.master.tls import (
    check_fingerprint,
    check_listener,
    client_context,
    ensure_certificates,
    fingerprint,
    is_loopback,
    server_context,
)
from clutch.wire.errors import BadRequest, NotAuthenticated

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_may_speak_in_clear(host: str) -> None:
    assert is_loopback(host)
    check_listener(host, has_tls=False, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "192.168.1.1", "example.org", "", "localhost.evil", "*"])
def test_a_network_needs_tls_unless_it_is_said_aloud(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(BadRequest, match="in clear"):
        check_listener(host, has_tls=False, insecure=False)
    check_listener(host, has_tls=True, insecure=False)
    check_listener(host, has_tls=False, insecure=True)


def test_a_master_keeps_the_rule(tmp_path: Path) -> None:
    open_to_all = MasterSettings(data=tmp_path, host="0.0.0.0")
    with pytest.raises(BadRequest, match="in clear"):
        listen(open_to_all)
    listen(msgspec.structs.replace(open_to_all, insecure=True)).close()
    listen(msgspec.structs.replace(open_to_all, tls_cert="server.pem")).close()
    listen(MasterSettings(data=tmp_path)).close()


def test_certificates_are_made_once_and_renewed_when_needed(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path / "tls", ("127.0.0.1", "master"), NOW)
    authority, first = files.authority.read_text(), files.certificate.read_bytes()
    for private in (files.key, files.authority.with_name("ca.key")):
        assert private.stat().st_mode & 0o777 == 0o600
    again = ensure_certificates(tmp_path / "tls", ("master",), NOW + 10 * DAY)
    assert again.certificate.read_bytes() == first, "it serves these hosts already"
    more = ensure_certificates(tmp_path / "tls", ("127.0.0.1", "10.0.0.7"), NOW)
    assert more.certificate.read_bytes() != first, "another address"
    second = more.certificate.read_bytes()
    late = ensure_certificates(tmp_path / "tls", ("127.0.0.1", "10.0.0.7"), NOW + 370 * DAY)
    assert late.certificate.read_bytes() != second, "about to end"
    assert late.authority.read_text() == authority, "what clients have pinned stays"
    late.certificate.write_text("nonsense")
    ensure_certificates(tmp_path / "tls", ("127.0.0.1",), NOW)
    server_context(late.certificate, late.key)


def test_a_pinned_fingerprint_is_compared(tmp_path: Path) -> None:
    one = ensure_certificates(tmp_path / "one", ("a",), NOW).authority.read_text()
    other = ensure_certificates(tmp_path / "other", ("a",), NOW).authority.read_text()
    pin = fingerprint(one)
    assert pin.startswith("sha256:") and len(pin) == 7 + 64
    check_fingerprint(one, pin)
    check_fingerprint(one, f" {pin.upper().replace('SHA256', 'sha256')}\n")
    for wrong in (other, "nonsense", ""):
        with pytest.raises(NotAuthenticated):
            check_fingerprint(wrong, pin)


async def _greeted(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bytes:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
    try:
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
        try:
            return await reader.read(100)
        finally:
            writer.close()
            await writer.wait_closed()
    finally:
        listener.close()


async def test_clients_trust_that_authority_and_no_other(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path / "tls", ("127.0.0.1", "master"), NOW)
    server, client = server_context(files.certificate, files.key), client_context(files.authority)
    for name in ("127.0.0.1", "master"):
        assert await _greeted(server, client, name) == b"hello"
    with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)hostname|ip address"):
        await _greeted(server, client, "elsewhere")
    other = ensure_certificates(tmp_path / "other", ("127.0.0.1",), NOW)
    for strange in (client_context(other.authority), client_context()):
        with pytest.raises(ssl.SSLCertVerificationError):
            await _greeted(server, strange, "127.0.0.1")


def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path / "tls", ("a",), NOW)
    with pytest.raises(BadRequest):
        server_context(files.certificate, files.authority.with_name("ca.key"))
    with pytest.raises(BadRequest):
        server_context(tmp_path / "none", files.key)
    with pytest.raises(BadRequest):
        client_context(tmp_path / "none")
